//! Only `gemm` reads a transposed tensor: each other place is a mistake.

mk::pipeline! {
    pub fn f(x: bf16[M, K], y: bf16[K, M], w: bf16[K, N]) {
        (x.t -> gelu, x -> add(y.t), gather(w.t), x.t)
    }
}

fn main() {}
