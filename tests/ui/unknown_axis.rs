//! A mesh axis that the signature does not name.

mk::pipeline! {
    pub fn all(x: bf16[M, K] @ shard(0, tp)) {
        gather(x, pt)
    }
}

fn main() {}
