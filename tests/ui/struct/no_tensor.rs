//! A field of a type that no kernel can be given.

use mk::runtime::DeviceTensor;

#[mk::pipelined(gather(a))]
struct Gather {
    #[tensor(bf16[M, K] @ shard(0))]
    a: Vec<f32>,
    #[result(bf16[M, K])]
    out: DeviceTensor,
}

fn main() {}
