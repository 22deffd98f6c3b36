//! Fields without a type, with two, with an empty one.

use mk::runtime::DeviceTensor;

#[mk::pipelined(gather(a) -> gemm(b))]
struct Linear {
    a: DeviceTensor,
    #[tensor(bf16[K, N] @ shard(1))]
    #[result(bf16[K, N] @ shard(1))]
    b: DeviceTensor,
    #[result]
    out: DeviceTensor,
}

fn main() {}
