//! A dimension over two axes, over one of them in zigzag.

mk::pipeline! {
    pub fn f(q: bf16[B, S, H, 64] @ zigzag(1, cp) @ shard(1, dp), k: bf16[B, S, H, 64], v: bf16[B, S, H, 64]) {
        attention(q, k, v)
    }
}

fn main() {}
