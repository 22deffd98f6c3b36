//! Index expressions mean in C what they mean here: random expressions at random points, compiled by the C compiler.

use mk_codegen::plan::{
    Arena, BinOp, C_PRELUDE, CPrinter, Dim, Entity, Env, Expr, Family, Leaf, Mesh, Plan, RoleId,
    Schedule, Table, TableSource, Var,
};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use std::{fmt::Write as _, fs, process::Command};

const TABLE: [i32; 6] = [3, 0, 7, -2, 100, 5];
const EXTENTS: [i32; 2] = [9, 4];

/// Two dimensions, a 2 x 3 table, and a family with the variables `i` and `j`.
fn plan() -> Plan {
    let mut dims = Arena::new();
    for (name, value) in [("M", 37), ("K", 128)] {
        dims.push(Dim { name: name.into(), value, runtime_max: None, may_be_zero: false });
    }
    let mut tables = Arena::new();
    tables.push(Table {
        name: "t".into(),
        shape: vec![2, 3],
        source: TableSource::Const(TABLE.to_vec()),
        stored: None,
        routed: None,
    });
    let domain =
        [("i", EXTENTS[0]), ("j", EXTENTS[1])].map(|(n, e)| (n.to_string(), Expr::from(e)));
    let mut families = Arena::new();
    families.push(Family {
        name: "f".into(),
        role: RoleId::new(0),
        leaf: Leaf::Signal,
        domain: domain.to_vec(),
        order: vec![],
        inner: None,
        positions: None,
        accesses: vec![],
        waits: vec![],
        posts: vec![],
        schedule: Schedule::Static,
        edges: vec![],
    });
    Plan { mesh: Mesh::world(4), dims, tables, families, ..Plan::default() }
}

fn expr() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![
        (-20i32..200).prop_map(Expr::Const),
        Just(Expr::Const(i32::MAX)),
        Just(Expr::Const(i32::MIN)),
        (0usize..2).prop_map(|d| Expr::Dim(mk_codegen::plan::DimId::new(d))),
        Just(Expr::from(Var::RANK)),
        Just(Expr::from(Var::domain(0))),
        Just(Expr::from(Var::domain(1))),
    ];
    let ops = prop::sample::select(vec![
        BinOp::Add,
        BinOp::Sub,
        BinOp::Mul,
        BinOp::Div,
        BinOp::Mod,
        BinOp::Min,
        BinOp::Max,
        BinOp::Lt,
        BinOp::Le,
        BinOp::Eq,
        BinOp::And,
    ]);
    leaf.prop_recursive(6, 40, 3, move |inner| {
        prop_oneof![
            6 => (ops.clone(), inner.clone(), inner.clone())
                .prop_map(|(op, a, b)| Expr::Bin(op, Box::new(a), Box::new(b))),
            2 => [inner.clone(), inner.clone(), inner.clone()].prop_map(|c| Expr::Select(Box::new(c))),
            1 => [inner.clone(), inner].prop_map(|[a, b]| {
                Expr::Table(mk_codegen::plan::TabId::new(0), vec![a % 2, b % 3])
            }),
        ]
    })
}

#[test]
fn c_agrees_wherever_the_expression_has_a_value() {
    let plan = plan();
    let family = plan.families.values().next().expect("one family");
    let printer = CPrinter::new(&plan, Some(family));
    let mut runner = TestRunner::default();
    let mut source = format!("#define MK_FN static inline\n{C_PRELUDE}#include <stdio.h>\n");
    let _ = writeln!(source, "static const int kDim_M = 37, kDim_K = 128, tab0[] = {{{TABLE:?}}};");
    source = source.replace("{[", "{").replace("]}", "}");
    let mut calls = String::new();
    let mut wanted = Vec::new();
    let lookup = |_, at: &[i64]| TABLE.get((at[0] * 3 + at[1]) as usize).map(|v| i64::from(*v));
    for n in 0..1500 {
        let e = expr().new_tree(&mut runner).expect("a strategy without filters").current();
        // The same text is read back as the same expression.
        let text = plan.text(Some(family), None, &e).to_string();
        let _ = writeln!(
            source,
            "static int f{n}(int rank, int i, int j) {{ return {}; }}",
            printer.print(&e)
        );
        for point in [[0, 0, 0], [3, 8, 3], [1, 2, 3], [2, 7, 1]] {
            let vars = [point[0], 0, 0, 0, 0, point[1], point[2]];
            let env = Env { dims: &[37, 128], vars: &vars, tables: &lookup };
            if let Ok(value) = e.eval(&env) {
                let [r, i, j] = point;
                let _ = writeln!(calls, "  printf(\"%d\\n\", f{n}({r}, {i}, {j}));");
                wanted.push((value, text.clone(), point));
            }
        }
    }
    let _ = write!(source, "int main() {{\n{calls}}}\n");
    let dir = std::env::temp_dir().join(format!("mk-expr-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a temporary directory");
    let (file, program) = (dir.join("expr.c"), dir.join("expr"));
    fs::write(&file, source).expect("writable");
    let built = Command::new("cc")
        .args(["-x", "c", "-O1", "-w", "-ftrapv", "-o"])
        .arg(&program)
        .arg(&file)
        .output();
    let built = built.expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).output().expect("runs");
    assert!(ran.status.success(), "an overflow that evaluation did not see: {:?}", ran.status);
    let found: Vec<i64> = String::from_utf8_lossy(&ran.stdout)
        .lines()
        .map(|l| l.parse().expect("a number"))
        .collect();
    assert!(wanted.len() > 1000, "only {} points have a value", wanted.len());
    assert_eq!(found.len(), wanted.len());
    for (found, (value, text, point)) in found.iter().zip(&wanted) {
        assert_eq!(found, value, "{text} at rank, i, j = {point:?}");
    }
    fs::remove_dir_all(&dir).expect("removable");
}

proptest! {
    #[test]
    fn every_expression_reads_back(e in expr()) {
        let mut plan = plan();
        let family = mk_codegen::plan::FamId::new(0);
        plan.families[family].inner = Some(("k".into(), e));
        plan.name = "p".into();
        plan.target = "sm_90a".into();
        plan.roles.push(mk_codegen::plan::Role { kind: mk_codegen::plan::RoleKind::Compute, ctas: 1 });
        let text = plan.to_string();
        let again: Plan = text.parse().expect(&text);
        prop_assert_eq!(&plan, &again, "{}", text);
        prop_assert_eq!(text, again.to_string());
    }
}
