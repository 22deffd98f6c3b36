//! Mistakes of the language in the attribute and in the fields, each on its token.

use mk::runtime::DeviceTensor;

#[mk::pipelined(gather(a) -> gemn(b) -> reduce_scatter(dim = 2))]
pub struct RowParallel {
    #[tensor(bf17[M, K] @ shard(0))]
    pub a: DeviceTensor,
    #[tensor(bf16[K, N] @ partal)]
    pub b: DeviceTensor,
    #[result(bf16[M, N] @ shard(2))]
    pub out: DeviceTensor,
}

fn main() {}
