//! Nor do queries that ranks share by the sequence.

mk::pipeline! {
    pub fn f(
        q: bf16[B, S, H, D] @ shard(1),
        k: bf16[B, S, G, D] @ replicate,
        v: bf16[B, S, G, D] @ replicate,
        cu: i32[N],
    ) {
        attention(q, k, v, causal, cu_seqlens = cu)
    }
}

fn main() {}
