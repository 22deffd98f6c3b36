//! The transposed operand contracts its columns: dimension and placement are those of what is stored.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1), v: bf16[N, K] @ shard(1)) {
        let h = gather(x);
        (h -> gemm(w.t), h -> gemm(v.t))
    }
}

fn main() {}
