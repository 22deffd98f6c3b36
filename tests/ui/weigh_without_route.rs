//! Weights of rows that no route names.

mk::pipeline! {
    fn f(x: bf16[R, H] @ shard(0), gate: f32[T, K] @ shard(0)) {
        x -> weigh(gate)
    }
}

fn main() {}
