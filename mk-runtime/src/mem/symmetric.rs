//! Symmetric memory: the same size and offsets on every rank, all ranks mapped at a constant stride.
//!
//! CUDA driver API, virtual memory management: rank p's physical memory is created on its GPU and mapped at
//! `base + p * stride`, and every GPU of the world gets access to the whole range. In one process unified addressing
//! makes one reservation serve all GPUs. Mapped memory needs no `cuCtxEnablePeerAccess`.

use super::device::memset;
use crate::Error;
use crate::driver::{Context, cu};
use crate::world::World;
use cudarc::driver::sys;
use std::sync::Arc;

/// Symmetric memory of a world. Dropping it waits for all its GPUs, then unmaps and frees.
#[derive(Debug)]
pub struct SymmetricMemory {
    contexts: Vec<Arc<Context>>,
    base: u64,
    stride_bytes: u64,
    size_bytes: u64,
    /// How many ranks are mapped, for a constructor that fails half way.
    mapped: u64,
}

impl SymmetricMemory {
    /// Allocates `size_bytes` on every rank and maps all of it everywhere. The contents are undefined.
    ///
    /// # Errors
    /// [`Error::Cuda`], out of memory among others; [`Error::Shape`] for 0 bytes or more than can be addressed.
    pub fn new(world: &World, size_bytes: u64) -> Result<SymmetricMemory, Error> {
        let contexts = world
            .local_ranks()
            .map(|r| world.context(r).cloned())
            .collect::<Result<Vec<_>, _>>()?;
        let mut granularity = 1;
        for context in &contexts {
            granularity = granularity.max(granularity_of(context)?);
        }
        let stride_bytes = round_up(size_bytes, granularity);
        let total = stride_bytes.and_then(|s| s.checked_mul(contexts.len() as u64));
        let (Some(stride_bytes), Some(total @ 1..)) = (stride_bytes, total) else {
            return Err(Error::Shape {
                what: format!("symmetric memory of {size_bytes} bytes cannot be made"),
            });
        };
        let mut memory = SymmetricMemory { contexts, base: 0, stride_bytes, size_bytes, mapped: 0 };
        // SAFETY: a valid out-pointer; the driver chooses the address.
        unsafe {
            cu!(
                None,
                cuMemAddressReserve(&mut memory.base, total as usize, granularity as usize, 0, 0)
            )
        }?;
        for context in memory.contexts.clone() {
            memory.map_next(&context)?;
        }
        memory.give_access(total)?;
        Ok(memory)
    }

    fn map_next(&mut self, context: &Context) -> Result<(), Error> {
        let device = Some(context.ordinal());
        let prop = properties(context.ordinal());
        let size = self.stride_bytes as usize;
        let mut handle = 0;
        // SAFETY: valid pointers; the size is a multiple of the granularity.
        unsafe { cu!(device, cuMemCreate(&mut handle, size, &prop, 0)) }?;
        let at = self.base + self.mapped * self.stride_bytes;
        // SAFETY: the range is reserved, and nothing is mapped there yet.
        let mapped = unsafe { cu!(device, cuMemMap(at, size, 0, handle, 0)) };
        // SAFETY: our handle. The mapping keeps the memory alive.
        let released = unsafe { cu!(device, cuMemRelease(handle)) };
        mapped?;
        self.mapped += 1;
        released
    }

    fn give_access(&self, total: u64) -> Result<(), Error> {
        let mut ordinals: Vec<i32> = self.contexts.iter().map(|c| c.ordinal()).collect();
        ordinals.sort_unstable();
        ordinals.dedup();
        let access: Vec<sys::CUmemAccessDesc> = ordinals
            .into_iter()
            .map(|ordinal| sys::CUmemAccessDesc {
                location: location(ordinal),
                flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            })
            .collect();
        // SAFETY: the whole range is mapped; `access` is valid for the call.
        unsafe {
            cu!(None, cuMemSetAccess(self.base, total as usize, access.as_ptr(), access.len()))
        }
    }

    /// Address of rank 0's memory, on every GPU.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Distance between two ranks' memories, in bytes: the size rounded up to the driver's granularity.
    pub fn stride_bytes(&self) -> u64 {
        self.stride_bytes
    }

    /// Size of each rank's memory, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Address of a rank's memory, on every GPU.
    pub fn rank_ptr(&self, rank: u32) -> u64 {
        self.base + u64::from(rank) * self.stride_bytes
    }

    /// Fills `[from, to)` of every rank's memory with a byte, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when the range does not fit; [`Error::Cuda`].
    pub fn fill(&self, from: u64, to: u64, byte: u8) -> Result<(), Error> {
        if from > to || to > self.size_bytes {
            return Err(Error::Shape {
                what: format!(
                    "bytes {from} to {to} are not inside symmetric memory of {} bytes",
                    self.size_bytes
                ),
            });
        }
        for (rank, context) in self.contexts.iter().enumerate() {
            memset(context, self.rank_ptr(rank as u32) + from, byte, to - from)?;
        }
        Ok(())
    }

    /// Reads a rank's memory from `from`, after all earlier work of its GPU.
    ///
    /// # Errors
    /// [`Error::Shape`] when the range does not fit; [`Error::Cuda`].
    pub fn download(&self, rank: u32, from: u64, bytes: u64) -> Result<Vec<u8>, Error> {
        let fits = from.checked_add(bytes).is_some_and(|end| end <= self.size_bytes);
        let context = self.contexts.get(rank as usize).filter(|_| fits);
        let Some(context) = context else {
            return Err(Error::Shape {
                what: format!(
                    "{bytes} bytes at {from} of rank {rank} are not inside this symmetric memory"
                ),
            });
        };
        let mut out = vec![0u8; bytes as usize];
        if out.is_empty() {
            return Ok(out);
        }
        context.synchronize()?;
        let _in = context.enter()?;
        // SAFETY: both ranges are `bytes` long and live.
        unsafe {
            cu!(
                Some(context.ordinal()),
                cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), self.rank_ptr(rank) + from, out.len())
            )
        }?;
        Ok(out)
    }

    fn release(&self) -> Result<(), Error> {
        let mut first = Ok(());
        for context in &self.contexts {
            first = first.and(context.synchronize());
        }
        let stride = self.stride_bytes as usize;
        for p in 0..self.mapped {
            let at = self.base + p * self.stride_bytes;
            // SAFETY: mapped by us in one piece; no kernel runs any more.
            first = first.and(unsafe { cu!(None, cuMemUnmap(at, stride)) });
        }
        if self.base != 0 {
            let total = stride * self.contexts.len();
            // SAFETY: reserved by us; everything in it is unmapped.
            first = first.and(unsafe { cu!(None, cuMemAddressFree(self.base, total)) });
        }
        first
    }
}

impl Drop for SymmetricMemory {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, "symmetric memory was not released");
        }
    }
}

fn location(ordinal: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

fn properties(ordinal: i32) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(ordinal),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn granularity_of(context: &Context) -> Result<u64, Error> {
    let prop = properties(context.ordinal());
    let mut bytes = 0usize;
    // SAFETY: valid pointers.
    unsafe {
        cu!(
            Some(context.ordinal()),
            cuMemGetAllocationGranularity(
                &mut bytes,
                &prop,
                sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM
            )
        )
    }?;
    Ok(bytes.max(1) as u64)
}

/// The next multiple of `unit`, or `None` when it does not fit in 64 bits.
fn round_up(n: u64, unit: u64) -> Option<u64> {
    n.checked_next_multiple_of(unit)
}

#[cfg(test)]
mod tests {
    use super::round_up;

    #[test]
    fn strides_are_multiples_of_the_granularity() {
        assert_eq!(round_up(1, 2 << 20), Some(2 << 20));
        assert_eq!(round_up(2 << 20, 2 << 20), Some(2 << 20));
        assert_eq!(round_up((2 << 20) + 1, 2 << 20), Some(4 << 20));
        assert_eq!(round_up(u64::MAX, 2 << 20), None);
    }
}
