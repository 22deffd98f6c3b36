// Column-parallel linear layer with a sequence-sharded input: every rank gathers x and multiplies it with its columns
// of w. The rows of a peer are multiplied while the next ones arrive.
//
// M = 512, K = 256, N = 512

/// gather -> gemm.
pub fn gather_gemm(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) -> bf16[M, N] @ shard(1) {
    gather(x) -> gemm(w)
}
