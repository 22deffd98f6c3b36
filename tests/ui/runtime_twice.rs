//! Runtime symbols: declared twice, used nowhere, and bounds out of range.

mk::pipeline! {
    pub fn f<M: dyn, M: dyn <= 8, B: dyn, K: dyn <= 0>(x: bf16[M, K] @ shard(0)) {
        gather(x)
    }
}

fn main() {}
