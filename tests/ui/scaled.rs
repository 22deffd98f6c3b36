//! Scaled types: blocks, dtypes and placements that have no factors, and operations that would lose them.

mk::pipeline! {
    pub fn layer(
        a: e4m3[M, K] scaled(1, 128),
        b: bf16[M, K] scaled(1, K),
        c: e4m3[M, K] scaled(1, K) @ partial,
        d: e4m3[M, K] scaled(K, 1),
    ) -> bf16[M, M] scaled(1, M) {
        gemm(a, d.t)
    }
}

mk::pipeline! {
    pub fn moved(x: e4m3[M, K] scaled(1, K) @ shard(0), x_scale: e4m3[N, K]) {
        gather(x) -> gemm(x_scale.t)
    }
}

mk::pipeline! {
    pub fn cast(x: e4m3[M, K] scaled(1, K) @ shard(0)) {
        x -> cast(bf16)
    }
}

fn main() {}
