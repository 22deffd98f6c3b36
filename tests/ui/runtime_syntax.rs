//! Runtime symbols that cannot be read.

mk::pipeline! {
    pub fn f<M: dynamic, K: dyn <= N, 8: dyn>(x: bf16[M, K] @ shard(0)) {
        gather(x)
    }
}

fn main() {}
