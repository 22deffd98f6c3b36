//! Tensor maps: encoded at bind, and again only when a caller's pointer changes (shape and stride cannot).

use crate::Error;
use crate::driver::cu;
use cudarc::driver::sys;
use mk_abi::device::TENSOR_MAP_BYTES;
use mk_abi::{DType, KernelSource, MapBase, Swizzle, TensorMapSpec};

/// Addresses that a rank's maps are relative to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bases {
    pub(super) rank: u32,
    pub(super) sym_base: u64,
    pub(super) sym_stride_bytes: u64,
    pub(super) scratch: u64,
    /// Any valid device address, for maps of tensors with no elements.
    pub(super) somewhere: u64,
}

impl Bases {
    /// Where a map begins; `tensors` are the caller's pointers.
    pub(super) fn resolve(&self, base: MapBase, tensors: &[u64]) -> u64 {
        match base {
            MapBase::Tensor(t) => tensors[t as usize],
            MapBase::Symmetric(at) => {
                self.sym_base + u64::from(self.rank) * self.sym_stride_bytes + at
            }
            MapBase::Peer(p, at) => self.sym_base + u64::from(p) * self.sym_stride_bytes + at,
            MapBase::Scratch(at) => self.scratch + at,
        }
    }
}

/// Encodes one map. A computation of the driver alone, but one that wants the GPU's context to be current.
pub(super) fn encode(
    source: &KernelSource,
    index: usize,
    spec: &TensorMapSpec,
    address: u64,
    bases: &Bases,
    out: &mut [u8; TENSOR_MAP_BYTES],
) -> Result<(), Error> {
    let n = spec.dims.len();
    // A rank that owns no rows never copies through the map, and the driver refuses an extent of 0.
    let address = if address == 0 { bases.somewhere } else { address };
    let mut dims = [1u64; 5];
    for (to, from) in dims.iter_mut().zip(&spec.dims) {
        *to = (*from).max(1);
    }
    let ones = [1u32; 5];
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: an aligned out-pointer, and arrays of at least `n` (strides: n - 1) elements, checked at bind.
    let encoded = unsafe {
        cu!(
            None,
            cuTensorMapEncodeTiled(
                &mut map,
                data_type(spec.dtype),
                n as u32,
                address as *mut _,
                dims.as_ptr(),
                spec.strides_bytes.as_ptr(),
                spec.box_dims.as_ptr(),
                ones.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle(spec.swizzle),
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
            )
        )
    };
    encoded.map_err(|error| Error::BadSource {
        kernel: source.name.clone(),
        what: format!(
            "rank {}: the driver refuses tensor map {index} ({spec:?} at {address:#x}): {error}",
            bases.rank
        ),
    })?;
    for (to, from) in out.chunks_exact_mut(8).zip(map.opaque) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    Ok(())
}

fn data_type(dtype: DType) -> sys::CUtensorMapDataType {
    use sys::CUtensorMapDataType as T;
    match dtype {
        DType::Bf16 => T::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        DType::F16 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        DType::F32 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        DType::I32 => T::CU_TENSOR_MAP_DATA_TYPE_INT32,
    }
}

fn swizzle(swizzle: Swizzle) -> sys::CUtensorMapSwizzle {
    use sys::CUtensorMapSwizzle as S;
    match swizzle {
        Swizzle::None => S::CU_TENSOR_MAP_SWIZZLE_NONE,
        Swizzle::B32 => S::CU_TENSOR_MAP_SWIZZLE_32B,
        Swizzle::B64 => S::CU_TENSOR_MAP_SWIZZLE_64B,
        Swizzle::B128 => S::CU_TENSOR_MAP_SWIZZLE_128B,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_resolve_by_rank() {
        let bases = Bases {
            rank: 2,
            sym_base: 0x1000,
            sym_stride_bytes: 0x100,
            scratch: 0x9000,
            somewhere: 0x5000,
        };
        assert_eq!(bases.resolve(MapBase::Tensor(1), &[7, 8]), 8);
        assert_eq!(bases.resolve(MapBase::Symmetric(4), &[]), 0x1204);
        assert_eq!(bases.resolve(MapBase::Peer(0, 4), &[]), 0x1004);
        assert_eq!(bases.resolve(MapBase::Scratch(16), &[]), 0x9010);
    }
}
