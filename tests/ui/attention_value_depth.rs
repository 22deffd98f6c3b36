//! Heads of values have as many elements as those of keys, or 128 beside 192.

mk::pipeline! {
    pub fn f(q: bf16[B, S, H, 256], k: bf16[B, S, G, 256], v: bf16[B, S, G, 128]) {
        attention(q, k, v)
    }
}

fn main() {}
