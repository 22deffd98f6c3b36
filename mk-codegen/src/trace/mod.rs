//! What a traced kernel recorded, as a timeline: who worked on what, who waited for whom.
//!
//! ```text
//! a buffer by rank ──> decode (records) ──> clock (nanoseconds) ──> align (one time for all ranks) ──> Trace
//! Trace ──> json (Perfetto), svg (a picture), html (one that zooms), summary (text), chain (what the end waited for)
//! ```
//!
//! All of it is a function of its arguments; a buffer may hold anything. How to make and read a trace:
//! `docs/tracing.md`.

mod align;
mod chain;
mod clock;
mod decode;
mod html;
mod json;
mod summary;
mod svg;

pub use align::Alignment;
pub use chain::{Chain, Step, chain};
pub use html::html;
pub use json::json;
pub use summary::summary;
pub use svg::svg;

use mk_abi::{EdgeInfo, KernelSource, RoleInfo, TraceFamily};
use thiserror::Error;

/// Why a buffer is no trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The kernel records nothing.
    #[error(
        "kernel {kernel} was emitted without tracing; emit it with `Options {{ trace: true }}`"
    )]
    Untraced {
        /// The kernel.
        kernel: String,
    },
    /// There is nothing to read, or a rank that the kernel does not have.
    #[error("there is no trace of rank {rank}: the kernel has ranks 0 to {}", .world.saturating_sub(1))]
    Rank {
        /// The rank.
        rank: u32,
        /// Ranks of the kernel.
        world: u32,
    },
    /// A buffer of another size.
    #[error("the trace of rank {rank} has {given} bytes, and kernel {kernel} writes {expected}")]
    Size {
        /// The kernel.
        kernel: String,
        /// The rank.
        rank: u32,
        /// Bytes that there are.
        given: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// The kernel has not run, or not to its end.
    #[error("rank {rank} has finished no launch yet (CTA {cta} wrote nothing)")]
    NoLaunch {
        /// The rank.
        rank: u32,
        /// The CTA.
        cta: u32,
    },
    /// Parts of several launches.
    #[error(
        "the trace mixes launches {one} and {other} (rank {rank}, CTA {cta}): read it when the launch has ended on all ranks"
    )]
    Mixed {
        /// The rank.
        rank: u32,
        /// The CTA.
        cta: u32,
        /// The first epoch.
        one: u32,
        /// Another.
        other: u32,
    },
    /// Something that no kernel writes.
    #[error("the trace of rank {rank} is damaged at CTA {cta}, agent {agent}: {what}")]
    Damaged {
        /// The rank.
        rank: u32,
        /// The CTA.
        cta: u32,
        /// Place of the agent in the CTA.
        agent: u32,
        /// What is wrong.
        what: String,
    },
}

/// Name of the leaf that multiplies.
const MMA: &str = "mma_tile";
const SUM: &str = "reduce_tile";

/// What one rank brought back.
#[derive(Clone, Copy, Debug)]
pub struct RankBuffer<'a> {
    /// The rank.
    pub rank: u32,
    /// Its trace buffer.
    pub bytes: &'a [u8],
    /// Bytes from one rank's symmetric memory to the next, as the rank's GPU maps them.
    pub sym_stride_bytes: u64,
}

/// A thread of control of a CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Agent {
    /// Fills the ring.
    Loader,
    /// Sends tiles, or writes copies.
    Storer,
    /// Announces the launch.
    Enter,
    /// The CTA as a whole.
    Frame,
    /// A warpgroup that computes, or adds up; the first also copies.
    Compute(u32),
}

impl Agent {
    fn new(place: u32) -> Agent {
        match place {
            0 => Agent::Loader,
            1 => Agent::Storer,
            2 => Agent::Enter,
            3 => Agent::Frame,
            n => Agent::Compute(n - 4),
        }
    }

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Agent::Loader => "loader",
            Agent::Storer => "storer",
            Agent::Enter => "enter",
            Agent::Frame => "cta",
            Agent::Compute(0) => "compute 0",
            Agent::Compute(_) => "compute 1",
        }
    }

    fn place(self) -> u32 {
        match self {
            Agent::Loader => 0,
            Agent::Storer => 1,
            Agent::Enter => 2,
            Agent::Frame => 3,
            Agent::Compute(n) => 4 + n,
        }
    }
}

/// A signal word: whose memory it is in, and at which byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word {
    /// Whose.
    pub rank: u32,
    /// Bytes from the start of the rank's symmetric memory.
    pub offset: u64,
}

/// What an agent did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// The CTA was in the kernel.
    Cta,
    /// A task.
    Task {
        /// The family.
        family: u32,
        /// Linear index in the role.
        task: u32,
        /// Nanoseconds at internal edges: `drained` second, all others first.
        stalled: [f64; 2],
    },
    /// A wait for a signal.
    Wait {
        /// The family.
        family: u32,
        /// The edge.
        edge: u32,
        /// The task.
        task: u32,
        /// The word.
        on: Word,
        /// Whether it is the launch before that the wait asks for.
        before: bool,
    },
    /// A post, from before the word was raised.
    Post {
        /// The family.
        family: u32,
        /// The edge.
        edge: u32,
        /// The task.
        task: u32,
        /// The word.
        to: Word,
    },
    /// The posts of a rank's entry, one to each rank.
    Enter {
        /// The edge.
        edge: u32,
        /// The byte in every rank's symmetric memory.
        offset: u64,
    },
}

/// Something with a begin and an end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The rank.
    pub rank: u32,
    /// The CTA.
    pub cta: u32,
    /// Who.
    pub agent: Agent,
    /// What.
    pub what: What,
    /// Nanoseconds since the first CTA of any rank began.
    pub begin: f64,
    /// Likewise.
    pub end: f64,
}

impl Span {
    /// Nanoseconds.
    pub fn length(&self) -> f64 {
        self.end - self.begin
    }
}

/// What is known of a rank's clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankClock {
    /// The rank.
    pub rank: u32,
    /// Nanoseconds from one tick of its timer to the next, as seen in the records.
    pub tick_ns: u64,
    /// Cycles per microsecond.
    pub mhz: f64,
    /// Records that no longer were in a ring.
    pub lost: u64,
    /// Records that were made after one with a later time: the timer went back.
    pub disordered: u64,
}

/// One launch on some or all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The kernel.
    pub name: String,
    /// Ranks of the kernel.
    pub world: u32,
    /// Which launch.
    pub epoch: u32,
    /// The kernel's roles.
    pub roles: Vec<RoleInfo>,
    /// The plan's families.
    pub families: Vec<TraceFamily>,
    /// The plan's waits.
    pub edges: Vec<EdgeInfo>,
    /// Those of them that wait for a rank's entry.
    pub entry_edges: Vec<u32>,
    /// Of each rank that brought a buffer.
    pub clocks: Vec<RankClock>,
    /// How the ranks' timers were brought together.
    pub alignment: Alignment,
    /// By rank, CTA, agent and end.
    pub spans: Vec<Span>,
}

/// Reads the buffers of some or all ranks after a launch.
///
/// # Errors
/// [`TraceError`], for whatever a kernel cannot have written; a full ring is none ([`RankClock::lost`]).
pub fn read(source: &KernelSource, buffers: &[RankBuffer<'_>]) -> Result<Trace, TraceError> {
    let Some(layout) = &source.trace else {
        return Err(TraceError::Untraced { kernel: source.name.clone() });
    };
    let (mut spans, mut clocks, mut epoch) = (Vec::new(), Vec::new(), None);
    if buffers.is_empty() {
        return Err(TraceError::Rank { rank: 0, world: source.world_size });
    }
    let mut decoded = Vec::new();
    for buffer in buffers {
        decoded.push((buffer.rank, decode::decode(source, layout, buffer, &mut epoch)?));
    }
    // Timers count from long ago, which leaves a float no digits for nanoseconds.
    let readings = decoded.iter().flat_map(|(_, d)| &d.records).map(|r| r.at_ns);
    let base = readings.min().unwrap_or(0);
    for (rank, decoded) in &decoded {
        let (rank_spans, clock) = clock::spans(*rank, decoded, base);
        spans.extend(rank_spans);
        clocks.push(clock);
    }
    let alignment = align::align(&mut spans, &clocks, source.world_size);
    let first = |s: &Span| if s.what == What::Cta { s.begin } else { f64::INFINITY };
    let zero = spans.iter().map(first).fold(f64::INFINITY, f64::min);
    for s in &mut spans {
        s.begin -= zero;
        s.end -= zero;
    }
    let place = |s: &Span| (s.rank, s.cta, s.agent);
    spans.sort_by(|a, b| place(a).cmp(&place(b)).then(a.end.total_cmp(&b.end)));
    Ok(Trace {
        name: source.name.clone(),
        world: source.world_size,
        epoch: epoch.unwrap_or(0),
        roles: source.roles.clone(),
        families: layout.families.clone(),
        edges: source.edges.clone(),
        entry_edges: layout.entry_edges.clone(),
        clocks,
        alignment,
        spans,
    })
}

/// The waits among some spans, each agent's made disjoint: lanes of a copier wait side by side.
fn disjoint_waits<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<Span> {
    let mut waits: Vec<Span> =
        spans.filter(|s| matches!(s.what, What::Wait { .. })).copied().collect();
    let agent = |s: &Span| (s.rank, s.cta, s.agent);
    waits.sort_by(|a, b| agent(a).cmp(&agent(b)).then(a.begin.total_cmp(&b.begin)));
    waits.dedup_by(|next, last| {
        let joins = agent(next) == agent(last) && next.begin <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    waits
}

impl Trace {
    /// Nanoseconds from the first CTA's begin to the last one's end.
    pub fn length(&self) -> f64 {
        self.spans.iter().filter(|s| s.what == What::Cta).map(|s| s.end).fold(0.0, f64::max)
    }

    /// The ranks that it is of, in order.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.clocks.iter().map(|c| c.rank)
    }

    /// Name of a family.
    pub fn family(&self, id: u32) -> &str {
        self.families.iter().find(|f| f.id == id).map_or("?", |f| f.name.as_str())
    }

    /// What the plan says of a wait.
    pub fn edge(&self, id: u32) -> &str {
        self.edges.iter().find(|e| e.id == id).map_or("", |e| e.text.as_str())
    }

    /// The role of a CTA.
    pub fn role(&self, cta: u32) -> Option<usize> {
        self.roles.iter().position(|r| (r.first_cta..r.first_cta + r.ctas).contains(&cta))
    }

    /// Name of the role of a CTA.
    pub fn role_name(&self, cta: u32) -> &str {
        self.role(cta).and_then(|r| self.roles.get(r)).map_or("?", |r| r.name.as_str())
    }

    /// Whether a task's span is that of the agent that does the work: the one that computes, or else the one that
    /// writes.
    pub fn is_work(&self, span: &Span) -> bool {
        let What::Task { family, .. } = span.what else { return false };
        let family = self.families.iter().find(|f| f.id == family);
        let product = family.is_some_and(|f| f.leaf == MMA);
        let sums = family.is_some_and(|f| f.leaf == SUM);
        let ring = family.is_some_and(|f| !f.edges.is_empty());
        match span.agent {
            // One lane of two warpgroups speaks for both where they copy.
            Agent::Compute(n) => n == 0 || product || sums,
            Agent::Storer => ring && !product,
            _ => false,
        }
    }
}
