//! On two mesh axes a placement must say which it means.

mk::pipeline! {
    pub fn all(x: bf16[M, K] @ shard(0, tp) @ shard(1, dp), y: bf16[M, K] @ shard(0)) {
        (x -> gather, y -> gather(tp))
    }
}

fn main() {}
