//! Rows that ranks share, sums that are not made, a weight of another length, an `eps` of nothing.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(1), p: bf16[M, K] @ partial, y: bf16[M, K], g: bf16[M]) {
        (x -> rmsnorm, p -> rmsnorm, y -> rmsnorm(g), y -> rmsnorm(eps = 0), g -> rmsnorm)
    }
}

fn main() {}
