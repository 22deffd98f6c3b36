//! Plans that are ordered, or would be, and compute something else than their pipelines: the evaluation refuses them by itself.

use mk_codegen::{
    equivalence::{self, Options},
    passes::compile,
    plan::Plan,
    settings::Config,
};
use mk_syntax::Program;
use std::{collections::BTreeMap, fs, path::Path};

const THERE: &str = "fn f(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), w1: bf16[E, H, I] @ shard(0)) -> bf16[1024, I] @ shard(0) {
    dispatch(x, ids, capacity = 1024) -> grouped_gemm(w1)
}";
const BACK: &str = "fn f(rows: bf16[1024, I] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w2: bf16[E, I, H] @ shard(0))
    -> bf16[T, H] @ shard(0) {
    ragged(rows, ids) -> grouped_gemm(w2) -> combine(gate)
}";
const DROPS: &str = "fn f(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids, capacity = 512, drop) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";

/// A plan of `tests/plans`, its pipeline, tokens, and what is said of it.
const WRONG: &[(&str, &str, u64, &str)] = &[
    ("broken/rule6_wanted_of_19_tokens", THERE, 40, "fills tab3 \"wanted\" with something else"),
    ("broken/rule6_lists_of_19_tokens", BACK, 40, "fills tab1 \"counts\" with something else"),
    ("broken/rule6_places_by_a_peers_list", BACK, 40, "fills tab3 \"places\" with something else"),
    ("values/flag_of_the_other_slot", DROPS, 280, "written by fam11 \"combine\""),
];

fn plan(name: &str) -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans").join(name);
    let path = path.with_extension("plan");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(text.starts_with("// rejected: "), "{name}");
    text.parse().unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn wrong_plans_are_refused_by_their_values() {
    for (name, source, tokens, says) in WRONG {
        let program = Program::parse(source).expect("parses");
        let dims = [("T", *tokens), ("H", 64), ("I", 64), ("E", 4), ("K", 2)];
        let dims = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let begin = std::time::Instant::now();
        let said = equivalence::evaluate(&plan(name), &program, &bound, &Options::default());
        let said = said.expect_err(name).to_string();
        println!("{name}, {:.1?}: {said}", begin.elapsed());
        assert!(said.contains(says), "{name}: {said}");
    }
}

/// Tokens name three experts each: two blocks of each of two ranks have room for them at four experts of twelve, and one of each has not.
#[test]
fn room_for_a_routing_is_arithmetic() {
    let source = |rows: u64| {
        format!("fn f(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w1: bf16[E, H, N] @ shard(0))
            -> bf16[T, N] @ shard(0) {{ dispatch(x, ids, capacity = {rows}) -> grouped_gemm(w1) -> combine(gate) }}")
    };
    let said = |rows: u64| {
        let program = Program::parse(&source(rows)).expect("parses");
        let dims = [("T", 16), ("H", 64), ("N", 64), ("E", 12), ("K", 3)];
        let dims = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let config = Config { ranks: 2, ..Config::default() };
        compile(&program, &bound, &config).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(said(512), Ok(()));
    let none = said(256).expect_err("no room");
    assert!(none.contains("go to their experts as 48 rows"), "{none}");
    assert!(none.contains("hold 32 at most"), "{none}");
}
