//! A chain without a name is for run-time strings.

mk::pipeline! { gather(a) -> gemm(b) }

fn main() {}
