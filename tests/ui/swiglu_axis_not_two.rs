//! The gate/up axis is a symbol, the columns come first, and an argument too many.

mk::pipeline! {
    pub fn f(x: bf16[M, G, F], y: bf16[M, F, 2]) {
        (x -> swiglu, y -> swiglu(2))
    }
}

fn main() {}
