//! Experts in eight bits: rows and stacks with other factors or none, and a stack that is read along another dimension.

mk::pipeline! {
    pub fn layer(
        x: e4m3[R, K] scaled(1, K) @ shard(0),
        y: e4m3[R, K] @ shard(0),
        z: e4m3[R, K] scaled(1, 128) @ shard(0),
        counts: i32[E] @ shard(0),
        w: e4m3[E, N, K] scaled(128, 128) @ shard(0),
        v: e4m3[E, N, K] @ shard(0),
        u: e4m3[E, K, N] scaled(128, 128) @ shard(0),
        t: e4m3[E, N, K] scaled(1, 128) @ shard(0),
        d: bf16[R, N] @ shard(0),
    ) {
        let a = ragged(x, counts) -> grouped_gemm(w.t);
        let b = ragged(y, counts) -> grouped_gemm(w.t);
        let c = ragged(z, counts) -> grouped_gemm(v.t);
        let e = ragged(z, counts) -> grouped_gemm(u);
        let f = ragged(z, counts) -> grouped_wgrad(d);
        (a, b, c, e, f, ragged(z, counts) -> grouped_gemm(t.t))
    }
}

fn main() {}
