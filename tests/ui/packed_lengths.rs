//! Packed queries and keys are the same tokens.

mk::pipeline! {
    pub fn f(
        q: bf16[B, S, H, D] @ replicate,
        k: bf16[B, T, G, D] @ replicate,
        v: bf16[B, T, G, D] @ replicate,
        cu: i32[N],
    ) {
        attention(q, k, v, causal, cu_seqlens = cu)
    }
}

fn main() {}
