//! A runtime symbol declared where it is used.

mk::pipeline! {
    pub fn f(x: bf16[M: dyn, K] @ shard(0)) {
        gather(x)
    }
}

fn main() {}
