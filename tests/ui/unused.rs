//! Parameters and bindings that nothing uses.

mk::pipeline! {
    pub fn up(x: bf16[M, K] @ shard(0), v: bf16[N]) {
        let h = gather(x);
        x
    }
}

fn main() {}
