//! Gradients are of heads of up to 128 elements.

mk::pipeline! {
    pub fn f(
        q: bf16[B, S, H, 256],
        do: bf16[B, S, H, 256],
        stats: f32[B, H, S, 4],
        k: bf16[B, S, G, 256],
        v: bf16[B, S, G, 256],
    ) {
        attention_dq(q, do, stats, k, v)
    }
}

fn main() {}
