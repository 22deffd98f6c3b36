//! The ranks that work together and the GPUs they own: all of them in one process, or one process per GPU.
//!
//! A world has three parts. A [`Bootstrap`] carries the first messages between its processes, and is dropped when they
//! have met. The control channel (`control/group.rs`) stays: small gathers, file descriptors, deaths. The [`Topology`]
//! says which ranks map each other's memory.

mod budget;
mod connect;
mod control;
mod shared;
mod topology;

pub use crate::driver::ledger::forked;
pub use control::{
    Bootstrap, MAX_PART, Meeting, TcpBootstrap, Token, UnixBootstrap, WorldOptions,
    ask_while_waiting, mesh,
};
pub(crate) use control::{Deadline, Group, Member, SharedGroup};
pub(crate) use shared::SharedPages;
pub use topology::Topology;

use crate::driver::{self, Context};
use crate::{Error, Result};
use budget::SmShares;
use cudarc::driver::sys::CUdevice_attribute as Attr;
use std::any::Any;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

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
    /// The highest clock of its SMs, in kHz.
    pub clock_khz: u32,
    /// Memory's clock, in kHz; data comes at both edges.
    pub memory_clock_khz: u32,
    /// Width of memory's bus.
    pub memory_bus_bits: u32,
    /// Last-level cache, in bytes.
    pub l2_bytes: u32,
}

#[derive(Debug)]
struct Inner {
    /// The lowest rank of this process.
    first: u32,
    topology: Topology,
    /// Of this process's ranks.
    contexts: Vec<Arc<Context>>,
    limits: Vec<DeviceLimits>,
    /// Of all ranks.
    shares: SmShares,
    generation: AtomicU64,
    /// What `mem` knows of workspace that instances share.
    in_common: OnceLock<Box<dyn Any + Send + Sync>>,
    /// What others keep for as long as the world lives: its network. Closed before the processes part.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
    /// The address of this host for others, where there are some.
    address: Option<IpAddr>,
    /// The control channel to the other processes, where there are some.
    group: Option<SharedGroup>,
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
    pub fn local(n: usize) -> Result<World> {
        let count = driver::device_count()?;
        let n = i32::try_from(n).unwrap_or(i32::MAX);
        if n > count {
            return Err(Error::NoSuchDevice { device: n - 1, count });
        }
        World::on_devices(&(0..n).collect::<Vec<_>>())
    }

    /// One process; `ranks` ranks that share GPU `gpu`, to try things on one GPU. Their kernels run side by side: each
    /// may take [`World::sm_budget`] SMs.
    ///
    /// # Errors
    /// As [`World::on_devices`].
    pub fn shared(gpu: i32, ranks: usize) -> Result<World> {
        // Of more there is no world, however many more.
        World::on_devices(&vec![gpu; ranks.min(mk_abi::device::MAX_RANKS + 1)])
    }

    /// One process; rank `p` on GPU `devices[p]`. A GPU may be named several times: its ranks then share its SMs, and
    /// grids must fit side by side ([`World::sm_budget`]).
    ///
    /// # Errors
    /// [`Error::DriverMissing`] and [`Error::DriverTooOld`]; [`Error::NoSuchDevice`]; [`Error::NoPeerAccess`] with
    /// the first pair that cannot reach each other; [`Error::Shape`] for no devices or more than `MAX_RANKS`.
    pub fn on_devices(devices: &[i32]) -> Result<World> {
        World::on_nodes(devices, 1)
    }

    /// [`World::on_devices`] as if the ranks were on several nodes, as many on each: ranks of different nodes do not
    /// map each other's memory, and only a [network](crate::net::Net) carries bytes between them. To try plans over
    /// nodes on one machine.
    ///
    /// # Errors
    /// As [`World::on_devices`]; [`Error::Shape`] for nodes that do not divide the ranks.
    pub fn on_nodes(devices: &[i32], nodes: u32) -> Result<World> {
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
        let ranks = devices.len() as u32;
        let topology = Topology::nodes_of(ranks, ranks.checked_div(nodes).unwrap_or(0))?;
        if topology.nodes() != nodes {
            let what = format!("{ranks} ranks are not as many on each of {nodes} nodes");
            return Err(Error::Shape { what });
        }
        for (rank, from) in (0..).zip(devices) {
            for peer in topology.reach(rank) {
                let to = devices[peer as usize];
                if *from != to && !driver::can_access_peer(*from, to)? {
                    return Err(Error::NoPeerAccess { from: *from, to });
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
        let gpus: Vec<_> = limits.iter().map(|l| (l.ordinal, l.sms)).collect();
        World::assemble(0, topology, contexts, limits, SmShares::new(&gpus), (None, None))
    }

    fn assemble(
        first: u32,
        topology: Topology,
        contexts: Vec<Arc<Context>>,
        limits: Vec<DeviceLimits>,
        shares: SmShares,
        (address, group): (Option<IpAddr>, Option<SharedGroup>),
    ) -> Result<World> {
        let (generation, in_common, kept) = (AtomicU64::new(1), OnceLock::new(), OnceLock::new());
        let inner = Inner {
            first,
            topology,
            contexts,
            limits,
            shares,
            generation,
            in_common,
            kept,
            address,
            group,
        };
        Ok(World { inner: Arc::new(inner) })
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.inner.topology.ranks()
    }

    /// Its nodes, and which ranks map each other's memory.
    pub fn topology(&self) -> &Topology {
        &self.inner.topology
    }

    /// The ranks of this process: all of them in a local world, one in a world of processes.
    pub fn local_ranks(&self) -> std::ops::Range<u32> {
        self.inner.first..self.inner.first + self.inner.contexts.len() as u32
    }

    /// Returns when every process of the world has called it. At once in a local world.
    ///
    /// # Errors
    /// [`Error::PeerSilent`] with the ranks that did not come within `limit`; [`Error::PeerGone`];
    /// [`Error::Disagree`] when a rank makes another collective call.
    pub fn barrier(&self, limit: Duration) -> Result<()> {
        let Some(group) = &self.inner.group else { return Ok(()) };
        group.all_gather("a barrier", &[], Deadline::within(limit)).map(|_| ())
    }

    /// The GPU of a rank.
    ///
    /// # Errors
    /// [`Error::Shape`] for a rank that this process does not own.
    pub fn device(&self, rank: u32) -> Result<DeviceLimits> {
        self.local_index(rank)
            .and_then(|i| self.inner.limits.get(i).copied())
            .ok_or_else(|| self.no_rank(rank))
    }

    /// The driver's name of a rank's GPU, for instance `NVIDIA H200`.
    ///
    /// # Errors
    /// As [`World::device`]; [`Error::Cuda`].
    pub fn gpu_name(&self, rank: u32) -> Result<String> {
        driver::name(self.device(rank)?.ordinal)
    }

    /// What the process of rank 0 says, on every process; in a local world `mine`. Collective: every process must call
    /// it, and names the `call` alike.
    ///
    /// # Errors
    /// As [`World::barrier`].
    pub fn from_rank_0(&self, call: &str, mine: Vec<u8>, limit: Duration) -> Result<Vec<u8>> {
        let Some(group) = &self.inner.group else { return Ok(mine) };
        let all = group.all_gather(call, &mine, Deadline::within(limit))?;
        all.into_iter().next().ok_or_else(|| Error::PeerFailed {
            rank: 0,
            during: call.into(),
            what: "its message is missing".into(),
        })
    }

    /// Tells the other processes how this one fares, and hears how they do: an error of one is an error of all. In a
    /// local world `mine`. Collective, as [`World::from_rank_0`].
    ///
    /// # Errors
    /// Its own; [`Error::PeerFailed`] with that of the lowest rank that has one; as [`World::barrier`].
    pub fn agree<T, E: From<Error> + Display>(
        &self,
        call: &str,
        mine: Result<T, E>,
        limit: Duration,
    ) -> Result<T, E> {
        self.agree_within(call, mine, Deadline::within(limit))
    }

    pub(crate) fn agree_within<T, E: From<Error> + Display>(
        &self,
        call: &str,
        mine: Result<T, E>,
        deadline: Deadline,
    ) -> Result<T, E> {
        match &self.inner.group {
            Some(group) => group.agree(call, mine, deadline),
            None => mine,
        }
    }

    pub(crate) fn context(&self, rank: u32) -> Result<&Arc<Context>> {
        self.local_index(rank)
            .and_then(|i| self.inner.contexts.get(i))
            .ok_or_else(|| self.no_rank(rank))
    }

    /// The context of the lowest rank of this process.
    pub(crate) fn first_context(&self) -> Result<&Arc<Context>> {
        self.context(self.inner.first)
    }

    /// Where a rank is among those of this process.
    pub(crate) fn local_index(&self, rank: u32) -> Option<usize> {
        let index = rank.checked_sub(self.inner.first)? as usize;
        (index < self.inner.contexts.len()).then_some(index)
    }

    /// Every GPU of this process's ranks once, by ordinal.
    pub(crate) fn distinct_contexts(&self) -> Vec<Arc<Context>> {
        let mut all = self.inner.contexts.clone();
        all.sort_by_key(|c| c.ordinal());
        all.dedup_by_key(|c| c.ordinal());
        all
    }

    /// Ranks of this world on the GPU of `rank`, itself included.
    pub(crate) fn sharing(&self, rank: u32) -> u32 {
        let contexts = &self.inner.contexts;
        let own = self.local_index(rank).and_then(|i| contexts.get(i)).map(|c| c.ordinal());
        contexts.iter().filter(|c| Some(c.ordinal()) == own).count() as u32
    }

    /// SMs that the kernel of each rank may take so that those of all ranks are resident at once, beside `reserved` SMs
    /// of every GPU that stay free for others: the SMs of a GPU, as the driver reports them, divided by the ranks that
    /// share it. The smallest share of the world, since all ranks run one plan; the same in every process.
    pub fn sm_budget(&self, reserved: u32) -> u32 {
        self.inner.shares.budget(reserved)
    }

    /// Whether some GPU has several ranks of this world.
    pub fn shares_gpus(&self) -> bool {
        self.inner.shares.any_shared()
    }

    /// What is kept for as long as the world lives.
    pub(crate) fn kept(&self) -> &OnceLock<Box<dyn Any + Send + Sync>> {
        &self.inner.kept
    }

    /// The address by which other hosts reach this one, where there are some.
    pub fn address(&self) -> Option<IpAddr> {
        self.inner.address
    }

    /// The other processes of this world, if it has some.
    pub(crate) fn group(&self) -> Option<&SharedGroup> {
        self.inner.group.as_ref()
    }

    pub(crate) fn in_common(&self) -> &OnceLock<Box<dyn Any + Send + Sync>> {
        &self.inner.in_common
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.inner.generation.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn no_rank(&self, rank: u32) -> Error {
        Error::Shape {
            what: format!(
                "rank {rank} is not one of this process's ranks, {:?}",
                self.local_ranks()
            ),
        }
    }
}

fn limits(ordinal: i32) -> Result<DeviceLimits> {
    let get = |which| driver::attribute(ordinal, which).map(|v| v.max(0) as u32);
    Ok(DeviceLimits {
        ordinal,
        sms: get(Attr::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        capability: (
            get(Attr::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(Attr::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        smem_optin_bytes: get(Attr::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        clock_khz: get(Attr::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_khz: get(Attr::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bus_bits: get(Attr::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        l2_bytes: get(Attr::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
    })
}
