//! A scaled tensor without its factors, factors of no scaled tensor, and ones with a type.

use mk::runtime::DeviceTensor;

#[mk::pipelined(gather(x) -> gemm(w.t))]
struct Linear {
    #[tensor(e4m3[M, K] scaled(1, 128) @ shard(0))]
    x: DeviceTensor,
    #[tensor(e4m3[N, K] scaled(128, 128) @ shard(0))]
    w: DeviceTensor,
    #[factors(f32[N, K])]
    w_scale: DeviceTensor,
    #[factors]
    scales: DeviceTensor,
    #[result(bf16[M, N] @ shard(1))]
    out: DeviceTensor,
}

fn main() {}
