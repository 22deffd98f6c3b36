//! Nowhere to put the result.

use mk::runtime::DeviceTensor;

#[mk::pipelined(gather(a))]
struct Gather {
    #[tensor(bf16[M, K] @ shard(0))]
    a: DeviceTensor,
}

fn main() {}
