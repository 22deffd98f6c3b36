//! Queries by the sequence need the keys and values of all ranks.

mk::pipeline! {
    pub fn f(
        q: bf16[B, S, H, D] @ shard(1),
        k: bf16[B, S, G, D] @ shard(1),
        v: bf16[B, S, G, D] @ replicate,
    ) {
        attention(q, k, v)
    }
}

fn main() {}
