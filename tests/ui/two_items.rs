//! One pipeline for each macro call.

mk::pipeline! {
    pub fn a(x: bf16[M, K] @ shard(0)) {
        gather(x)
    }
    pub fn b(x: bf16[M, K] @ shard(0)) {
        gather(x)
    }
}

fn main() {}
