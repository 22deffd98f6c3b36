//! The kernels of these tests, and their sources as the code generator would hand them over.

use crate::common;
use mk_abi::device::cuda_declarations;
use mk_abi::{
    DType, EdgeInfo, KernelSource, MapBase, RoleInfo, Swizzle, TensorArg, TensorDirection,
    TensorMapSpec,
};
use mk_runtime::jit;

fn text(n_maps: usize, n_tensors: usize, body: &str) -> String {
    let maps = if n_maps > 0 { format!("TensorMap maps[{n_maps}]; ") } else { String::new() };
    format!(
        "typedef unsigned int u32;\ntypedef unsigned long long u64;\n{}\
         struct alignas(64) TensorMap {{ u64 opaque[16]; }};\n\
         struct Params {{ {maps}LaunchHeader h; u64 tensors[{n_tensors}]; }};\n{}\n{body}",
        cuda_declarations(),
        include_str!("../kernels/sync.cuh"),
    )
}

fn tensor(name: &str, dtype: DType, direction: TensorDirection) -> TensorArg {
    TensorArg { name: name.into(), dtype, direction, in_place: None, own_rows: false }
}

/// Every rank writes `1000 * epoch + 10 * rank + p` to every peer p; `out[s]` of rank p is what s sent.
pub fn exchange(world: u32) -> KernelSource {
    let body = include_str!("../kernels/exchange.cu");
    let mut source = common::kernel("exchange", &text(0, 1, body), world);
    source.tensors = vec![tensor("out", DType::I32, TensorDirection::Out)];
    source.workspace.zeroed_bytes = 2048;
    source.workspace.symmetric_bytes = 4096;
    for rank in &mut source.ranks {
        rank.tensor_shapes = vec![vec![world.into()]];
    }
    source
}

/// Waits for signal word 256 (the first after the header) to reach `expected[0]`; nobody posts it.
pub fn stuck(world: u32) -> KernelSource {
    let body = include_str!("../kernels/stuck.cu");
    let mut source = common::kernel("stuck", &text(0, 1, body), world);
    source.tensors = vec![tensor("expected", DType::I32, TensorDirection::In)];
    source.workspace.zeroed_bytes = 2048;
    source.workspace.symmetric_bytes = 2048;
    source.roles = vec![RoleInfo { name: "compute".into(), first_cta: 0, ctas: 1 }];
    source.edges = vec![EdgeInfo { id: 7, text: "fam0 test, loader: wait sig0 \"never\"".into() }];
    for rank in &mut source.ranks {
        rank.tensor_shapes = vec![vec![4]];
    }
    source
}

/// Copies the 32 x 64 tile at row 16 of `x` (bf16 `[64, 64]`) to `out` by TMA, cluster by cluster.
pub fn tile_copy() -> KernelSource {
    let body = include_str!("../kernels/tile_copy.cu");
    let mut source = common::kernel("tile_copy", &text(1, 2, body), 1);
    source.tensors = vec![
        tensor("x", DType::Bf16, TensorDirection::In),
        tensor("out", DType::Bf16, TensorDirection::Out),
    ];
    source.grid = 2;
    source.cluster = 2;
    source.smem_bytes = 100 << 10;
    source.ranks[0].tensor_shapes = vec![vec![64, 64], vec![32, 64]];
    source.ranks[0].maps = vec![TensorMapSpec {
        base: MapBase::Tensor(0),
        dtype: DType::Bf16,
        dims: vec![64, 64],
        strides_bytes: vec![128],
        box_dims: vec![64, 16],
        swizzle: Swizzle::None,
    }];
    source
}

/// Does nothing on every SM, to time launches.
pub fn empty(world: u32, grid: u32) -> KernelSource {
    let body = "extern \"C\" __global__ void empty(const __grid_constant__ Params p) {}";
    let mut source =
        common::kernel("empty", &text(0, 0, body).replace("u64 tensors[0];", ""), world);
    source.grid = grid;
    source
}

#[test]
fn all_compile() {
    if !common::has_nvrtc() {
        return;
    }
    for source in [exchange(2), stuck(2), tile_copy(), empty(1, 132)] {
        let compiled = jit::compile(&source, &common::jit_options());
        assert!(compiled.is_ok(), "{}", compiled.unwrap_err());
    }
}
