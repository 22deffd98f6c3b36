//! A window has one key or more.

mk::pipeline! {
    pub fn none(q: bf16[B, S, H, D], k: bf16[B, S, G, D], v: bf16[B, S, G, D]) {
        attention(q, k, v, causal, window = 0)
    }
}

fn main() {}
