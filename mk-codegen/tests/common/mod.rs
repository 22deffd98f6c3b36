//! Pipelines that several tests compile.

use mk_codegen::{
    ir::Plan,
    passes::{Config, LowerError, lower},
};
use mk_syntax::Program;
use std::collections::BTreeMap;

/// Name, pipeline, ranks, global shapes.
pub type Case = (&'static str, &'static str, u32, &'static [(&'static str, &'static [u64])]);

/// The pipelines of this version, aligned and ragged.
#[allow(dead_code)]
pub const CASES: &[Case] = &[
    ("gather_gemm", "gather(a) -> gemm(b)", 4, &[("a", &[2048, 512]), ("b", &[512, 2048])]),
    (
        "gather_gemm_ragged",
        "gather(a) -> gemm(b) -> bias(c) -> gelu",
        3,
        &[("a", &[1000, 1033]), ("b", &[1033, 3001]), ("c", &[3001])],
    ),
    (
        "gemm_reduce_scatter",
        "gemm(a, b) -> reduce_scatter",
        4,
        &[("a", &[2048, 1024]), ("b", &[1024, 512])],
    ),
    ("gemm_all_reduce", "gemm(a, b) -> all_reduce", 3, &[("a", &[1000, 300]), ("b", &[300, 328])]),
    (
        "gather_gemm_reduce_scatter",
        "gather(a) -> gemm(b) -> reduce_scatter",
        4,
        &[("a", &[1024, 512]), ("b", &[512, 1024])],
    ),
    (
        "mlp",
        "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter",
        4,
        &[("x", &[1024, 512]), ("w1", &[512, 2048]), ("w2", &[2048, 512])],
    ),
    (
        "mlp_all_reduce",
        "gather(x) -> gemm(w1) -> bias(c) -> silu -> gemm(w2) -> all_reduce",
        2,
        &[("x", &[500, 256]), ("w1", &[256, 520]), ("c", &[520]), ("w2", &[520, 256])],
    ),
    (
        "two_biases",
        "gemm(x, w1) -> bias(c) -> cast(bf16) -> gemm(w2) -> bias(d)",
        1,
        &[
            ("x", &[256, 128]),
            ("w1", &[128, 256]),
            ("c", &[256]),
            ("w2", &[256, 512]),
            ("d", &[512]),
        ],
    ),
    ("reduce_scatter_alone", "reduce_scatter(x)", 4, &[("x", &[1000, 1001])]),
    ("all_reduce_alone", "all_reduce(x)", 4, &[("x", &[1024, 512])]),
    ("gather_alone", "gather(a)", 4, &[("a", &[1000, 256])]),
    ("gather_odd", "gather(a)", 2, &[("a", &[300, 33])]),
    ("gemm_alone", "gemm(a, b)", 1, &[("a", &[1000, 256]), ("b", &[256, 512])]),
    (
        "gemm_chain",
        "gemm(a, b) -> mul(y) -> silu -> scale(0.5) -> add(z)",
        2,
        &[("a", &[200, 72]), ("b", &[72, 264]), ("y", &[200, 264]), ("z", &[200, 264])],
    ),
    ("cast_f32", "gemm(a, b) -> cast(f32)", 1, &[("a", &[300, 64]), ("b", &[64, 328])]),
    (
        "sums_in_f32",
        "gemm(a, b) -> cast(f32) -> reduce_scatter",
        2,
        &[("a", &[300, 128]), ("b", &[128, 264])],
    ),
];

/// Lowers a case.
pub fn plan(source: &str, ranks: u32, shapes: &[(&str, &[u64])]) -> Result<Plan, LowerError> {
    let program = Program::parse(source).expect("parses");
    let shapes: BTreeMap<_, _> = shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
    let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
    lower(&program, &bound, &Config { ranks, ..Config::default() })
}
