//! Tokens of experts that are not over both axes of the mesh.

mk::pipeline! {
    pub fn f(x: bf16[T, H] @ shard(0, ep) @ shard(1, tp), ids: i32[T, K] @ shard(0, ep), w: bf16[E, H, N] @ shard(0, ep)) {
        dispatch(x, ids, capacity = 1024) -> grouped_gemm(w)
    }
}

fn main() {}
