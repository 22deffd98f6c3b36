//! Weighted sums of rows that were not dispatched.

mk::pipeline! {
    pub fn sum(x: bf16[T, H] @ shard(0), gate: f32[T, K] @ shard(0)) -> bf16[T, H] @ shard(0) {
        x -> combine(gate)
    }
}

fn main() {}
