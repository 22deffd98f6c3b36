//! Gradients of other columns than the rows have.

mk::pipeline! {
    pub fn layer(
        x: bf16[T, H] @ shard(0),
        ids: i32[T, K] @ shard(0),
        dy: bf16[T, H] @ shard(0),
        w: bf16[E, H, N] @ shard(0),
    ) {
        x -> dispatch(ids) -> grouped_gemm(w) -> combine_grad(dy)
    }
}

fn main() {}
