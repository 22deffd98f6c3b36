//! Plans of a production size, beside the time that their proof takes.

use mk_codegen::{
    equivalence::{self, Options},
    passes::lower,
    plan::Plan,
    settings::Config,
    valid,
};
use mk_syntax::Program;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// A pipeline, and the shapes of its tensors.
type Large = (&'static str, &'static [(&'static str, &'static [u64])]);

/// 4,096 tiles on each of 8 ranks.
const LARGE: &[Large] = &[
    ("gather(a) -> gemm(b)", &[("a", &[8192, 8192]), ("b", &[8192, 131072])]),
    ("gemm(a, b) -> reduce_scatter", &[("a", &[8192, 8192]), ("b", &[8192, 16384])]),
    ("gemm(a, b) -> all_reduce", &[("a", &[8192, 8192]), ("b", &[8192, 16384])]),
    (
        "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter",
        &[("x", &[8192, 8192]), ("w1", &[8192, 65536]), ("w2", &[65536, 8192])],
    ),
];

#[test]
fn production_sizes_are_evaluated_beside_their_proof() {
    for (source, shapes) in LARGE {
        let program = Program::parse(source).expect("parses");
        let shapes = shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
        let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
        let begin = Instant::now();
        let config = Config { ranks: 8, ..Config::default() };
        let plan = lower(&program, &bound, &config).expect("is lowered");
        let lowered = begin.elapsed();
        let begin = Instant::now();
        let proof = valid::verify(&plan).expect("verifies");
        let proved = begin.elapsed();
        let begin = Instant::now();
        let options = Options { period: proof.period, ..Options::default() };
        let found = equivalence::evaluate(&plan, &program, &bound, &options).expect("is right");
        let evaluated = begin.elapsed();
        println!(
            "{source}: {} tasks, lowered in {lowered:.0?}, proved in {proved:.0?}, evaluated in {evaluated:.0?}, \
             {} elements for {}",
            proof.tasks, found.elements, found.of
        );
        assert!(evaluated.as_secs() < 5, "{evaluated:?}");
    }
}

/// Queries that are one place further cut a sequence at every element, and make no element of what it should be of.
#[test]
fn wrong_plans_are_refused_in_the_time_of_right_ones() {
    let source = "fn f(q: bf16[1, S, 2, 64] @ shard(1), k: bf16[1, S, 1, 64] @ shard(1), v: bf16[1, S, 1, 64] @ shard(1)) {
        ring(k, v) -> attention(q, causal)
    }";
    for (rows, says) in [(768, "something else"), (6144, "too many"), (49152, "too many")] {
        let program = Program::parse(source).expect("parses");
        let bound = program.bind(&BTreeMap::from([("S".to_string(), rows)]), &BTreeMap::new());
        let (bound, config) = (bound.expect("binds"), Config { ranks: 4, ..Config::default() });
        let plan = lower(&program, &bound, &config).expect("is lowered");
        let mut wrong = plan.clone();
        for (_, f) in wrong.families.iter_mut() {
            f.positions.iter_mut().for_each(|at| at.q = at.q.clone() + 1);
        }
        let took = |plan: &Plan| {
            let begin = Instant::now();
            let found = equivalence::evaluate(plan, &program, &bound, &Options::default());
            (found.map(|f| f.elements).map_err(|e| e.to_string()), begin.elapsed())
        };
        let (right, wrong) = (took(&plan), took(&wrong));
        println!("{rows} rows: {right:?}, {wrong:?}");
        right.0.expect("is right");
        let refused = wrong.0.expect_err("is wrong");
        assert!(refused.contains(says), "{rows}: {refused}");
        // A second, on a machine that others use, too.
        assert!(wrong.1 < right.1 + Duration::from_secs(5), "{rows}: {:?}, {:?}", right.1, wrong.1);
    }
}
