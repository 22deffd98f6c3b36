//! Queries of a ring that lie otherwise along its axis, and keys that lie otherwise along the other one.

mk::pipeline! {
    pub fn f(
        q: bf16[B, S, H, 64] @ shard(2, cp) @ shard(2, tp),
        k: bf16[B, S, H, 64] @ shard(1, cp) @ shard(2, tp),
        v: bf16[B, S, H, 64] @ shard(1, cp) @ shard(2, tp),
        p: bf16[B, S, H, 64] @ shard(1, cp) @ shard(1, tp),
    ) {
        (ring(k, v, cp) -> attention(q), ring(k, v, cp) -> attention(p))
    }
}

fn main() {}
