//! Results that have other factors than they are declared with, or none.

mk::pipeline! {
    pub fn layer(x: bf16[M, K], y: bf16[M, K] @ shard(0)) -> (
        e4m3[M, K] scaled(1, K),
        e4m3[M, K],
        e4m3[M, K] scaled(1, 128) @ shard(0),
    ) {
        let q = x -> quantize(e4m3, 1, 128);
        (q, y -> quantize(e4m3, 1, 128) -> gather, y -> cast(e4m3))
    }
}

fn main() {}
