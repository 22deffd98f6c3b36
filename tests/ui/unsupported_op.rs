//! An operation of the language that this version does not compile.

mk::pipeline! {
    pub fn turned(x: bf16[M, K]) {
        x -> all_to_all
    }
}

fn main() {}
