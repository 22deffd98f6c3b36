//! Arguments that are missing, of the wrong kind, or too many.

mk::pipeline! {
    pub fn up(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) {
        gather(x) -> gemm -> gelu(w) -> scale(w) -> cast(bf61) -> reduce_scatter(axis = 0)
    }
}

fn main() {}
