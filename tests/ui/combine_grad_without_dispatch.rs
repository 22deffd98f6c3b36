//! Gradients of weights of rows that were not dispatched.

mk::pipeline! {
    pub fn weights(x: bf16[T, H] @ shard(0), dy: bf16[T, H] @ shard(0)) {
        x -> combine_grad(dy)
    }
}

fn main() {}
