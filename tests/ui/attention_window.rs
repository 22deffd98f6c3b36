//! A window is of a causal mask, and of one key or more; a cap is positive.

mk::pipeline! {
    pub fn full(q: bf16[B, S, H, D], k: bf16[B, S, G, D], v: bf16[B, S, G, D]) {
        attention(q, k, v, window = 512)
    }
}

mk::pipeline! {
    pub fn none(q: bf16[B, S, H, D], k: bf16[B, S, G, D], v: bf16[B, S, G, D]) {
        attention(q, k, v, causal, window = 0)
    }
}

mk::pipeline! {
    pub fn flat(q: bf16[B, S, H, D], k: bf16[B, S, G, D], v: bf16[B, S, G, D]) {
        attention(q, k, v, softcap = 0.0)
    }
}

fn main() {}
