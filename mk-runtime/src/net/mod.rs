//! The network of a world: an end, an arena and a proxy for each rank of this process, and what instances have of them.
//!
//! An instance gets a range of every rank's arena (`Leased`), and a fifo for each of its kernels. Both are pinned memory of the host, which
//! the GPU reaches over PCIe and a card, or a thread that copies, without it. Ranges go back when no rank sends there any more.

mod gpu;

pub use gpu::GpuArena;

use crate::Error;
use crate::mem::Pinned;
use crate::proxy::{
    Arena, Attached, Counts, Ends, Engine, Fifo, Lease, NetFault, Proxy, Watch, connect,
};
use crate::transport::{
    NetMemory, Ordering, TransportError,
    loopback::{self, Fabric},
    shaped::{Shape, Shaped},
};
use crate::world::World;
use mk_abi::NetLayout;
use std::sync::{Arc, Mutex, PoisonError};
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

/// Of what a [`Net`] is made.
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// Bytes of each rank's arena, in which all its instances have their ranges.
    pub arena_bytes: u64,
    /// How long writes may take to end when an instance is dropped, or the network closed.
    pub drain: Duration,
    /// A slower, less orderly or broken network than it is.
    pub shape: Shape,
    /// Threads that copy, of the network inside a process.
    pub threads: usize,
}

impl Default for NetOptions {
    /// 256 MiB, 10 s, as fast as it is, two threads for each rank.
    fn default() -> NetOptions {
        NetOptions {
            arena_bytes: 256 << 20,
            drain: Duration::from_secs(10),
            shape: Shape::default(),
            threads: 2,
        }
    }
}

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
    arena: Mutex<Arena>,
}

#[derive(Debug)]
struct End {
    proxy: Proxy,
    memory: Arc<Pinned>,
}

impl Net {
    /// Threads of this process that copy between the arenas of its ranks, all of which are here: to try plans over nodes on one machine.
    ///
    /// # Errors
    /// [`Error::Shape`] for a world of one node, and one of several processes; [`Error::Cuda`], [`Error::Transport`].
    pub fn loopback(world: &World, ordering: Ordering, options: &NetOptions) -> Result<Net, Error> {
        if world.local_ranks() != (0..world.size()) {
            let what = "the network `loopback` joins ranks of one process".into();
            return Err(Error::Shape { what });
        }
        let lanes = loopback::Options::new(1, ordering).lanes.max(4);
        let fabric = loopback::Options {
            lanes,
            threads: options.threads.max(1) * world.size() as usize,
            ..loopback::Options::new(world.size(), ordering)
        };
        let mut fabric = Fabric::new(fabric)?;
        let mut ends = Ends::new();
        for rank in world.local_ranks() {
            let end = Shaped::new(fabric.end(rank)?, options.shape.clone());
            ends.push((rank, Box::new(end)));
        }
        Net::join(world, ends, options, |mine| Ok(vec![mine.to_vec()]))
    }

    /// Over ends that are not connected yet, one for each rank of this process. Collective, as `gather` is, which gives all processes'
    /// bytes to each.
    ///
    /// # Errors
    /// As [`Net::loopback`], and what `gather` says.
    pub fn join(
        world: &World,
        mut ends: Ends,
        options: &NetOptions,
        mut gather: impl FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Error>,
    ) -> Result<Net, Error> {
        let topology = *world.topology();
        let ordering = ends.first().map(|(_, end)| end.caps().ordering);
        if topology.nodes() < 2 || !ends.iter().map(|e| e.0).eq(world.local_ranks()) {
            let what =
                "a network joins the ranks of several nodes, and has an end for each that is here"
                    .into();
            return Err(Error::Shape { what });
        }
        let mut memories = Vec::new();
        for (rank, end) in &mut ends {
            let memory = Arc::new(Pinned::zeroed(world.context(*rank)?, options.arena_bytes)?);
            end.register(memory.clone())?;
            memories.push(memory);
        }
        let local = topology.reach(world.local_ranks().start).len() as u32;
        connect(&mut ends, world.size(), local, &mut gather)?;
        let mut joined = Vec::new();
        for ((rank, end), memory) in ends.into_iter().zip(memories) {
            let engine = Engine::new(rank, world.size(), end, memory.clone());
            joined.push(End { proxy: Proxy::start(rank, engine, options.drain)?, memory });
        }
        // Nobody sends before all are connected.
        gather(&[])?;
        let inner = Inner {
            first: world.local_ranks().start,
            in_order: ordering == Some(Ordering::InOrder),
            drain: options.drain,
            ends: joined,
            arena: Mutex::new(Arena::new(options.arena_bytes)),
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

    /// A range and fifos for a kernel. All ranks call this in the same order, and wait for each other before the first of them launches.
    pub(crate) fn lease(
        &self,
        world: &World,
        layout: &NetLayout,
        poison: u8,
    ) -> Result<Leased, Error> {
        let mut arena = self.inner.arena.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = arena.lease(layout.bytes)?;
        drop(arena);
        let mut leased = Leased { net: self.clone(), lease, fifos: Vec::new() };
        for (rank, end) in (self.inner.first..).zip(&self.inner.ends) {
            let (base, buffers) = (lease.base as usize, layout.buffers as usize);
            // SAFETY: the range is inside the arena, and leased to nobody else: no card and no kernel touches it.
            unsafe {
                let start = end.memory.host().add(base);
                std::ptr::write_bytes(start, 0, buffers);
                std::ptr::write_bytes(start.add(buffers), poison, layout.bytes as usize - buffers);
            }
            let fifo = Pinned::zeroed(world.context(rank)?, Fifo::bytes(layout.fifo))?;
            leased.fifos.push(Arc::new(fifo));
        }
        Ok(leased)
    }
}

/// What an instance has of a [`Net`]. Drop it behind its kernels.
#[derive(Debug)]
pub(crate) struct Leased {
    net: Net,
    lease: Lease,
    /// By rank of this process.
    fifos: Vec<Arc<Pinned>>,
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
        inner.arena.lock().unwrap_or_else(PoisonError::into_inner).take_back(&self.lease);
    }
}
