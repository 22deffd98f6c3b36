//! A grouped product of rows that nobody said whose they are.

mk::pipeline! {
    pub fn experts(x: bf16[R, H], w: bf16[E, H, I]) -> bf16[R, I] {
        x -> grouped_gemm(w)
    }
}

fn main() {}
