//! Pipelines beyond one chain of bf16, for tests on GPUs: f16, f32 results, gates, transposed operands, several results.

/// A pipeline and its symbols.
pub type Wide = (&'static str, &'static [(&'static str, u64)]);

pub const PIPELINES: &[Wide] = &[
    (
        "fn f16(a: f16[M, K] @ shard(0), b: f16[K, N] @ shard(1), c: f16[N] @ shard(0)) {
             gather(a) -> gemm(b) -> bias(c) -> gelu
         }",
        &[("M", 1500), ("K", 520), ("N", 1032)],
    ),
    (
        "fn f16_sums(a: f16[M, K] @ shard(1), b: f16[K, N] @ shard(0)) { gemm(a, b) -> reduce_scatter }",
        &[("M", 1024), ("K", 1056), ("N", 515)],
    ),
    (
        "fn swiglu(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2)) { gather(x) -> gemm(w) -> swiglu }",
        &[("M", 1000), ("K", 512), ("F", 1536)],
    ),
    (
        "fn swiglu_ragged(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), y: bf16[M, F] @ shard(1)) {
             gather(x) -> gemm(w) -> swiglu -> mul(y)
         }",
        &[("M", 777), ("K", 136), ("F", 1001)],
    ),
    (
        "fn swiglu_mlp(x: bf16[M, K] @ shard(0), w1: bf16[K, 2, F] @ shard(2), w2: bf16[F, K] @ shard(0)) {
             gather(x) -> gemm(w1) -> swiglu -> gemm(w2) -> reduce_scatter
         }",
        &[("M", 1500), ("K", 512), ("F", 2048)],
    ),
    (
        "fn transposed(x: bf16[M, K] @ shard(0), w1: bf16[F, K] @ shard(0), w2: bf16[K, F] @ shard(1)) {
             gather(x) -> gemm(w1.t) -> gelu -> gemm(w2.t) -> reduce_scatter
         }",
        &[("M", 1500), ("K", 520), ("F", 2048)],
    ),
    (
        "fn mixed(x: bf16[M, K] @ shard(0), w1: bf16[F, K] @ shard(0), w2: bf16[F, K] @ shard(0)) {
             gather(x) -> gemm(w1.t) -> silu -> gemm(w2) -> all_reduce
         }",
        &[("M", 1001), ("K", 264), ("F", 1000)],
    ),
    (
        "fn weight_gradient(x: bf16[M, K] @ shard(0), dy: bf16[M, N] @ shard(0)) {
             gemm(x.t, dy) -> cast(f32) -> reduce_scatter
         }",
        &[("M", 4000), ("K", 1032), ("N", 520)],
    ),
    (
        "fn ragged_gradient(x: f16[M, K] @ shard(0), dy: f16[M, N] @ shard(0)) { gemm(x.t, dy) -> all_reduce }",
        &[("M", 1111), ("K", 333), ("N", 301)],
    ),
    (
        "fn f32_result(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) { gather(a) -> gemm(b) -> cast(f32) }",
        &[("M", 1000), ("K", 264), ("N", 2056)],
    ),
    (
        "fn f32_odd(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) { gather(a) -> gemm(b) -> cast(f32) }",
        &[("M", 300), ("K", 70), ("N", 1003)],
    ),
    (
        "fn saved(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0)) {
             let whole = gather(x);
             let h = whole -> gemm(w1) -> gelu;
             (h -> gemm(w2) -> reduce_scatter, whole, h)
         }",
        &[("M", 1500), ("K", 512), ("F", 2048)],
    ),
    (
        "fn saved_odd(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0)) {
             let h = gather(x) -> gemm(w1) -> gelu;
             (h -> gemm(w2) -> all_reduce, h)
         }",
        &[("M", 700), ("K", 264), ("F", 1001)],
    ),
    (
        "fn pre_activation(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), c: bf16[F] @ shard(0), w2: bf16[F, K] @ shard(0)) {
             let h = gather(x) -> gemm(w1) -> bias(c);
             let g = h -> gelu;
             (g -> gemm(w2) -> reduce_scatter, g, h)
         }",
        &[("M", 1500), ("K", 512), ("F", 2048)],
    ),
    (
        "fn pre_activation_odd(x: f16[M, K] @ shard(0), w1: f16[F, K] @ shard(0)) {
             let h = gather(x) -> gemm(w1.t) -> cast(f32);
             (h -> silu, h)
         }",
        &[("M", 701), ("K", 264), ("F", 1001)],
    ),
    (
        "fn gates(x: bf16[M, K] @ shard(0), w1: bf16[K, 2, F] @ shard(2), w2: bf16[F, K] @ shard(0)) {
             let h = gather(x) -> gemm(w1);
             (h -> swiglu -> gemm(w2) -> all_reduce, h)
         }",
        &[("M", 1500), ("K", 512), ("F", 2048)],
    ),
    (
        "fn gates_odd(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), y: bf16[M, F] @ shard(1)) {
             let h = gather(x) -> gemm(w);
             let g = h -> swiglu;
             (g -> mul(y), h, g)
         }",
        &[("M", 777), ("K", 136), ("F", 1001)],
    ),
    (
        "fn residual(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0), c: bf16[K]) {
             gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter -> bias(c) -> add(x)
         }",
        &[("M", 1500), ("K", 512), ("F", 2048)],
    ),
    (
        "fn residual_odd(a: f16[M, K] @ shard(1), b: f16[K, N] @ shard(0), c: f16[N], y: f16[M, N] @ shard(0)) {
             gemm(a, b) -> cast(f32) -> reduce_scatter -> bias(c) -> mul(y) -> silu -> cast(f16)
         }",
        &[("M", 701), ("K", 1056), ("N", 515)],
    ),
    (
        "fn residual_everywhere(x: bf16[M, K], w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0)) {
             gemm(x, w1) -> silu -> gemm(w2) -> all_reduce -> add(x)
         }",
        &[("M", 1000), ("K", 520), ("F", 1024)],
    ),
    (
        "fn residual_wider(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0), y: bf16[M, N]) {
             gemm(a, b) -> all_reduce -> scale(0.5) -> add(y) -> cast(f32)
         }",
        &[("M", 60), ("K", 2048), ("N", 1028)],
    ),
    (
        "fn residual_alone(x: bf16[M, N] @ partial, y: bf16[M, N] @ shard(0)) { reduce_scatter(x) -> add(y) -> relu }",
        &[("M", 1500), ("N", 1032)],
    ),
    (
        "fn f32_alone(x: f32[M, N] @ partial) { all_reduce(x) }",
        &[("M", 701), ("N", 515)],
    ),
    (
        "fn qk(x: bf16[M, K] @ shard(0), wq: bf16[K, N] @ shard(1), wk: bf16[K, G] @ shard(1)) {
             let whole = gather(x);
             (whole -> gemm(wq), whole -> gemm(wk) -> scale(0.125))
         }",
        &[("M", 1500), ("K", 520), ("N", 2048), ("G", 300)],
    ),
    (
        "fn column_backward(dy: bf16[M, N] @ shard(1), w: bf16[K, N] @ shard(1), x: bf16[M, K]) {
             (gemm(dy, w.t) -> reduce_scatter, gemm(x.t, dy))
         }",
        &[("M", 1500), ("K", 520), ("N", 2056)],
    ),
    (
        "fn row_backward(dy: bf16[M, N] @ shard(0), w: bf16[K, N] @ shard(0)) {
             let whole = gather(dy);
             (whole -> gemm(w.t), whole)
         }",
        &[("M", 1500), ("K", 2056), ("N", 520)],
    ),
];
