//! No body, and a body without an end.

use mk::runtime::DeviceTensor;

#[mk::pipelined]
struct Nothing {
    #[tensor(bf16[M, K] @ shard(0))]
    a: DeviceTensor,
    #[result(bf16[M, K])]
    out: DeviceTensor,
}

#[mk::pipelined(<M: dyn <= 8> gather(a) ->)]
struct Unfinished {
    #[tensor(bf16[M, K] @ shard(0))]
    a: DeviceTensor,
    #[result(bf16[M, K])]
    out: DeviceTensor,
}

fn main() {}
