//! Two placements over one axis.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0, tp) @ shard(1, tp) @ shard(0, dp)) {
        gather(x, tp)
    }
}

fn main() {}
