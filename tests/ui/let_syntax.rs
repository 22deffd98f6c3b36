//! Bindings without a value, a name or an end.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0)) {
        let h gather(x);
        let = gather(x);
        let g = gather(x)
        g
    }
}

fn main() {}
