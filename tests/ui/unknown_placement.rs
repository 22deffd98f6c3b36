//! A placement that does not exist.

mk::pipeline! {
    pub fn all(x: bf16[M, K] @ sharded(0)) {
        gather(x)
    }
}

fn main() {}
