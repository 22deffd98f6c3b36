//! A gather of what every rank has.

mk::pipeline! {
    pub fn up(x: bf16[M, K] @ replicate) {
        gather(x)
    }
}

fn main() {}
