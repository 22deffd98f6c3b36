//! Plans with a run-time dimension, proved for all its values at once, against each value by itself.

use mk_codegen::{
    passes,
    plan::{Access, Expr, Plan},
    settings::Config,
    valid::{self, Failure, Violation},
};
use mk_syntax::Program;
use std::{collections::BTreeMap, fs, path::Path};

/// The first value, of those to be taken, with which a plan does not verify by itself.
fn first_wrong(plan: &Plan, take: fn(i32) -> bool) -> Option<(i32, Failure)> {
    let (dim, max) = plan.runtime_dim().expect("a run-time dimension");
    let mut values = (1..=max).filter(|v| take(*v));
    values.find_map(|v| Some((v, valid::verify_value(&plan.at(dim, v)).err()?)))
}

fn all(_: i32) -> bool {
    true
}

/// Beside whole blocks, few values, and some others; with `MK_SWEEP=all` all.
fn some(value: i32) -> bool {
    let near = |n: i32| (value + 2) % n <= 4;
    value < 10
        || near(64)
        || value % 11 == 0
        || std::env::var_os("MK_SWEEP").is_some_and(|v| v == "all")
}

const GATHER: &str = "fn f<M: dyn <= 400>(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) { gather(x) -> gemm(w) }";
const MLP: &str = "fn f<M: dyn <= 400>(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0)) { gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter }";
const SCATTER: &str = "fn f<M: dyn <= 400>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> reduce_scatter }";
const ALL: &str = "fn f<M: dyn <= 400>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> all_reduce }";
const DEPTH: &str = "fn f<M: dyn <= 400>(x: bf16[M, K], dy: bf16[M, N]) { gemm(x.t, dy) }";

/// A pipeline in tiles of 128 rows.
fn lowered(text: &str, ranks: u32) -> Plan {
    let program = Program::parse(text).expect("a program");
    let dims = [("K", 64), ("N", 72), ("F", 64)].map(|(n, v)| (n.to_string(), v));
    let used = |(name, _): &(String, u64)| program.symbols().iter().any(|s| s.name == *name);
    let dims: BTreeMap<String, u64> = dims.into_iter().filter(used).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("sizes");
    let config = Config { ranks, ..Config::default() };
    passes::lower(&program, &bound, &config).expect("a plan")
}

/// Every lowered plan with a run-time dimension that is a snapshot, with a bound that allows fewer rows than its buffers have.
fn snapshots() -> Vec<(String, Plan)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).expect("snapshots") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|n| n.to_str()).unwrap_or_default().to_string();
        let text = fs::read_to_string(&path).expect("a snapshot");
        let Some((_, text)) = text.split_once("expression: plan\n---\n") else { continue };
        let Ok(mut plan) = text.parse::<Plan>() else { continue };
        let Some((dim, max)) = plan.runtime_dim() else { continue };
        let bound = max.min(420);
        (plan.dims[dim].value, plan.dims[dim].runtime_max) = (bound, Some(bound));
        out.push((name, plan));
    }
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}

#[test]
fn what_is_proved_for_all_values_is_right_for_each() {
    let texts =
        [("gather", GATHER), ("mlp", MLP), ("scatter", SCATTER), ("all", ALL), ("depth", DEPTH)];
    let small = texts.iter().flat_map(|(name, text)| {
        [2, 3].map(|ranks| (format!("{name} on {ranks} ranks"), lowered(text, ranks)))
    });
    let plans: Vec<(String, Plan)> = small.chain(snapshots()).collect();
    assert!(plans.len() > 8, "there are snapshots of plans");
    for (name, plan) in plans {
        let proof = valid::verify(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let values = proof.values.expect("all values");
        assert_eq!(values.cells, 1, "{name}");
        if let Some((value, failure)) = first_wrong(&plan, some) {
            panic!("{name}, M = {value}: {failure}");
        }
        println!("{name}: 1..={}", values.max);
    }
}

/// An expression with one of its constants changed, number `which` in order of `visit`; nothing beyond the last one.
fn shifted(e: &Expr, which: &mut i32, by: i32) -> Expr {
    match e {
        Expr::Const(c) => {
            *which -= 1;
            Expr::Const(if *which == -1 { c + by } else { *c })
        }
        Expr::Bin(op, a, b) => {
            let a = shifted(a, which, by);
            Expr::Bin(*op, Box::new(a), Box::new(shifted(b, which, by)))
        }
        Expr::Select(c) => Expr::Select(Box::new(c.each_ref().map(|e| shifted(e, which, by)))),
        Expr::Table(t, index) => {
            Expr::Table(*t, index.iter().map(|e| shifted(e, which, by)).collect())
        }
        e => e.clone(),
    }
}

/// The plan with each constant of each varying region shifted by one, one at a time.
fn shifts(plan: &Plan) -> Vec<(String, Plan)> {
    let (dim, _) = plan.runtime_dim().expect("a run-time dimension");
    let mut out = Vec::new();
    for (id, x) in plan.families.iter() {
        for (line, a) in x.accesses.iter().enumerate() {
            for d in 0..a.region.len() {
                for side in 0..2 {
                    let part = |a: &Access| [a.region[d].0.clone(), a.region[d].1.clone()];
                    let old = part(a)[side].clone();
                    if !old.names_dim(dim) {
                        continue;
                    }
                    for which in 0.. {
                        let new = shifted(&old, &mut { which }, 1);
                        if new == old {
                            break;
                        }
                        let mut plan = plan.clone();
                        let region = &mut plan.families[id].accesses[line].region[d];
                        *(if side == 0 { &mut region.0 } else { &mut region.1 }) = new;
                        out.push((
                            format!("{id} access {line}[{d}].{side} constant {which}"),
                            plan,
                        ));
                    }
                }
            }
        }
    }
    out
}

/// A pass that rounds elsewhere than the others is caught, whatever the values are with which it goes wrong.
#[test]
fn one_shifted_constant_is_rejected_unless_every_value_is_right() {
    let (mut rejected, mut same, mut between) = (0, 0, 0);
    for (text, ranks) in [(GATHER, 2), (MLP, 3), (SCATTER, 3), (ALL, 2)] {
        let plan = lowered(text, ranks);
        for (name, mutant) in shifts(&plan) {
            match valid::verify(&mutant) {
                Err(e) if e.at.is_some() => {
                    let at = valid::verify_value(&e.plan_at(&mutant));
                    assert!(at.is_err(), "{name} is right with the value that is named: {e}");
                    rejected += 1;
                }
                // Two launches with different values, or more than is decided: said as such.
                Err(e) => {
                    assert!(first_wrong(&mutant, all).is_none(), "{name}, of no value: {e}");
                    between += 1;
                }
                Ok(_) => {
                    if let Some((value, e)) = first_wrong(&mutant, all) {
                        panic!("{name} is accepted, M = {value}: {e}");
                    }
                    same += 1;
                }
            }
        }
    }
    println!(
        "{rejected} rejected, {same} right with every value, {between} refused though each value is right by itself"
    );
    assert!(rejected > 100 && between * 20 < rejected, "{rejected}, {same}, {between}");
}

fn hole() -> Plan {
    let text = GATHER.replace("400", "300");
    lowered(&text, 2)
}

/// A wait that is left out with one value only.
#[test]
fn a_wait_that_is_missing_with_one_value_is_found() {
    let text = hole().to_string();
    let waits: Vec<&str> = text.lines().filter(|l| l.starts_with("  wait ")).collect();
    assert!(waits.len() >= 2);
    for (when, value) in [
        ("select(M * 7 == 1211, 0, 1)", 173),
        ("select(M / 3 * 3 + 1 == 100, 0, M)", 101),
        ("min(M % 97, 1)", 291),
    ] {
        let from = waits[1];
        let plan: Plan = text.replace(from, &format!("{from} when {when}")).parse().expect(when);
        let failure = valid::verify(&plan).expect_err(when);
        let at = failure.at.as_ref().expect("a value");
        assert_eq!((at.name.as_str(), at.value), ("M", value), "{when}: {failure}");
        assert!(failure.violations.iter().any(|v| v.rule() == 1), "{failure}");
        assert!(failure.to_string().contains(&format!("with M = {value}")));
    }
}

/// Each launch is right, and so are launches with one value; launches with different ones are not.
#[test]
fn launches_with_different_values_are_proved_too() {
    // Rank 0 waits until its own rows have been read; those of rank 1 it does not know of.
    let text = r#"plan "f"
mesh world=2
target sm_90a
dim dim0 M = 8 runtime <= 8
buffer buf0 "a" in bf16[16, 8]
buffer buf1 "w" workspace bf16[16, 8]
buffer buf2 "y" out bf16[16 * rank, 8]
signal sig0 "arrived" [1]
signal sig1 "own" [1]
signal sig2 "taken" [1]
role role0 intra_comm ctas 1
family fam0 "to peer" role0 {
  leaf copy_tile via=bulk stages=2
  for i in 1 - rank
  edge e0 full
  edge e1 empty
  access src: read buf0 @ rank [0 : M, 0 : 8] at start
  access dst: write buf1 @ 1 [0 : M, 0 : 8] at end
  wait e2 sig2[0] >= 1 lag 1 by storer for async scope sys at start
  post e3 sig0[0] @ 1 += 1 by storer after global_write_done scope sys at end
}
family fam1 "own" role0 {
  leaf copy_tile via=bulk stages=2
  for i in rank
  edge e4 full
  edge e5 empty
  access src: read buf0 @ rank [M : 16 - M, 0 : 8] at start
  access dst: write buf1 @ 1 [M : 16 - M, 0 : 8] at end
  post e6 sig1[0] @ rank += 1 by storer after global_write_done scope gpu at end
}
family fam2 "take" role0 {
  leaf copy_tile via=ldst stages=1
  for i in rank
  access src: read buf1 @ rank [0 : M, 0 : 8] at start
  access dst: write buf2 @ rank [0 : M, 0 : 8] at end
  wait e7 sig0[0] >= 1 by copier for generic scope sys at start
  post e8 sig2[0] @ 0 += 1 by copier after program_order scope sys at end
}
family fam3 "take.own" role0 {
  leaf copy_tile via=ldst stages=1
  for i in rank
  access src: read buf1 @ rank [M : 16 - M, 0 : 8] at start
  access dst: write buf2 @ rank [M : 16 - M, 0 : 8] at end
  wait e9 sig1[0] >= 1 by copier for generic scope gpu at start
}
"#;
    let plan: Plan = text.parse().expect("a plan");
    assert!(first_wrong(&plan, all).is_none());
    let failure = valid::verify(&plan).expect_err("two launches");
    assert_eq!(failure.at, None);
    assert!(matches!(failure.violations[..], [Violation::Race { .. }, ..]), "{failure}");
}

#[test]
fn what_is_not_linear_is_looked_at_value_by_value_or_refused() {
    let text = hole().to_string();
    let region = "rank : 1, i * 128";
    assert!(text.contains(region), "{text}");
    let curved = text.replacen(region, "rank : 1 + M * M - M * M, i * 128", 1);
    let plan: Plan = curved.parse().expect("a plan");
    valid::verify(&plan).expect("each value is right");
    let many = curved.replace("M = 300 runtime <= 300", "M = 3000 runtime <= 3000");
    let failure = valid::verify(&many.parse::<Plan>().expect("a plan")).expect_err("too many");
    let said = failure.to_string();
    assert!(said.contains("`1 + M * M - M * M` is not linear in M"), "{said}");
    assert!(said.contains(&valid::MAX_VALUES.to_string()), "{said}");
    assert!(matches!(failure.violations[..], [Violation::RunTime { .. }]));
}

#[test]
fn tasks_that_depend_on_the_dimension_are_told_apart_or_refused() {
    let text = hole().to_string();
    // Two forms: the loop is there, or is not. Without it nothing is written.
    let loops = text.replacen("  for j in 1", "  for j in min(1, M / 2)", 1);
    assert_ne!(loops, text);
    assert!(valid::verify_value(&loops.parse::<Plan>().expect("a plan")).is_ok());
    let failure = valid::verify(&loops.parse::<Plan>().expect("a plan")).expect_err("M = 1");
    assert_eq!(failure.at.map(|at| at.value), Some(1));
    // As many forms as values.
    let words = text.replacen(">= 1 by storer", ">= M by storer", 1);
    assert_ne!(words, text);
    let failure = valid::verify(&words.parse::<Plan>().expect("a plan")).expect_err("M of them");
    assert!(failure.to_string().contains("not proved for every value"), "{failure}");
}
