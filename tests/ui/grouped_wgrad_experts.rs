//! A route does not say how many experts there are.

mk::pipeline! {
    pub fn gradient(
        x: bf16[R, K] @ shard(0),
        ids: i32[T, S] @ shard(0),
        dy: bf16[R, N] @ shard(0),
    ) {
        x -> ragged(ids)
            -> grouped_wgrad(dy)
    }
}

fn main() {}
