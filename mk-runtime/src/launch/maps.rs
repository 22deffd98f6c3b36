//! Tensor maps: encoded at bind, and again only when a caller's pointer changes (shape and stride cannot).

use crate::driver::cu;
use crate::mem::Layout;
use crate::{Error, Result};
use cudarc::driver::sys;
use mk_abi::device::TENSOR_MAP_BYTES;
use mk_abi::{DType, KernelSource, MapBase, Swizzle, TensorMapSpec};
use mk_dtype::MapType;

/// Addresses that a rank's maps are relative to.
#[derive(Clone, Debug)]
pub(super) struct Bases {
    pub(super) rank: u32,
    pub(super) symmetric: Layout,
    pub(super) scratch: u64,
    /// The rank's range of the net arena, or 0.
    pub(super) net: u64,
    /// Any valid device address, for maps of tensors with no elements.
    pub(super) somewhere: u64,
}

impl Bases {
    /// Where a map over memory that mk allocates begins; none for one over a caller's tensor.
    ///
    /// # Errors
    /// [`Error::Unreachable`] for memory of a rank of another node.
    pub(super) fn resolve(&self, base: MapBase) -> Result<Option<u64>> {
        Ok(match base {
            MapBase::Tensor(_) => None,
            MapBase::Symmetric(at) => Some(self.symmetric.address(self.rank)? + at),
            MapBase::Peer(p, at) => Some(self.symmetric.address(p)? + at),
            MapBase::Scratch(at) => Some(self.scratch + at),
            MapBase::Net(at) => Some(self.net + at),
        })
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
) -> Result<()> {
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
    match dtype.format().map {
        MapType::Uint8 => T::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        MapType::Bfloat16 => T::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        MapType::Float16 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        MapType::Float32 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        MapType::Int32 => T::CU_TENSOR_MAP_DATA_TYPE_INT32,
        MapType::Int64 => T::CU_TENSOR_MAP_DATA_TYPE_INT64,
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
    use crate::world::Topology;

    #[test]
    fn bases_resolve_by_rank() {
        let topology = Topology::nodes_of(4, 2).unwrap();
        let mut symmetric = Layout::new(topology, 2, 0x100, 0x100).unwrap();
        symmetric.base = 0x1000;
        let bases = Bases { rank: 2, symmetric, scratch: 0x9000, net: 0xa000, somewhere: 0x5000 };
        let resolve = |base| bases.resolve(base).unwrap();
        assert_eq!(resolve(MapBase::Tensor(1)), None);
        assert_eq!(resolve(MapBase::Symmetric(4)), Some(0x1204));
        assert_eq!(resolve(MapBase::Peer(3, 4)), Some(0x1304));
        assert_eq!(resolve(MapBase::Scratch(16)), Some(0x9010));
        assert_eq!(resolve(MapBase::Net(16)), Some(0xa010));
        let other = bases.resolve(MapBase::Peer(1, 4));
        assert!(matches!(other, Err(Error::Unreachable { from: 2, to: 1 })));
    }
}
