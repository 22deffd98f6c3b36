//! Sinks are one number of each head of queries.

mk::pipeline! {
    pub fn f(
        q: bf16[B, S, H, D] @ shard(2),
        k: bf16[B, S, G, D] @ shard(2),
        v: bf16[B, S, G, D] @ shard(2),
        s: f32[H] @ replicate,
    ) {
        attention(q, k, v, causal, sinks = s)
    }
}

fn main() {}
