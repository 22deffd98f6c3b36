//! Tokens of experts over both axes of the mesh.

mk::pipeline! {
    pub fn f(x: bf16[T, H] @ shard(0, dp) @ shard(0, ep), ids: i32[T, K] @ shard(0, dp) @ shard(0, ep), w: bf16[E, H, N] @ shard(0, ep)) {
        dispatch(x, ids, capacity = 1024) -> grouped_gemm(w)
    }
}

fn main() {}
