//! A bias of rows that no product made.

mk::pipeline! {
    pub fn rows(
        x: bf16[R, K] @ shard(0),
        n: i32[E] @ shard(0),
        w: bf16[E, K, N] @ shard(0),
        b: bf16[E, K] @ shard(0),
    ) {
        ragged(x, n) -> bias(b) -> grouped_gemm(w)
    }
}

fn main() {}
