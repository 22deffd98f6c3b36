//! One small pipeline of each kind that lowering tells apart, with symbols for its sizes.

use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

/// Name and text. Sizes are among [`SIZES`].
#[allow(dead_code)]
pub const KINDS: &[(&str, &str)] = &[
    ("gemm", "fn f(a: bf16[M, K], b: bf16[K, N]) { gemm(a, b) }"),
    ("gemm_gelu", "fn f(a: bf16[M, K], b: bf16[K, N], c: bf16[N]) { gemm(a, b) -> bias(c) -> gelu }"),
    ("gemm_f32", "fn f(a: bf16[M, K], b: bf16[K, N]) { gemm(a, b) -> cast(f32) }"),
    ("gemm_swiglu", "fn f(a: bf16[M, K], b: bf16[K, 2, N]) { gemm(a, b) -> swiglu }"),
    ("chain", "fn f(a: bf16[M, K], b: bf16[K, N], v: bf16[N, K]) { gemm(a, b) -> silu -> gemm(v) -> relu }"),
    ("weights", "fn f(x: bf16[M, K] @ shard(0), dy: bf16[M, N] @ shard(0)) { gemm(x.t, dy) -> all_reduce }"),
    ("weights_scatter", "fn f(x: bf16[M, K] @ shard(0), dy: bf16[M, N] @ shard(0)) { gemm(x.t, dy) -> reduce_scatter }"),
    ("gather", "fn f(a: bf16[M, K] @ shard(0)) { gather(a) }"),
    ("gather_gemm", "fn f(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) { gather(a) -> gemm(b) }"),
    ("gemm_scatter", "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> reduce_scatter }"),
    ("gemm_reduce", "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> all_reduce }"),
    ("scatter_f32", "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> cast(f32) -> reduce_scatter }"),
    ("scatter", "fn f(x: bf16[M, K] @ partial) { reduce_scatter(x) }"),
    ("reduce", "fn f(x: bf16[M, K] @ partial) { all_reduce(x) }"),
    (
        "mlp",
        "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1), v: bf16[N, K] @ shard(0)) {
            let h = gather(x) -> gemm(w);
            (h -> gelu -> gemm(v) -> reduce_scatter, h)
        }",
    ),
    (
        "gated_mlp",
        "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, 2, N] @ shard(2), v: bf16[N, K] @ shard(0)) {
            gather(x) -> gemm(w) -> swiglu -> gemm(v) -> reduce_scatter -> add(x)
        }",
    ),
    (
        "mlp_reduce",
        "fn f(x: bf16[M, K] @ shard(0), w: bf16[N, K] @ shard(0), c: bf16[N] @ shard(0), v: bf16[K, N] @ shard(1)) {
            gather(x) -> gemm(w.t) -> bias(c) -> silu -> gemm(v.t) -> all_reduce
        }",
    ),
    (
        "swiglu_grad",
        "fn f(dy: bf16[M, K] @ shard(0), w: bf16[N, K] @ shard(0), h: bf16[M, 2, N] @ shard(2)) {
            gather(dy) -> gemm(w.t) -> swiglu_grad(h)
        }",
    ),
    ("swiglu_rows", "fn f(h: bf16[M, 2, N] @ shard(2)) { h -> swiglu }"),
    (
        "swiglu_grad_rows",
        "fn f(d: bf16[M, N] @ shard(1), y: bf16[M, N] @ shard(1), h: bf16[M, 2, N] @ shard(2)) { d -> mul(y) -> swiglu_grad(h) }",
    ),
    ("dyn_gather", "fn f<M: dyn <= 300>(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) { gather(x) -> gemm(w) }"),
    ("dyn_reduce", "fn f<M: dyn <= 300>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> all_reduce }"),
    (
        "dyn_rows",
        "fn f<M: dyn <= 300>(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1), v: bf16[N, K] @ shard(0)) {
            gather(x) -> gemm(w) -> gemm(v) -> reduce_scatter
        }",
    ),
    ("attention", "fn f(q: bf16[B, S, H, D] @ shard(0), k: bf16[B, S, H, D] @ shard(0), v: bf16[B, S, H, D] @ shard(0)) { attention(q, k, v, causal) }"),
    (
        "ring",
        "fn f(q: bf16[B, S, H, D] @ shard(1), k: bf16[B, S, H, D] @ shard(1), v: bf16[B, S, H, D] @ shard(1)) {
            let o = ring(k, v) -> attention(q);
            (o, o -> lse)
        }",
    ),
    (
        "ring_zigzag",
        "fn f(q: bf16[B, S, H, D] @ zigzag(1), k: bf16[B, S, H, D] @ zigzag(1), v: bf16[B, S, H, D] @ zigzag(1)) {
            ring(k, v) -> attention(q, causal)
        }",
    ),
    (
        "attention_stats",
        "fn f(o: bf16[B, S, H, D] @ shard(1), do: bf16[B, S, H, D] @ shard(1), logs: f32[B, H, S] @ shard(2)) {
            o -> attention_stats(do, logs)
        }",
    ),
    (
        "attention_dsinks",
        "fn f(stats: f32[B, H, S, 4] @ shard(2), s: f32[H]) { attention_dsinks(stats, s) }",
    ),
    (
        "attention_dq",
        "fn f(q: bf16[B, S, H, D] @ shard(1), do: bf16[B, S, H, D] @ shard(1), stats: f32[B, H, S, 4] @ shard(2),
            k: bf16[B, S, H, D] @ shard(1), v: bf16[B, S, H, D] @ shard(1)) {
            ring(k, v) -> attention_dq(q, do, stats, causal)
        }",
    ),
    (
        "attention_dk",
        "fn f(q: bf16[B, S, H, D] @ zigzag(1), do: bf16[B, S, H, D] @ zigzag(1), stats: f32[B, H, S, 4] @ zigzag(2),
            k: bf16[B, S, H, D] @ zigzag(1), v: bf16[B, S, H, D] @ zigzag(1)) {
            let dk = ring(q, do, stats) -> attention_dk(k, v, causal);
            (dk, dk -> attention_dv)
        }",
    ),
    ("ragged", "fn f(x: bf16[R, K], counts: i32[E], w: bf16[E, K, N]) { ragged(x, counts) -> grouped_gemm(w) }"),
    (
        "ragged_ranks",
        "fn f(x: bf16[R, K] @ shard(0), counts: i32[E] @ shard(0), w: bf16[E, K, 2, N] @ shard(0), v: bf16[E, N, K] @ shard(0)) {
            ragged(x, counts) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v)
        }",
    ),
    (
        "wgrad",
        "fn f(x: bf16[R, K] @ shard(0), counts: i32[E] @ shard(0), y: bf16[R, N] @ shard(0)) {
            ragged(x, counts) -> grouped_wgrad(y)
        }",
    ),
    (
        "dispatch",
        "fn f(x: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), w: bf16[E, K, N] @ shard(0)) {
            dispatch(x, ids, capacity = R) -> grouped_gemm(w)
        }",
    ),
    (
        "combine",
        "fn f(x: bf16[R, K] @ shard(0), ids: i64[T, J] @ shard(0), gate: f32[T, J] @ shard(0), w: bf16[E, K, N] @ shard(0)) {
            ragged(x, ids) -> grouped_gemm(w) -> combine(gate)
        }",
    ),
    (
        "dispatch_weighted",
        "fn f(x: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0), w: bf16[E, N, K] @ shard(0)) {
            let rows = dispatch(x, ids, gate, capacity = R);
            (rows -> grouped_gemm(w.t), rows)
        }",
    ),
    (
        "combine_grad",
        "fn f(x: bf16[R, K] @ shard(0), ids: i64[T, J] @ shard(0), y: bf16[T, N] @ shard(0), w: bf16[E, K, N] @ shard(0)) {
            ragged(x, ids) -> grouped_gemm(w) -> combine_grad(y)
        }",
    ),
    (
        "weigh",
        "fn f(d: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0), w: bf16[E, N, K] @ shard(0),
            h: bf16[R, 2, N] @ shard(0)) {
            let u = dispatch(d, ids, capacity = R) -> grouped_gemm(w.t);
            let a = h -> swiglu;
            (u -> weigh(gate) -> swiglu_grad(h), a -> ragged(ids) -> weigh(gate), u -> weigh_grad(a))
        }",
    ),
    (
        "moe",
        "fn f(x: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0),
            w: bf16[E, K, 2, N] @ shard(0), v: bf16[E, N, K] @ shard(0)) {
            dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(gate)
        }",
    ),
    (
        "moe_shared",
        "fn f(x: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0),
            w: bf16[E, K, 2, N] @ shard(0), v: bf16[E, N, K] @ shard(0), s: bf16[T, K] @ shard(0)) {
            dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(gate) -> add(s)
        }",
    ),
    (
        "moe_drop",
        "fn f(x: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0),
            w: bf16[E, K, 2, N] @ shard(0), v: bf16[E, N, K] @ shard(0)) {
            dispatch(x, ids, capacity = R, drop) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(gate)
        }",
    ),
];

/// Sizes with which each has a plan on 1, 2 and 4 ranks.
#[allow(dead_code)]
pub const SIZES: &[(&str, u64)] = &[
    ("M", 256),
    ("K", 64),
    ("N", 128),
    ("B", 4),
    ("S", 128),
    ("H", 2),
    ("D", 64),
    ("R", 1024),
    ("E", 8),
    ("T", 24),
    ("J", 2),
];

/// A kind with these sizes, and those of [`SIZES`] for others; `None` where they do not fit it.
#[allow(dead_code)]
pub fn kind(text: &str, sizes: &[(&str, u64)]) -> Option<(Program, Bound)> {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let all = SIZES.iter().chain(sizes).filter(|(name, _)| program.symbol(name).is_some());
    let dims: BTreeMap<String, u64> = all.map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).ok()?;
    Some((program, bound))
}
