//! Pipelines that several tests compile.

mod stacks;
mod variants;

use mk_codegen::{
    passes::{LowerError, lower},
    plan::Plan,
    settings::Config,
};
use mk_syntax::Program;
#[allow(unused_imports)]
pub use stacks::experts;
use std::collections::BTreeMap;
#[allow(unused_imports)]
pub use variants::{VARIANTS, Variant};

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
    (
        "swiglu_mlp",
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[K, 2, F] @ shard(2), w2: bf16[F, K] @ shard(0)) {
             gather(x) -> gemm(w1) -> swiglu -> gemm(w2) -> reduce_scatter
         }",
        4,
        &[("x", &[1024, 512]), ("w1", &[512, 2, 1024]), ("w2", &[1024, 512])],
    ),
    (
        "swiglu_ragged",
        "fn f(x: f16[M, K] @ shard(0), w: f16[K, 2, F] @ shard(2), y: f16[M, F] @ shard(1)) {
             gather(x) -> gemm(w) -> swiglu -> mul(y)
         }",
        3,
        &[("x", &[500, 72]), ("w", &[72, 2, 1001]), ("y", &[500, 1001])],
    ),
    (
        "weights_transposed",
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[F, K] @ shard(0), w2: bf16[F, N] @ shard(0)) {
             gather(x) -> gemm(w1.t) -> gelu -> gemm(w2) -> reduce_scatter
         }",
        4,
        &[("x", &[1024, 512]), ("w1", &[2048, 512]), ("w2", &[2048, 512])],
    ),
    (
        "both_transposed",
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[F, K] @ shard(0), w2: bf16[K, F] @ shard(1)) {
             gather(x) -> gemm(w1.t) -> gelu -> gemm(w2.t) -> reduce_scatter
         }",
        2,
        &[("x", &[500, 264]), ("w1", &[1032, 264]), ("w2", &[264, 1032])],
    ),
    (
        "weight_gradient",
        "fn f(x: bf16[M, K] @ shard(0), dy: bf16[M, N] @ shard(0)) { gemm(x.t, dy) -> cast(f32) -> all_reduce }",
        2,
        &[("x", &[1000, 264]), ("dy", &[1000, 328])],
    ),
    (
        "weight_gradient_ragged",
        "fn f(x: f16[M, K] @ shard(0), dy: f16[M, N] @ shard(0)) { gemm(x.t, dy) -> reduce_scatter }",
        3,
        &[("x", &[1000, 333]), ("dy", &[1000, 301])],
    ),
    (
        "saved_for_backward",
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0)) {
             let whole = gather(x);
             let h = whole -> gemm(w1) -> gelu;
             (h -> gemm(w2) -> reduce_scatter, whole, h)
         }",
        4,
        &[("x", &[1000, 512]), ("w1", &[512, 2048]), ("w2", &[2048, 512])],
    ),
    (
        "pre_activation",
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), c: bf16[F] @ shard(0), w2: bf16[F, K] @ shard(0)) {
             let h = gather(x) -> gemm(w1) -> bias(c);
             let g = h -> gelu;
             (g -> gemm(w2) -> reduce_scatter, g, h)
         }",
        4,
        &[("x", &[1000, 512]), ("w1", &[512, 2048]), ("w2", &[2048, 512])],
    ),
    (
        "gates_and_ups",
        "fn f<M: dyn <= 800>(x: f16[M, K] @ shard(0), w: f16[K, 2, F] @ shard(2), y: f16[M, F] @ shard(1)) {
             let h = gather(x) -> gemm(w);
             (h -> swiglu -> mul(y), h)
         }",
        3,
        &[("w", &[136, 2, 1001])],
    ),
    (
        "residual_block",
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0), c: bf16[K]) {
             gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter -> bias(c) -> add(x)
         }",
        4,
        &[("x", &[1000, 512]), ("w1", &[512, 2048])],
    ),
    (
        "residual_everywhere",
        "fn f<M: dyn <= 800>(a: f16[M, K] @ shard(1), b: f16[K, N] @ shard(0), y: f16[M, N]) {
             gemm(a, b) -> all_reduce -> scale(0.5) -> silu -> mul(y) -> cast(f32)
         }",
        3,
        &[("b", &[136, 1001])],
    ),
    (
        "residual_alone",
        "fn f(x: bf16[M, N] @ partial, y: bf16[M, N] @ shard(0)) { reduce_scatter(x) -> add(y) -> relu }",
        4,
        &[("x", &[1000, 512])],
    ),
    (
        "queries_and_keys",
        "fn f(x: bf16[M, K] @ shard(0), wq: bf16[K, N] @ shard(1), wk: bf16[K, G] @ shard(1)) {
             let whole = gather(x);
             (whole -> gemm(wq), whole -> gemm(wk) -> scale(0.125))
         }",
        4,
        &[("x", &[1024, 512]), ("wq", &[512, 2048]), ("wk", &[512, 300])],
    ),
    (
        "dyn_rows",
        "fn f<M: dyn <= 2048>(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), y: bf16[M, F] @ shard(1),
                              w2: bf16[F, K] @ shard(0)) {
             gather(x) -> gemm(w1) -> mul(y) -> gemm(w2) -> reduce_scatter
         }",
        4,
        &[("w1", &[512, 2048]), ("w2", &[2048, 512])],
    ),
    (
        "row_backward",
        "fn f(dy: bf16[M, N] @ shard(0), w: bf16[F, N] @ shard(0), h: bf16[M, F] @ shard(1), v: bf16[K, F] @ shard(1)) {
             let whole = gather(dy);
             let d = whole -> gemm(w.t) -> gelu_grad(h);
             (d -> gemm(v.t) -> reduce_scatter, whole, d)
         }",
        4,
        &[("dy", &[1000, 512]), ("w", &[2048, 512]), ("v", &[512, 2048])],
    ),
    (
        "slopes",
        "gemm(a, b) -> silu_grad(x) -> relu_grad(y) -> gelu_tanh_grad(z) -> gelu_tanh",
        1,
        &[("a", &[300, 72]), ("b", &[72, 328])],
    ),
    (
        "slopes_of_sums",
        "fn f(a: f16[M, K] @ shard(1), b: f16[K, N] @ shard(0), x: f16[M, N], y: f16[M, N]) {
             gemm(a, b) -> all_reduce -> silu_grad(x) -> gelu_grad(y)
         }",
        3,
        &[("a", &[200, 136]), ("b", &[136, 331])],
    ),
    (
        "dyn_sums",
        "fn f<M: dyn <= 1000>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> all_reduce }",
        3,
        &[("w", &[264, 328])],
    ),
    (
        "dyn_depth",
        "fn f<M: dyn <= 800>(x: bf16[M, K], dy: bf16[M, N] @ shard(1), w: bf16[K, N] @ shard(1)) {
             let dw = gemm(x.t, dy);
             let dx = gemm(dy, w.t) -> reduce_scatter;
             (dw, dx)
         }",
        2,
        &[("w", &[288, 384])],
    ),
    // Tiles hold rows of several ranks.
    ("gather_few_rows", "gather(a) -> gemm(b)", 4, &[("a", &[128, 512]), ("b", &[512, 2048])]),
    ("gather_36_rows", "gather(a) -> gemm(b) -> gelu", 4, &[("a", &[144, 192]), ("b", &[192, 520])]),
    (
        "swiglu_grad",
        "fn f(dy: bf16[M, K] @ replicate, w: bf16[F, K] @ shard(0), h: bf16[M, 2, F] @ shard(2)) {
            gemm(dy, w.t) -> swiglu_grad(h)
        }",
        2,
        &[("dy", &[520, 192]), ("w", &[1024, 192]), ("h", &[520, 2, 1024])],
    ),
    (
        "swiglu_grad_ragged",
        "fn f(dy: bf16[M, K] @ replicate, w: bf16[F, K] @ shard(0), h: bf16[M, 2, F] @ shard(2)) {
            gemm(dy, w.t) -> scale(0.5) -> swiglu_grad(h)
        }",
        3,
        &[("dy", &[77, 72]), ("w", &[1000, 72]), ("h", &[77, 2, 1000])],
    ),
    // Gates and ups without a GEMM before them: of a kernel that keeps only these two, and the gradient of what it left out.
    ("swiglu_rows", "fn f(h: bf16[M, 2, F] @ shard(2)) { h -> swiglu -> scale(0.5) }", 3, &[("h", &[77, 2, 1000])]),
    (
        "swiglu_grad_rows",
        "fn f(d: f16[M, F] @ shard(1), y: f16[M, F] @ shard(1), h: f16[M, 2, F] @ shard(2), e: f16[M, 2, F] @ shard(2)) {
            d -> mul(y) -> swiglu_grad(h) -> add(e)
        }",
        2,
        &[("h", &[300, 2, 769])],
    ),
    // Each rank's part of a sum.
    ("partial_rows", "fn f(a: bf16[M, K] @ partial, b: bf16[M, K] @ partial) { a -> add(b) }", 3, &[("a", &[130, 72])]),
    // Eight bits: results, rounded on the way, sums, copies.
    (
        "cast_e4m3",
        "gather(x) -> gemm(w) -> bias(c) -> gelu -> cast(e4m3)",
        4,
        &[("x", &[1024, 512]), ("w", &[512, 2048]), ("c", &[2048])],
    ),
    (
        "cast_e5m2_ragged",
        "fn f(x: f16[M, K] @ shard(0), w: f16[K, 2, F] @ shard(2)) {
             gather(x) -> gemm(w) -> swiglu -> cast(e4m3) -> cast(f32) -> scale(0.5) -> cast(e5m2)
         }",
        3,
        &[("x", &[500, 72]), ("w", &[72, 2, 1001])],
    ),
    (
        "sum_to_e4m3",
        "gemm(a, b) -> reduce_scatter -> cast(e4m3)",
        4,
        &[("a", &[2048, 1024]), ("b", &[1024, 512])],
    ),
    (
        "sum_to_e5m2_ragged",
        "gemm(a, b) -> cast(f32) -> all_reduce -> relu -> cast(e5m2)",
        3,
        &[("a", &[200, 136]), ("b", &[136, 331])],
    ),
    (
        "gather_e4m3",
        "fn f(x: e4m3[M, K] @ shard(0)) { gather(x) }",
        4,
        &[("x", &[1000, 256])],
    ),
    (
        "multiply_e4m3",
        "fn f(x: e4m3[M, K], w: e4m3[N, K]) { gemm(x, w.t) }",
        2,
        &[("x", &[500, 400]), ("w", &[712, 400])],
    ),
    (
        "multiply_e5m2_scaled",
        "fn f(x: e5m2[M, K] scaled(1, K) @ shard(0), w: e4m3[N, K] scaled(1, K), c: bf16[N]) { gemm(x, w.t) -> bias(c) -> gelu }",
        2,
        &[("x", &[1000, 384]), ("w", &[520, 384])],
    ),
    (
        "gather_multiply_e4m3",
        "fn f(x: e4m3[M, K] @ shard(0), w: e4m3[N, K] scaled(1, K) @ shard(0)) { gather(x) -> gemm(w.t) -> cast(f32) }",
        4,
        &[("x", &[2048, 512]), ("w", &[1024, 512])],
    ),
    (
        "gather_scaled",
        "fn f(x: e4m3[M, K] scaled(1, K) @ shard(0), w: e4m3[N, K] scaled(1, K) @ shard(0)) { gather(x) -> gemm(w.t) }",
        4,
        &[("x", &[2048, 512]), ("w", &[1024, 512])],
    ),
    (
        "gather_scaled_ragged",
        "fn f(x: e5m2[M, K] scaled(1, K) @ shard(0), w: e4m3[N, K] @ shard(0), c: bf16[N], y: bf16[M, N] @ shard(1)) {
             gather(x) -> gemm(w.t) -> bias(c) -> add(y)
         }",
        3,
        &[("x", &[700, 408]), ("w", &[331, 408])],
    ),
    (
        "gather_scaled_few",
        "fn f(x: e4m3[M, K] scaled(1, K) @ shard(0), w: e4m3[N, K] scaled(1, K) @ shard(0)) { gather(x) -> gemm(w.t) }",
        4,
        &[("x", &[96, 512]), ("w", &[1024, 512])],
    ),
    (
        "multiply_blocks",
        "fn f(x: e4m3[M, K] scaled(1, 128), w: e5m2[N, K] scaled(128, 128), c: bf16[N]) { gemm(x, w.t) -> bias(c) -> gelu }",
        2,
        &[("x", &[500, 400]), ("w", &[331, 400])],
    ),
    (
        "gather_blocks",
        "fn f(x: e4m3[M, K] scaled(1, 128) @ shard(0), w: e4m3[N, K] scaled(128, 128) @ shard(0)) { gather(x) -> gemm(w.t) }",
        4,
        &[("x", &[2048, 512]), ("w", &[3072, 512])],
    ),
    (
        "gather_blocks_few",
        "fn f(x: e4m3[M, K] scaled(1, 128) @ shard(0), w: e4m3[N, K] scaled(1, K) @ shard(0)) { gather(x) -> gemm(w.t) }",
        4,
        &[("x", &[96, 400]), ("w", &[1024, 400])],
    ),
    (
        "sum_blocks",
        "fn f(x: e4m3[M, K] scaled(1, K) @ shard(1), w: e4m3[N, K] scaled(128, 128) @ shard(1)) { gemm(x, w.t) -> reduce_scatter }",
        2,
        &[("x", &[512, 3072]), ("w", &[384, 3072])],
    ),
    (
        "sum_e4m3_scaled",
        "fn f(x: e4m3[M, K] scaled(1, K) @ shard(1), w: e4m3[N, K] scaled(1, K) @ shard(1)) { gemm(x, w.t) -> reduce_scatter }",
        2,
        &[("x", &[512, 768]), ("w", &[384, 768])],
    ),
    // Operations on rows.
    (
        "norm_gather_gemm",
        "gather(x) -> rmsnorm(g) -> gemm(w)",
        4,
        &[("x", &[1000, 512]), ("g", &[512]), ("w", &[512, 2048])],
    ),
    (
        "norm_gemms",
        "fn f<M: dyn <= 800>(x: f16[M, K], g: f16[K], w: f16[K, N], v: f16[K, F]) {
             let n = rmsnorm(x, g, eps = 1e-5);
             (n -> gemm(w) -> gelu, n -> gemm(v), n)
         }",
        1,
        &[("w", &[264, 328]), ("v", &[264, 128])],
    ),
    (
        "norm_grad",
        "fn f(dy: bf16[M, K] @ shard(0), x: bf16[M, K] @ shard(0), g: bf16[K], ones: bf16[M, C] @ shard(0)) {
             let d = rmsnorm_grad(dy, x, g);
             let plain = x -> rmsnorm;
             let product = dy -> mul(plain);
             (d, gemm(product.t, ones) -> all_reduce)
         }",
        2,
        &[("x", &[1000, 264]), ("ones", &[1000, 8])],
    ),
    (
        "rope_gather_gemm",
        "fn f(x: bf16[M, K] @ shard(0), t: f32[M, 64] @ shard(0), w: bf16[K, N] @ shard(1)) {
             x -> rope(t) -> gather -> gemm(w)
         }",
        3,
        &[("x", &[500, 512]), ("w", &[512, 520])],
    ),
    (
        "rope_heads",
        "fn f(q: f16[M, N] @ shard(1), d: f16[M, N] @ shard(1), t: f32[M, 32]) {
             (q -> rope(t), rope_grad(d, t))
         }",
        2,
        &[("q", &[800, 768])],
    ),
    (
        "quantize_rows",
        "fn f(x: bf16[M, K] @ shard(0), y: f16[M, N] @ shard(1)) {
             (x -> quantize(e4m3, 1, 128), y -> quantize(e5m2, 1, 128))
         }",
        2,
        &[("x", &[1000, 1088]), ("y", &[1000, 3072])],
    ),
    (
        "dequantize_rows",
        "fn f(x: e4m3[M, K] scaled(1, 128) @ shard(0)) { x -> dequantize -> gather }",
        2,
        &[("x", &[1000, 1088])],
    ),
    (
        "quantize_gemm",
        "fn f(x: bf16[M, K], w: e4m3[N, K] scaled(128, 128), c: bf16[N]) {
             let q = x -> quantize(e4m3, 1, 128);
             (q -> gemm(w.t) -> bias(c), q)
         }",
        1,
        &[("x", &[1000, 1088]), ("w", &[1040, 1088])],
    ),
    (
        "gemm_quantized",
        "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1), c: bf16[N] @ shard(0)) {
             gather(x) -> gemm(w) -> bias(c) -> gelu -> quantize(e4m3, 1, 128)
         }",
        2,
        &[("x", &[1000, 256]), ("w", &[256, 3072])],
    ),
    (
        "swiglu_quantized",
        "fn f(x: f16[M, K] @ shard(0), w: f16[K, 2, F] @ shard(2)) {
             let h = gather(x) -> gemm(w);
             (h -> swiglu -> quantize(e5m2, 1, 128), h)
         }",
        2,
        &[("x", &[1000, 256]), ("w", &[256, 2, 3072])],
    ),
    (
        "quantize_gather_gemm",
        "fn f(x: bf16[M, K] @ shard(0), g: bf16[K], w: e4m3[N, K] scaled(128, 128) @ shard(0)) {
             gather(x) -> rmsnorm(g) -> quantize(e4m3, 1, 128) -> gemm(w.t)
         }",
        2,
        &[("x", &[1000, 1088]), ("w", &[3072, 1088])],
    ),
    (
        "gelu_gather_gemm",
        "gather(x) -> bias(c) -> gelu -> scale(0.5) -> gemm(w)",
        3,
        &[("x", &[500, 264]), ("c", &[264]), ("w", &[264, 520])],
    ),
    (
        "gelu_gather",
        "fn f(x: bf16[M, K] @ shard(0), y: bf16[M, K] @ shard(0)) { x -> add(y) -> rmsnorm -> gather }",
        3,
        &[("x", &[500, 264])],
    ),
    (
        "several_collectives",
        "fn f(x: bf16[M, K] @ shard(0), y: bf16[M, N] @ partial, z: bf16[M, N] @ partial) {
             (gather(x), all_reduce(y), reduce_scatter(z) -> relu)
         }",
        2,
        &[("x", &[500, 264]), ("y", &[500, 328])],
    ),
    ("gather_e5m2_odd", "fn f(x: e5m2[M, K] @ shard(0)) { gather(x) }", 2, &[("x", &[300, 33])]),
    // Sums of a caller's f32; of one row, which one rank adds up.
    (
        "reduce_scatter_f32",
        "fn f(x: f32[M, N] @ partial, y: bf16[M, N] @ shard(0)) { reduce_scatter(x) -> add(y) }",
        3,
        &[("x", &[500, 332])],
    ),
    ("all_reduce_f32", "fn f(x: f32[M, N] @ partial) { all_reduce(x) }", 4, &[("x", &[1, 64])]),
];

/// Lowers a case.
#[allow(dead_code)]
pub fn plan(source: &str, ranks: u32, shapes: &[(&str, &[u64])]) -> Result<Plan, LowerError> {
    let program = Program::parse(source).expect("parses");
    let shapes: BTreeMap<_, _> = shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
    let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
    lower(&program, &bound, &Config { ranks, ..Config::default() })
}
