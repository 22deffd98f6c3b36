//! The ranks that work together and the GPUs they own.

mod bootstrap;
mod order;

pub use bootstrap::Bootstrap;
pub(crate) use order::LaunchOrder;

use crate::Error;
use crate::driver::{self, Context};
use cudarc::driver::sys::CUdevice_attribute as Attr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the runtime needs to know of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Ordinal, as the driver counts.
    pub ordinal: i32,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Most dynamic shared memory of a CTA, in bytes.
    pub smem_optin_bytes: u32,
}

#[derive(Debug)]
struct Inner {
    contexts: Vec<Arc<Context>>,
    limits: Vec<DeviceLimits>,
    order: LaunchOrder,
    generation: AtomicU64,
}

/// A set of ranks. Cheap to clone; all clones are the same world.
#[derive(Clone, Debug)]
pub struct World {
    inner: Arc<Inner>,
}

impl World {
    /// One process that owns GPUs `0..n`, one rank each.
    ///
    /// # Errors
    /// As [`World::on_devices`].
    pub fn local(n: usize) -> Result<World, Error> {
        let count = driver::device_count()?;
        let n = i32::try_from(n).unwrap_or(i32::MAX);
        if n > count {
            return Err(Error::NoSuchDevice { device: n - 1, count });
        }
        World::on_devices(&(0..n).collect::<Vec<_>>())
    }

    /// One process; rank `p` on GPU `devices[p]`. A GPU may be named several times (to test on one GPU): its ranks
    /// then share its SMs, and grids must fit side by side.
    ///
    /// # Errors
    /// [`Error::DriverMissing`] and [`Error::DriverTooOld`]; [`Error::NoSuchDevice`]; [`Error::NoPeerAccess`] with
    /// the first pair that cannot reach each other; [`Error::Shape`] for no devices or more than `MAX_RANKS`.
    pub fn on_devices(devices: &[i32]) -> Result<World, Error> {
        if devices.is_empty() || devices.len() > mk_abi::device::MAX_RANKS {
            return Err(Error::Shape {
                what: format!(
                    "a world has 1 to {} ranks, not {}",
                    mk_abi::device::MAX_RANKS,
                    devices.len()
                ),
            });
        }
        let limits = devices.iter().map(|d| limits(*d)).collect::<Result<Vec<_>, _>>()?;
        for from in devices {
            for to in devices {
                if from != to && !driver::can_access_peer(*from, *to)? {
                    return Err(Error::NoPeerAccess { from: *from, to: *to });
                }
            }
        }
        let mut contexts: Vec<Arc<Context>> = Vec::new();
        for device in devices {
            let shared = contexts.iter().find(|c| c.ordinal() == *device).cloned();
            contexts.push(match shared {
                Some(context) => context,
                None => Arc::new(Context::retain(*device)?),
            });
        }
        let order = LaunchOrder::new(devices.len());
        Ok(World {
            inner: Arc::new(Inner { contexts, limits, order, generation: AtomicU64::new(1) }),
        })
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.inner.contexts.len() as u32
    }

    /// The ranks of this process. In a local world that is all of them.
    pub fn local_ranks(&self) -> std::ops::Range<u32> {
        0..self.size()
    }

    /// The GPU of a rank.
    ///
    /// # Errors
    /// [`Error::Shape`] for a rank that this process does not own.
    pub fn device(&self, rank: u32) -> Result<DeviceLimits, Error> {
        self.inner.limits.get(rank as usize).copied().ok_or_else(|| self.no_rank(rank))
    }

    pub(crate) fn context(&self, rank: u32) -> Result<&Arc<Context>, Error> {
        self.inner.contexts.get(rank as usize).ok_or_else(|| self.no_rank(rank))
    }

    /// Every GPU of this world once, by ordinal.
    pub(crate) fn distinct_contexts(&self) -> Vec<Arc<Context>> {
        let mut all = self.inner.contexts.clone();
        all.sort_by_key(|c| c.ordinal());
        all.dedup_by_key(|c| c.ordinal());
        all
    }

    /// Ranks of this world on the GPU of `rank`, itself included.
    pub(crate) fn sharing(&self, rank: u32) -> u32 {
        let contexts = &self.inner.contexts;
        let own = contexts.get(rank as usize).map(|c| c.ordinal());
        contexts.iter().filter(|c| Some(c.ordinal()) == own).count() as u32
    }

    pub(crate) fn order(&self) -> &LaunchOrder {
        &self.inner.order
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.inner.generation.fetch_add(1, Ordering::Relaxed)
    }

    fn no_rank(&self, rank: u32) -> Error {
        Error::Shape {
            what: format!("rank {rank} is not one of the {} of this world", self.size()),
        }
    }
}

fn limits(ordinal: i32) -> Result<DeviceLimits, Error> {
    let get = |which| driver::attribute(ordinal, which).map(|v| v.max(0) as u32);
    Ok(DeviceLimits {
        ordinal,
        sms: get(Attr::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        capability: (
            get(Attr::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(Attr::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        smem_optin_bytes: get(Attr::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    })
}
