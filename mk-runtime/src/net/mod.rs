//! The network of a world: an endpoint, an arena and a proxy thread for each rank of this process, leased to instances.
//!
//! An instance gets a range of every rank's arena (`Leased`), and a fifo for each of its kernels. Fifos are pinned
//! host memory. So are arenas, which the GPU then reaches over PCIe, and a card or a copying thread directly, unless
//! [`NetOptions::memory`] says that they are the GPU's. Ranges are freed when no rank
//! sends there any more: in a world of processes, when the next instance is bound and all have dropped the one before.
//!
//! A world has one network ([`Net::of`]), made when it is first needed: the best that all its processes have
//! ([`choose`]), or the one that [`Net::open`] names.

mod choice;
mod gpu;
mod options;

pub use choice::choose;
pub use gpu::GpuArena;
pub use options::{ArenaMemory, NetOptions};

use crate::env;
use crate::mem::Pinned;
use crate::proxy::{
    Arena, Attached, Counts, Ends, Engine, Fifo, Lease, NetFault, Proxy, Watch, connect,
};
use crate::transport::{Flush, NetMemory, Network, Ordering, TransportError};
use crate::world::{Deadline, World};
use crate::{Error, Result};
use mk_abi::NetLayout;
use options::PATIENCE;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

// SAFETY: pinned until it is dropped, aligned to a page.
unsafe impl NetMemory for Pinned {
    fn base(&self) -> *mut u8 {
        self.host()
    }

    fn bytes(&self) -> u64 {
        Pinned::bytes(self)
    }
}

/// Names of the collective calls.
const CALL: &str = "joining a network";
const LEASE: &str = "leasing net memory";
/// The network between the nodes of a world. Cheap to clone; closed when the last clone and the last instance are gone.
#[derive(Clone, Debug)]
pub struct Net {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The lowest rank of this process.
    first: u32,
    in_order: bool,
    drain: Duration,
    /// Before the memory that it copies from and to.
    ends: Vec<End>,
    arena: Mutex<Ranges>,
}

/// Allocation of the arenas.
#[derive(Debug)]
struct Ranges {
    arena: Arena,
    /// Ranges that this process sends nothing to any more, while others may.
    closed: Vec<Lease>,
}

impl Ranges {
    /// Takes back what all processes have closed, by the numbers that each says. All do so at the same point, and stay
    /// equal.
    fn settle(&mut self, said: &[Vec<u8>]) {
        let closed = |bytes: &Vec<u8>, instance: u32| {
            bytes.chunks_exact(4).any(|word| word == instance.to_le_bytes())
        };
        let all = |lease: &Lease| said.iter().all(|bytes| closed(bytes, lease.instance));
        let (over, kept) = self.closed.drain(..).partition(|lease| all(lease));
        self.closed = kept;
        let over: Vec<Lease> = over;
        over.iter().for_each(|lease| self.arena.take_back(lease));
    }

    fn said(&self) -> Vec<u8> {
        self.closed.iter().flat_map(|lease| lease.instance.to_le_bytes()).collect()
    }
}

#[derive(Debug)]
struct End {
    proxy: Proxy,
    memory: Memory,
}

/// A rank's arena.
#[derive(Clone, Debug)]
enum Memory {
    Host(Arc<Pinned>),
    Gpu(Arc<GpuArena>),
}

impl Memory {
    fn new(world: &World, rank: u32, options: &NetOptions) -> Result<Memory> {
        let bytes = options.arena_bytes;
        Ok(match options.memory {
            ArenaMemory::Host => {
                Memory::Host(Arc::new(Pinned::zeroed(world.context(rank)?, bytes)?))
            }
            ArenaMemory::Gpu => Memory::Gpu(Arc::new(GpuArena::new(world, rank, bytes)?)),
        })
    }

    fn registered(&self) -> Arc<dyn NetMemory> {
        match self {
            Memory::Host(memory) => memory.clone(),
            Memory::Gpu(memory) => memory.clone(),
        }
    }

    /// What kernels call its first byte.
    fn device(&self) -> u64 {
        match self {
            Memory::Host(memory) => memory.device(),
            Memory::Gpu(memory) => memory.device(),
        }
    }

    /// Words that are 0, and buffers of `poison`.
    ///
    /// # Safety
    /// The range is inside, and no card and no kernel touches it.
    unsafe fn clear(&self, base: u64, layout: &NetLayout, poison: u8) -> Result<()> {
        let behind = layout.bytes - layout.buffers;
        match self {
            Memory::Host(memory) => {
                // SAFETY: the caller's.
                unsafe {
                    let start = memory.host().add(base as usize);
                    std::ptr::write_bytes(start, 0, layout.buffers as usize);
                    let buffers = start.add(layout.buffers as usize);
                    std::ptr::write_bytes(buffers, poison, behind as usize);
                }
                Ok(())
            }
            Memory::Gpu(memory) => {
                memory.fill(base, layout.buffers, 0)?;
                memory.fill(base + layout.buffers, behind, poison)
            }
        }
    }
}

impl Net {
    /// The network of a world: the one that [`Net::open`] has made, else the best that all its processes have.
    /// Collective where it is made.
    ///
    /// # Errors
    /// As [`Net::open`]; [`TransportError::Unavailable`] where the processes have none in common, with what each lacks.
    pub fn of(world: &World) -> Result<Net> {
        match Net::kept(world) {
            Some(net) => Ok(net),
            None => {
                let memory = ArenaMemory::asked()?;
                let usual = NetOptions::default();
                let arena_bytes = env::net_bytes()?.unwrap_or(usual.arena_bytes);
                let flush = Flush::asked()?;
                let options = NetOptions { memory, arena_bytes, flush, ..usual };
                let network = choose(world)?.with_cards(env::net_cards()?.unwrap_or(1));
                Net::open(world, &network, &options)
            }
        }
    }

    /// Makes the network of a world, before anything needs it. Collective.
    ///
    /// # Errors
    /// [`Error::Shape`] for a world of one node, or one that has a network; as [`Net::over`].
    pub fn open(world: &World, network: &Network, options: &NetOptions) -> Result<Net> {
        let net = Net::over(world, network, options)?;
        match world.kept().set(Box::new(net.clone())) {
            Ok(()) => Ok(net),
            Err(_) => Err(Error::Shape { what: "the world has a network already".into() }),
        }
    }

    fn kept(world: &World) -> Option<Net> {
        world.kept().get().and_then(|kept| kept.downcast_ref::<Net>()).cloned()
    }

    /// Threads of this process that copy between the arenas of its ranks, all of which are here: to try plans over
    /// nodes on one machine.
    ///
    /// # Errors
    /// [`Error::Shape`] for a world of one node, and one of several processes; [`Error::Cuda`], [`Error::Transport`].
    pub fn loopback(world: &World, ordering: Ordering, options: &NetOptions) -> Result<Net> {
        Net::over(world, &choice::inside(ordering), options)
    }

    /// A network of a world, over what it is told. Collective in a world of processes, in which what one cannot is an
    /// error of all.
    ///
    /// # Errors
    /// [`Error::Shape`] for a world of one node, and for `loopback` between processes; [`Error::Cuda`],
    /// [`Error::Transport`].
    pub fn over(world: &World, network: &Network, options: &NetOptions) -> Result<Net> {
        let topology = *world.topology();
        if topology.nodes() < 2 {
            let what = "a network joins the ranks of several nodes, and the world has one".into();
            return Err(Error::Shape { what });
        }
        let opened = choice::ends(network, world, options);
        let opened = opened.and_then(|ends| register(world, ends, options));
        let deadline = Deadline::within(PATIENCE);
        let (mut ends, memories) = world.agree_within(CALL, opened, deadline)?;
        let mut gather = |mine: &[u8]| match world.group() {
            Some(group) => group.all_gather(CALL, mine, deadline),
            None => Ok(vec![mine.to_vec()]),
        };
        let ordering = ends.first().map(|(_, end)| end.caps().ordering);
        let local = topology.reach(world.local_ranks().start).len() as u32;
        let connected = connect(&mut ends, world.size(), local, &mut gather);
        let start = |()| {
            let all = ends.into_iter().zip(memories).map(|((rank, end), memory)| {
                let engine = Engine::new(rank, world.size(), end, memory.registered());
                Ok(End { proxy: Proxy::start(rank, engine, options.drain)?, memory })
            });
            all.collect::<Result<Vec<_>>>()
        };
        // Nobody sends before all are connected.
        let joined = world.agree_within(CALL, connected.and_then(start), deadline)?;
        let inner = Inner {
            first: world.local_ranks().start,
            in_order: ordering == Some(Ordering::InOrder),
            drain: options.drain,
            ends: joined,
            arena: Mutex::new(Ranges {
                arena: Arena::new(options.arena_bytes),
                closed: Vec::new(),
            }),
        };
        Ok(Net { inner: Arc::new(inner) })
    }

    /// Whether words follow data, so that plans are to say `net=in_order`.
    pub fn in_order(&self) -> bool {
        self.inner.in_order
    }

    /// What the proxies of this process's ranks did.
    pub fn counts(&self) -> Vec<Counts> {
        self.inner.ends.iter().map(|end| end.proxy.counts()).collect()
    }

    /// The first failure of a proxy of this process.
    pub fn fault(&self) -> Option<NetFault> {
        self.inner.ends.iter().find_map(|end| end.proxy.fault())
    }

    /// A range and fifos for a kernel. All ranks call this in the same order, and wait for each other before the first
    /// of them launches.
    pub(crate) fn lease(
        &self,
        world: &World,
        layout: &NetLayout,
        poison: u8,
        deadline: Deadline,
    ) -> Result<Leased> {
        let group = world.group();
        let said = match group {
            Some(group) => group.all_gather(LEASE, &self.ranges().said(), deadline)?,
            None => vec![self.ranges().said()],
        };
        let lease = {
            let mut ranges = self.ranges();
            ranges.settle(&said);
            ranges.arena.lease(layout.bytes)?
        };
        let leased = self.prepare(world, layout, lease, poison);
        // Nobody goes on without the others.
        world.agree_within(LEASE, leased, deadline)
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.inner.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare(
        &self,
        world: &World,
        layout: &NetLayout,
        lease: Lease,
        poison: u8,
    ) -> Result<Leased> {
        let mut leased =
            Leased { net: self.clone(), lease, fifos: Vec::new(), group: world.group().is_some() };
        for (rank, end) in (self.inner.first..).zip(&self.inner.ends) {
            // SAFETY: the range is inside the arena, and leased to nobody else: no card and no kernel touches it.
            unsafe { end.memory.clear(lease.base, layout, poison) }?;
            let fifo = Pinned::zeroed(world.context(rank)?, Fifo::bytes(layout.fifo))?;
            leased.fifos.push(Arc::new(fifo));
        }
        Ok(leased)
    }
}

/// Gives each end an arena.
fn register(world: &World, mut ends: Ends, options: &NetOptions) -> Result<(Ends, Vec<Memory>)> {
    let mut memories = Vec::new();
    for (rank, end) in &mut ends {
        let memory = Memory::new(world, *rank, options)?;
        end.register(memory.registered())?;
        memories.push(memory);
    }
    Ok((ends, memories))
}

/// What an instance has of a [`Net`]. Drop it behind its kernels.
#[derive(Debug)]
pub(crate) struct Leased {
    net: Net,
    lease: Lease,
    /// By rank of this process.
    fifos: Vec<Arc<Pinned>>,
    /// Whether other processes send there, too.
    group: bool,
}

/// What a rank's kernel is told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) instance: u32,
    pub(crate) net: u64,
    pub(crate) fifo: u64,
}

impl Leased {
    /// Where a rank's kernel finds its range and its fifo.
    pub(crate) fn place(&self, rank: u32) -> Option<Place> {
        let i = rank.checked_sub(self.net.inner.first)? as usize;
        let (end, fifo) = (self.net.inner.ends.get(i)?, self.fifos.get(i)?);
        Some(Place {
            instance: self.lease.instance,
            net: end.memory.device() + self.lease.base,
            fifo: fifo.device(),
        })
    }

    /// Has the proxies carry its commands, and watch its kernels.
    ///
    /// # Errors
    /// [`TransportError::Refused`] where the network cannot carry them as the plan says.
    pub(crate) fn attach(
        &self,
        layout: &NetLayout,
        watch: &Arc<dyn Watch>,
    ) -> Result<(), TransportError> {
        for (end, memory) in self.net.inner.ends.iter().zip(&self.fifos) {
            let fifo = Fifo::new(memory.clone(), layout.fifo)?;
            let (lease, layout, watch) = (self.lease, layout.clone(), Some(watch.clone()));
            end.proxy.attach(Attached { lease, layout, fifo, watch })?;
        }
        Ok(())
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let inner = &self.net.inner;
        for end in &inner.ends {
            match end.proxy.detach(self.lease.instance, inner.drain) {
                Ok(true) => {}
                // Somebody may still write there: nobody else gets the range.
                Ok(false) | Err(_) => {
                    tracing::warn!(
                        instance = self.lease.instance,
                        "writes of an instance did not end"
                    );
                    std::mem::forget(std::mem::take(&mut self.fifos));
                    return;
                }
            }
        }
        let mut ranges = self.net.ranges();
        ranges.closed.push(self.lease);
        if !self.group {
            let said = ranges.said();
            ranges.settle(&[said]);
        }
    }
}
