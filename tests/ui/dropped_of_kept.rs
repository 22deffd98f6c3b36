//! What nothing drops is counted.

mk::pipeline! {
    pub fn layer(
        x: bf16[T, H] @ shard(0),
        ids: i32[T, K] @ shard(0),
        w: bf16[E, H, N] @ shard(0),
    ) {
        let rows = dispatch(x, ids, capacity = R);
        (rows -> grouped_gemm(w), rows -> dropped)
    }
}

fn main() {}
