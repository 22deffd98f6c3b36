//! Gradients of other rows.

mk::pipeline! {
    pub fn gradient(x: bf16[R, K], counts: i32[E], dy: bf16[M, N]) {
        ragged(x, counts) -> grouped_wgrad(dy)
    }
}

fn main() {}
