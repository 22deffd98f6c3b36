//! Bindings are read in order.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N]) {
        let y = h -> gemm(w);
        let h = gather(x);
        (y, h)
    }
}

fn main() {}
