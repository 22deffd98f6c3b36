// Experts, and the shared expert beside them: every token goes to the ranks of its experts and back, and all tokens through one gated MLP whose
// columns the ranks share. One kernel: the shared expert multiplies while tokens travel.
//
// T = 192, H = 64, I = 96, E = 8, K = 2, F = 256

/// The sum of both is the layer's.
pub fn shared_expert(
    x: bf16[T, H] @ shard(0),
    ids: i32[T, K] @ shard(0),
    gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, I] @ shard(0),
    w2: bf16[E, I, H] @ shard(0),
    up: bf16[H, 2, F] @ shard(2),
    down: bf16[F, H] @ shard(0),
) -> (bf16[T, H] @ shard(0), bf16[T, H] @ shard(0)) {
    let routed = dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate);
    let shared = gather(x) -> gemm(up) -> swiglu -> gemm(down) -> reduce_scatter;
    (routed, shared)
}
