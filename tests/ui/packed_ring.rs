//! A ring knows no documents yet.

mk::pipeline! {
    pub fn f(
        q: bf16[B, S, H, D] @ zigzag(1),
        k: bf16[B, S, G, D] @ zigzag(1),
        v: bf16[B, S, G, D] @ zigzag(1),
        cu: i32[N],
    ) {
        ring(k, v) -> attention(q, causal, cu_seqlens = cu)
    }
}

fn main() {}
