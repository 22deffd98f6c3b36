//! Sums that are not made, angles of 16 bits, angles of other rows, rows of three dimensions, angles on other ranks.

mk::pipeline! {
    pub fn f(p: bf16[M, K] @ partial, y: bf16[M, K] @ shard(0), z: bf16[M, 2, K], t: f32[M, D], u: f32[K, D], b: bf16[M, D]) {
        (p -> rope(t), z -> rope(b), z -> rope(u), y -> rope(t))
    }
}

fn main() {}
