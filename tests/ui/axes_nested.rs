//! A dimension over two axes, of which one is the outer one here and the inner one there.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), y: bf16[M, K] @ shard(0, tp) @ shard(0, dp)) {
        x -> add(y)
    }
}

fn main() {}
