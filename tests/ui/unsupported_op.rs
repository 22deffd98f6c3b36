//! An operation of the language that this version does not compile.

mk::pipeline! {
    pub fn attend(x: bf16[M, K]) {
        x -> attention
    }
}

fn main() {}
