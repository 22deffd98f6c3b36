//! A dtype that does not exist.

mk::pipeline! {
    pub fn all(x: bf18[M, K] @ shard(0)) {
        gather(x)
    }
}

fn main() {}
