//! Plans of a production size, beside the time that their proof takes.

use mk_codegen::{
    field::{self, Options},
    passes::lower,
    settings::Config,
    valid,
};
use mk_syntax::Program;
use std::{collections::BTreeMap, time::Instant};

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
        let found = field::evaluate(&plan, &program, &bound, &options).expect("is right");
        let evaluated = begin.elapsed();
        println!(
            "{source}: {} tasks, lowered in {lowered:.0?}, proved in {proved:.0?}, evaluated in {evaluated:.0?}, \
             {} elements for {}",
            proof.tasks, found.elements, found.of
        );
        assert!(evaluated.as_secs() < 5, "{evaluated:?}");
    }
}
