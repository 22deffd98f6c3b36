//! PyTorch's spelling.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[N, K]) {
        gather(x) -> gemm(w.T)
    }
}

fn main() {}
