//! Two results in the struct, one in the body.

use mk::runtime::DeviceTensor;

#[mk::pipelined(gather(a) -> gemm(b))]
struct Linear {
    #[tensor(bf16[M, K] @ shard(0))]
    a: DeviceTensor,
    #[tensor(bf16[K, N] @ shard(1))]
    b: DeviceTensor,
    #[result(bf16[M, N] @ shard(1))]
    out: DeviceTensor,
    #[result(bf16[M, K])]
    saved: DeviceTensor,
}

fn main() {}
