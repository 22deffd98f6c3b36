//! Scaled types: blocks, dtypes and placements that have no factors, and results without.

mk::pipeline! {
    pub fn layer(
        a: e4m3[M, K] scaled(1, 64),
        b: bf16[M, K] scaled(1, K),
        c: e4m3[M, K] scaled(1, K) @ partial,
        d: e4m3[M, K] scaled(K),
    ) -> bf16[M, M] scaled(1, M) {
        gemm(a, d.t)
    }
}

fn main() {}
