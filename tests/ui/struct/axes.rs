//! Fields over two axes: a gather over the outer one of them.

use mk::runtime::DeviceTensor;

#[mk::pipelined(gather(x, dp) -> gemm(w))]
struct Linear {
    #[tensor(bf16[M, K] @ shard(0, dp) @ shard(0, tp))]
    x: DeviceTensor,
    #[tensor(bf16[K, N] @ shard(1, tp))]
    w: DeviceTensor,
    #[result(bf16[M, N] @ shard(1, tp))]
    out: DeviceTensor,
}

fn main() {}
