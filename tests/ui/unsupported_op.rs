//! An operation of the language that this version does not compile.

mk::pipeline! {
    pub fn gated(x: bf16[M, 2, F]) {
        x -> swiglu
    }
}

fn main() {}
