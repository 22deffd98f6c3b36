//! What `ring` passes on is for `attention` alone.

mk::pipeline! {
    pub fn f(k: bf16[B, S, G, D] @ shard(1), v: bf16[B, S, G, D] @ shard(1)) {
        ring(k, v) -> gelu
    }
}

fn main() {}
