//! Why a run stopped.

use mk_plan::{Agent, EdgeId, FamId, Plan, PointError, SigId, StructureError, Task};
use std::fmt;
use thiserror::Error;

/// A run that did not come to its end.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SimError {
    /// The plan is not well formed.
    #[error("the plan is not well formed: {}", list(.0))]
    Structure(Vec<StructureError>),
    /// An expression has no value where the run needs it.
    #[error(transparent)]
    Point(#[from] PointError),
    /// The plan needs more than the executor gives.
    #[error("{what}: {wanted} is more than the executor's limit of {limit}")]
    TooLarge {
        /// Of what.
        what: String,
        /// How much the plan asks for, as far as it was counted.
        wanted: u64,
        /// The limit.
        limit: u64,
    },
    /// An access outside its buffer.
    #[error("{place}: {region} lies outside {buffer}")]
    OutOfBounds {
        /// Family and task.
        place: String,
        /// The buffer, with its shape.
        buffer: String,
        /// Rank, bases and lengths.
        region: String,
    },
    /// A signal word that does not exist.
    #[error("{place}: {edge} names word {index:?} of {signal}, which has shape {shape:?}")]
    NoSuchWord {
        /// Family and task.
        place: String,
        /// The wait or post.
        edge: EdgeId,
        /// The signal.
        signal: SigId,
        /// The index.
        index: Vec<i64>,
        /// Extents of the signal.
        shape: Vec<i64>,
    },
    /// A post of a negative number.
    #[error("{place}: {edge} adds {add}; signals only count up")]
    NegativePost {
        /// Family and task.
        place: String,
        /// The post.
        edge: EdgeId,
        /// How much.
        add: i64,
    },
    /// Operands of a leaf that do not fit each other.
    #[error("{place}: {message}")]
    Operands {
        /// Family and task.
        place: String,
        /// What does not fit.
        message: String,
    },
    /// The plan uses something that the executor cannot run.
    #[error("{place}: {message}")]
    Unsupported {
        /// Family.
        place: String,
        /// What.
        message: String,
    },
    /// The caller gave a tensor or table of the wrong length, or an entry outside its bounds.
    #[error("epoch {epoch}, rank {rank}: {message}")]
    Caller {
        /// The launch.
        epoch: i64,
        /// The rank.
        rank: usize,
        /// What is wrong.
        message: String,
    },
    /// The network outside the executor failed.
    #[error("the network between nodes: {0}")]
    Network(String),
    /// The schedule names a rank that the mesh lacks.
    #[error("schedule `{schedule}`: the world has {}", mk_abi::count(*world, "rank"))]
    NoSuchRank {
        /// The schedule.
        schedule: String,
        /// Number of ranks.
        world: usize,
    },
    /// An access that found another value than the one that the plan means ([`super::Options::check`]).
    #[error("{access}: {found}")]
    Violated {
        /// The access.
        access: String,
        /// What it found, and what it should have.
        found: String,
    },
    /// Nothing can go on.
    #[error(transparent)]
    Deadlock(#[from] Box<Deadlock>),
    /// The bound on steps was reached.
    #[error("not finished after {limit} steps: run fewer launches, or smaller sizes")]
    Steps {
        /// The bound.
        limit: u64,
    },
}

/// A result of this crate.
pub(crate) type Result<T, E = SimError> = std::result::Result<T, E>;

fn list(errors: &[StructureError]) -> String {
    let all: Vec<_> = errors.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// Every agent that waits for something that nobody will do.
#[derive(Clone, Debug, PartialEq, Error)]
pub struct Deadlock {
    /// Who waits for what, in order of ranks. At most [`Deadlock::SHOWN`].
    pub blocked: Vec<Blocked>,
    /// How many there are in all.
    pub total: usize,
}

impl Deadlock {
    /// Length to which the list is cut.
    pub const SHOWN: usize = 64;
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "deadlock: {}",
            if self.total == 1 {
                "1 agent waits for ever".into()
            } else {
                format!("{} agents wait for ever", self.total)
            }
        )?;
        for b in &self.blocked {
            write!(f, "\n  {b}")?;
        }
        if self.total > self.blocked.len() {
            write!(f, "\n  and {} more", self.total - self.blocked.len())?;
        }
        Ok(())
    }
}

/// An agent that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocked {
    /// Its rank.
    pub rank: usize,
    /// The launch that the rank is in.
    pub epoch: i64,
    /// Where on the rank: `cta 3`, `prologue`, `host`.
    pub place: String,
    /// The agent.
    pub agent: Agent,
    /// The family.
    pub family: FamId,
    /// Its name.
    pub name: String,
    /// Values of the domain's variables.
    pub task: Vec<i64>,
    /// What it waits for.
    pub on: WaitsFor,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} epoch {} {} {}: {} {:?} {:?} waits for {}",
            self.rank,
            self.epoch,
            self.place,
            self.agent,
            self.family,
            self.name,
            self.task,
            self.on
        )
    }
}

/// What an agent waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum WaitsFor {
    /// A signal word of its own rank.
    Signal {
        /// The wait.
        edge: EdgeId,
        /// The signal.
        signal: SigId,
        /// Which word.
        index: Vec<i64>,
        /// What it needs to see.
        expected: i64,
        /// What it sees.
        seen: i64,
    },
    /// An edge inside its task.
    Internal {
        /// The edge.
        edge: EdgeId,
        /// Its name in the leaf's contract.
        name: &'static str,
        /// The agent at its other end.
        from: Agent,
    },
    /// Room in the fifo to the host.
    Fifo,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitsFor::Signal { edge, signal, index, expected, seen } => {
                write!(f, "{edge}: {signal}{index:?} >= {expected}, which is {seen}")
            }
            WaitsFor::Internal { edge, name, from } => {
                write!(f, "{edge}: `{name}` from {from}")
            }
            WaitsFor::Fifo => f.write_str("room in the fifo"),
        }
    }
}

/// Family and task, for messages.
pub(super) fn place_of(plan: &Plan, task: &Task) -> String {
    let name = &plan.families[task.family].name;
    format!(
        "rank {} epoch {}: {} {name:?} {:?}",
        task.rank(),
        task.epoch(),
        task.family,
        task.domain()
    )
}
