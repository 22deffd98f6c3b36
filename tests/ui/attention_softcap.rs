//! A cap is positive.

mk::pipeline! {
    pub fn flat(q: bf16[B, S, H, D], k: bf16[B, S, G, D], v: bf16[B, S, G, D]) {
        attention(q, k, v, softcap = 0.0)
    }
}

fn main() {}
