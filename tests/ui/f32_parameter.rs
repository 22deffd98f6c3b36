//! A parameter of f32 that is no partial sum.

mk::pipeline! {
    pub fn all(x: f32[M, K] @ shard(0)) {
        gather(x)
    }
}

fn main() {}
