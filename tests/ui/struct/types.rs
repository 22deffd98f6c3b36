//! What the body gives is not what the fields say; a field that the body does not name, and a name that is no field.

use mk::runtime::DeviceTensor;

#[mk::pipelined(gather(a) -> gemm(w) -> gelu)]
struct Linear {
    #[tensor(bf16[M, K] @ shard(0))]
    a: DeviceTensor,
    #[tensor(bf16[K, N] @ shard(1))]
    b: DeviceTensor,
    #[result(bf16[M, K] @ shard(1))]
    out: DeviceTensor,
}

fn main() {}
