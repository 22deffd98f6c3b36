//! Operands of a GEMM whose factors are of the other operand's blocks.

mk::pipeline! {
    pub fn layer(
        x: e4m3[M, K] scaled(128, 128) @ shard(0),
        w: e4m3[N, K] scaled(1, 128),
    ) {
        gather(x) -> gemm(w.t)
    }
}

fn main() {}
