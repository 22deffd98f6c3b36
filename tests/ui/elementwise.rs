//! A second operand of another dtype, shape or placement than the first.

mk::pipeline! {
    pub fn up(x: bf16[M, K] @ shard(0), a: f16[M, K] @ shard(0), b: bf16[K, M] @ shard(0),
              c: bf16[M, K], d: bf16[K], p: bf16[M, K] @ partial, q: bf16[M, K]) {
        (mul(x, a), add(x, b), add(x, c), mul(x, d), bias(x, c), add(p, q), mul(p, p))
    }
}

fn main() {}
