// First half of a tensor-parallel MLP: gather, product, bias and activation in one kernel.
//
// M = 512, K = 256, F = 1024

/// The up projection of an MLP with sequence-parallel input.
pub fn mlp_up(
    x: bf16[M, K] @ shard(0),
    w: bf16[K, F] @ shard(1),
    c: bf16[F] @ shard(0),
) -> bf16[M, F] @ shard(1) {
    gather(x) -> gemm(w) -> bias(c) -> gelu
}
