//! The number of dropped rows is read.

mk::pipeline! {
    pub fn layer(
        x: bf16[T, H] @ shard(0),
        ids: i32[T, K] @ shard(0),
        w: bf16[E, H, N] @ shard(0),
    ) {
        let rows = dispatch(x, ids, capacity = R, drop);
        (rows -> grouped_gemm(w), rows -> dropped -> scale(2.0))
    }
}

fn main() {}
