//! A window is of a causal mask.

mk::pipeline! {
    pub fn full(q: bf16[B, S, H, D], k: bf16[B, S, G, D], v: bf16[B, S, G, D]) {
        attention(q, k, v, window = 512)
    }
}

fn main() {}
