// A layer of experts over ranks: tokens go to the ranks of their experts, through two products with a gated activation between, and come back
// as weighted sums, in one kernel.
//
// T = 192, H = 64, I = 96, E = 8, K = 2

/// Each token through its `K` experts. There is room for any routing; `dispatch(x, ids, capacity = R)` has room for `R` rows.
pub fn moe_layer(
    x: bf16[T, H] @ shard(0),
    ids: i32[T, K] @ shard(0),
    gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, I] @ shard(0),
    w2: bf16[E, I, H] @ shard(0),
) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}
