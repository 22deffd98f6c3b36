//! Seven mistakes in gates, transposes, runtime symbols, bindings and results, all at once.

mk::pipeline! {
    pub fn f<B: dyn>(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1), v: bf16[2, K, N])
        -> (bf16[M, N] @ shard(1), bf16[M, 2] @ shard(7))
    {
        let h = gather(x) -> swiglu;
        let x = gather(x) -> gemm(v.t);
        (x.t -> gelu, gather(x) -> gemn(w))
    }
}

fn main() {}
