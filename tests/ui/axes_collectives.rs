//! Collectives over an axis along which there is nothing to move.

mk::pipeline! {
    pub fn f(x: bf16[M, K] @ shard(0, tp), y: bf16[M, K] @ partial(dp)) {
        (gather(x, dp), y -> all_reduce(tp), y -> reduce_scatter(tp))
    }
}

fn main() {}
