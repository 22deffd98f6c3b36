//! Ragged rows in an operation that does not take them.

mk::pipeline! {
    pub fn experts(x: bf16[R, H], counts: i32[E], w: bf16[H, I]) -> bf16[R, I] {
        x -> ragged(counts) -> gemm(w)
    }
}

fn main() {}
