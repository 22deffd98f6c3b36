//! Plans over nodes on the CPU executor, with a real network between the nodes: what a kernel's commands, its proxy and
//! a transport do is done; only the ranks' arithmetic is the executor's. Nodes may be in several processes.

use super::{Case, CpuOptions, CpuRun, HarnessError, Result, cpu::run_by};
use mk_abi::{
    NetLayout,
    device::{NO_WORD, NetCommand, NetCommandKind},
};
use mk_codegen::{
    emit,
    plan::{NetPlan, Plan, Points, TableSet},
    sim::{self, Message},
};
use mk_runtime::{
    Bootstrap, TransportError,
    proxy::{Arena, Attached, Counts, Ends, Engine, Fifo, Lease, Proxy, Writer, connect},
    transport::{
        HostMemory, Network, Ordering, Transport, loopback, ofi,
        shaped::{Shape, Shaped},
        verbs,
    },
};
use std::{
    cell::RefCell,
    ops::Range,
    sync::{Arc, atomic::Ordering as Atomic},
    time::Duration,
};

/// What carries messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Threads of this process that copy, in the order that the plan asks for.
    Loopback,
    /// libfabric, by a provider of it (`tcp;ofi_rxm`, `shm`) and an address of an interface.
    Ofi {
        /// libfabric's name.
        provider: String,
        /// The first interface where none is named.
        address: Option<String>,
    },
    /// libibverbs. Ordering and, in order, the number of queue pairs are those of the plan.
    Verbs(verbs::Options),
}

/// How nodes are joined.
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// What carries messages.
    pub wire: Wire,
    /// A slower, less orderly or broken network than that.
    pub shape: Shape,
    /// How long a peer may take no write and deliver none.
    pub silence: Duration,
    /// How long nothing at all may happen.
    pub patience: Duration,
}

impl NetOptions {
    /// As fast as it is, 10 s of silence, 30 s of nothing.
    pub fn new(wire: Wire) -> NetOptions {
        let (silence, patience) = (Duration::from_secs(10), Duration::from_secs(30));
        NetOptions { wire, shape: Shape::default(), silence, patience }
    }
}

/// A run over a network.
#[derive(Clone, Debug)]
pub struct NetRun {
    /// What the ranks of this process did; others are not judged here.
    pub run: CpuRun,
    /// The ranks of this process.
    pub ranks: Range<usize>,
    /// What their proxies did.
    pub counts: Vec<Counts>,
}

/// Runs a plan over nodes, with a network between them. With a bootstrap each process has as many nodes, and all call
/// this with the same arguments; without one all nodes are here.
///
/// # Errors
/// As [`super::run_on_cpu`]; [`HarnessError::Transport`] where the network cannot be had or refuses the plan;
/// [`mk_codegen::sim::SimError::Network`] where it fails.
pub fn run_over_network(
    case: Case<'_>,
    plan: &Plan,
    options: &CpuOptions,
    net: &NetOptions,
    mut processes: Option<&mut dyn Bootstrap>,
) -> Result<NetRun> {
    let mut joined = None;
    let run = run_by(case, plan, options, |plan, user| {
        let ends = Joined::new(plan, net, &mut processes)?;
        let others = RefCell::new(processes.as_deref_mut());
        let network = Watched { ends, others };
        let ran = sim::run_over(plan, user, &options.executor(), &network);
        joined = Some(network.ends);
        Ok(ran?)
    })?;
    let Some(joined) = joined else { return Err(HarnessError::mismatch("a plan without a run")) };
    let ranks = joined.here();
    let counts = joined.leave(&mut processes)?;
    Ok(NetRun { run, ranks, counts })
}

/// The ranks of this process, with their ends of the network.
struct Joined {
    first: usize,
    world: u32,
    layout: NetLayout,
    launch_hash: u32,
    ranks: Vec<RankEnd>,
    patience: Duration,
}

/// What a rank's kernel would have: net memory, a fifo, and a proxy behind it.
struct RankEnd {
    memory: Arc<HostMemory>,
    lease: Lease,
    fifo: RefCell<Writer>,
    proxy: Proxy,
}

/// Ends, and the other processes, whose end is an error.
struct Watched<'p, 'b> {
    ends: Joined,
    others: RefCell<Option<&'p mut (dyn Bootstrap + 'b)>>,
}

type Processes<'p, 'b> = &'p mut Option<&'b mut dyn Bootstrap>;

/// Every process's bytes; of one process its own.
fn gather(processes: Processes<'_, '_>, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
    match processes {
        Some(all) => Ok(all.all_gather(mine)?),
        None => Ok(vec![mine.to_vec()]),
    }
}

impl Joined {
    fn new(plan: &Plan, net: &NetOptions, processes: Processes<'_, '_>) -> Result<Joined> {
        let tables = TableSet::new(plan, |_, _| Vec::new());
        let places =
            NetPlan::new(plan, &Points::new(plan, &tables)).map_err(sim::SimError::Point)?;
        let Some(NetPlan { layout, .. }) = places else {
            return Err(HarnessError::mismatch("a plan of one node sends nothing over a network"));
        };
        let world = plan.mesh.size();
        let (here, of) = match processes {
            Some(all) => (all.rank(), all.world_size()),
            None => (0, 1),
        };
        let nodes = world / layout.local;
        if of == 0 || !nodes.is_multiple_of(of) {
            let what = format!("{nodes} nodes are not as many in each of {of} processes");
            return Err(HarnessError::mismatch(what));
        }
        let each = nodes / of * layout.local;
        let ranks = here * each..(here + 1) * each;
        let mut ends = open(ranks.clone(), world, &layout, net)?;
        let memories = ends
            .iter_mut()
            .map(|(_, end)| prepare(&mut **end, &layout))
            .collect::<Result<Vec<_>, _>>()?;
        connect(&mut ends, world, layout.local, |mine| gather(processes, mine))?;
        let mut arena = Arena::new(memories.first().map_or(0, |m| m.1));
        let lease = arena.lease(layout.bytes)?;
        let mut joined = Joined {
            first: ranks.start as usize,
            world,
            launch_hash: emit::plan_hash(plan, emit::Options::default()),
            ranks: Vec::new(),
            patience: net.patience,
            layout,
        };
        for ((rank, transport), (memory, _)) in ends.into_iter().zip(memories) {
            let layout = joined.layout.clone();
            let fifo = Fifo::on_host(layout.fifo)?;
            let engine = Engine::new(rank, world, transport, memory.clone());
            let proxy = Proxy::start(rank, engine, net.silence)?;
            let writer = RefCell::new(fifo.writer());
            proxy.attach(Attached { lease, layout, fifo, watch: None })?;
            joined.ranks.push(RankEnd { memory, lease, fifo: writer, proxy });
        }
        // Nobody sends to a rank whose proxy does not know the instance yet.
        gather(processes, &[])?;
        Ok(joined)
    }

    /// The ranks of this process.
    fn here(&self) -> Range<usize> {
        self.first..self.first + self.ranks.len()
    }

    fn end(&self, rank: usize) -> &RankEnd {
        &self.ranks[rank - self.first]
    }

    /// Ends the instance everywhere before any end is closed.
    fn leave(self, processes: Processes<'_, '_>) -> Result<Vec<Counts>> {
        for end in &self.ranks {
            if !end.proxy.detach(end.lease.instance, self.patience)? {
                let what = "writes are under way that do not end".into();
                return Err(sim::SimError::Network(what).into());
            }
        }
        gather(processes, &[])?;
        let counts = self.ranks.iter().map(|end| end.proxy.counts()).collect();
        let closed: Vec<_> = self.ranks.into_iter().map(|end| end.proxy.close()).collect();
        closed.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(counts)
    }
}

/// The ends of this process's ranks.
fn open(
    ranks: Range<u32>,
    world: u32,
    layout: &NetLayout,
    net: &NetOptions,
) -> Result<Ends, TransportError> {
    let (ordering, lanes) = match layout.in_order {
        true => (Ordering::InOrder, Some(layout.lanes)),
        false => (Ordering::Unordered, None),
    };
    let silence = net.silence;
    let network = match &net.wire {
        Wire::Loopback => {
            let lanes = layout.lanes;
            Network::Loopback(loopback::Options {
                lanes,
                ..loopback::Options::new(world, ordering)
            })
        }
        Wire::Ofi { provider, address } => {
            let address = address.clone();
            Network::Ofi(ofi::Options { address, silence, ..ofi::Options::new(provider) })
        }
        Wire::Verbs(options) => {
            let queue_pairs = lanes.unwrap_or(options.queue_pairs);
            Network::Verbs(verbs::Options { ordering, queue_pairs, silence, ..options.clone() })
        }
    };
    let shaped = |end| Box::new(Shaped::new(end, net.shape.clone())) as _;
    Ok(ranks.clone().zip(network.open(ranks)?.into_iter().map(shaped)).collect())
}

/// Registers an arena: words that are 0, and memory that nobody has written.
fn prepare(
    end: &mut dyn Transport,
    layout: &NetLayout,
) -> Result<(Arc<HostMemory>, u64), TransportError> {
    let bytes = layout.bytes.max(1).next_multiple_of(4096);
    let memory = Arc::new(HostMemory::new(bytes as usize)?);
    let nan = vec![0xff; (layout.bytes - layout.buffers) as usize];
    memory.write(layout.buffers, &nan);
    end.register(memory.clone())?;
    Ok((memory, bytes))
}

impl sim::Network for Watched<'_, '_> {
    fn ranks(&self) -> Range<usize> {
        self.ends.here()
    }

    fn read(&self, rank: usize, at: u64, out: &mut [u8]) {
        let end = self.ends.end(rank);
        end.memory.read(end.lease.base + at, out);
    }

    fn write(&self, rank: usize, at: u64, bytes: &[u8]) {
        let end = self.ends.end(rank);
        end.memory.write(end.lease.base + at, bytes);
    }

    fn word(&self, rank: usize, word: u32) -> u32 {
        let end = self.ends.end(rank);
        end.memory.word(end.lease.base + 4 * u64::from(word)).load(Atomic::Acquire)
    }

    fn issue(&self, m: &Message) -> Result<bool, String> {
        let end = self.ends.end(m.rank);
        if !m.enters {
            // The peer's node has entered, or nothing would be sent; its proxy let its hash go first.
            let at =
                end.lease.base + self.ends.layout.hash(self.ends.world, m.epoch, m.peer as u32);
            let theirs = end.memory.word(at).load(Atomic::Relaxed);
            if theirs != self.ends.launch_hash {
                return Err(format!(
                    "rank {} runs another plan than rank {} in launch {} ({theirs:08x}, {:08x})",
                    m.peer, m.rank, m.epoch, self.ends.launch_hash
                ));
            }
        }
        let kind = if m.enters { NetCommandKind::Enter } else { NetCommandKind::Send };
        let bytes =
            u32::try_from(m.bytes).map_err(|_| format!("a message of {} bytes", m.bytes))?;
        let command = NetCommand {
            from: m.from,
            to: m.to,
            bytes,
            peer: m.peer as u32,
            lane: m.lane,
            instance: end.lease.instance,
            epoch: m.epoch,
            remote_word: m.remote_word.unwrap_or(NO_WORD),
            local_word: m.local_word.unwrap_or(NO_WORD),
            launch_hash: self.ends.launch_hash,
            kind: kind as u32,
            edge: m.edge,
            reserved: 0,
            seq: 0,
        };
        Ok(end.fifo.borrow_mut().push(command))
    }

    fn wait(&self, idle: Duration) -> Result<(), String> {
        if let Some(fault) = self.ends.ranks.iter().find_map(|end| end.proxy.fault()) {
            return Err(fault.to_string());
        }
        if let Some(process) = self.others.borrow_mut().as_mut().and_then(|all| all.lost()) {
            return Err(format!("process {process} is gone"));
        }
        if idle > self.ends.patience {
            return Err(format!("nothing has come for {:.1} s", idle.as_secs_f64()));
        }
        std::thread::sleep(Duration::from_micros(20));
        Ok(())
    }
}
