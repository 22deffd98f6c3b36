//! More axes than a mesh has.

mk::pipeline! {
    pub fn f(x: bf16[A, B, C, D, E] @ shard(0, a) @ shard(1, b) @ shard(2, c) @ shard(3, d) @ shard(4, e)) {
        gather(x, a)
    }
}

fn main() {}
