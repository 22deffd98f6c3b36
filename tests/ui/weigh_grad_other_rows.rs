//! Gradients of weights, of rows of other columns.

mk::pipeline! {
    fn f(
        d: bf16[R, H] @ shard(0),
        ids: i32[T, K] @ shard(0),
        y: bf16[R, N] @ shard(0),
        w: bf16[E, H, H] @ shard(0),
    ) {
        d -> ragged(ids) -> grouped_gemm(w) -> weigh_grad(y)
    }
}

fn main() {}
