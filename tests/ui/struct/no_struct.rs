//! Not a struct with names.

use mk::runtime::DeviceTensor;

#[mk::pipelined(gather(a))]
enum Gather {
    A(DeviceTensor),
}

#[mk::pipelined(gather(a))]
struct Tuple(DeviceTensor);

fn main() {}
