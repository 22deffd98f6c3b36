//! Where documents begin is said by integers of the caller.

mk::pipeline! {
    pub fn f(
        q: bf16[B, S, H, D] @ replicate,
        k: bf16[B, S, G, D] @ replicate,
        v: bf16[B, S, G, D] @ replicate,
        cu: f32[N],
    ) {
        attention(q, k, v, causal, cu_seqlens = cu)
    }
}

fn main() {}
