//! Dtypes, blocks, values and placements that are not quantised, and values without factors.

mk::pipeline! {
    pub fn layer(
        x: bf16[M, K],
        p: bf16[M, K] @ partial,
        q: e4m3[M, K],
        w: e4m3[M, K] scaled(128, 128),
        g: bf16[M, 2, K],
    ) {
        let a = x -> quantize(bf16, 1, 128);
        let b = x -> quantize(e4m3, 128, 128);
        let c = x -> quantize(e4m3, 1, 128) -> quantize(e4m3, 1, 128);
        let d = g -> quantize(e4m3, 1, 128);
        let e = x -> cast(f32) -> quantize(e4m3, 1, 128);
        (a, b, c, d, e, p -> quantize(e4m3, 1, 128), q -> dequantize, w -> dequantize, x -> quantize(e4m3))
    }
}

fn main() {}
