//! A chain that starts with an operation.

mk::pipeline! {
    pub fn up(w: bf16[K, N] @ shard(1)) {
        gather -> gemm(w)
    }
}

fn main() {}
