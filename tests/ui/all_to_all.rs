//! Exchanges without dimensions, of one dimension, of one that is not there, and of what is not sharded so.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0)) {
        (
            x -> all_to_all,
            x -> all_to_all(split = 0, concat = 0),
            x -> all_to_all(split = 2, concat = 0),
            x -> all_to_all(split = 0, concat = 1),
        )
    }
}

fn main() {}
