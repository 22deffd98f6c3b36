//! What later versions will know is refused by name.

mk::pipeline! {
    pub fn f(q: bf16[B, S, H, D], k: bf16[B, S, G, D], v: bf16[B, S, G, D]) {
        attention(q, k, v, causal, bias = 512)
    }
}

fn main() {}
