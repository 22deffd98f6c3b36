// One GEMM on every rank, without communication: each rank has its rows of x and all of w.
//
// M = 512, K = 256, N = 512

/// Data-parallel linear layer.
pub fn gemm_alone(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ replicate) -> bf16[M, N] @ shard(0) {
    gemm(x, w)
}
