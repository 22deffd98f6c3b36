//! A misspelt operation: the nearest one is suggested, and the item still exists.

mk::pipeline! {
    pub fn linear(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) {
        gather(x) -> gemn(w)
    }
}

fn main() {
    let _program: mk::Program = linear();
}
