//! The result is declared otherwise than the body gives it.

use mk::runtime::DeviceTensor;

#[mk::pipelined(gather(a) -> gemm(b))]
struct Linear {
    #[tensor(bf16[M, K] @ shard(0))]
    a: DeviceTensor,
    #[tensor(bf16[K, N] @ shard(1))]
    b: DeviceTensor,
    #[result(f16[N, M] @ shard(0))]
    out: DeviceTensor,
}

fn use_of_what_is_declared_all_the_same(linear: &Linear) -> mk::runtime::RankTensors {
    let _program: &mk::Program = Linear::pipeline();
    linear.arguments()
}

fn main() {}
