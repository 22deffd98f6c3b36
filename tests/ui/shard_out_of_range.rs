//! A shard of a dimension that the tensor does not have.

mk::pipeline! {
    pub fn all(x: bf16[M, K] @ shard(2)) {
        gather(x)
    }
}

fn main() {}
