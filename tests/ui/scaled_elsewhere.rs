//! Operations that would lose factors, and a name that is theirs.

mk::pipeline! {
    pub fn layer(
        x: e4m3[M, K] scaled(1, K) @ shard(0),
        y: e4m3[M, K] scaled(1, K),
        y_scale: e4m3[N, K],
        z: bf16[M, K],
    ) {
        let a = gather(x);
        let b = y -> cast(bf16);
        (a, b, z -> mul(y), y_scale)
    }
}

fn main() {}
