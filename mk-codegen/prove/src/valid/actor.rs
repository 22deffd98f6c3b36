//! The two sides of a counterexample: who, where, and what is touched.

use mk_plan::{Agent, BufId, FamId, Mode, Operand, RoleId, RoleKind};
use std::fmt;

/// Memory that a counterexample is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Operand of the access line.
    pub operand: Operand,
    /// What it does.
    pub mode: Mode,
    /// The buffer.
    pub buffer: BufId,
    /// Its name.
    pub buffer_name: String,
    /// The rank whose memory it is.
    pub rank: usize,
    /// Base and length in each dimension.
    pub region: Vec<(i64, i64)>,
    /// Version within the epoch.
    pub version: i64,
}

/// Who does something, and where in the unrolled plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The rank that runs the task.
    pub rank: usize,
    /// The role, and what it does.
    pub role: (RoleId, RoleKind),
    /// The agent.
    pub agent: Agent,
    /// The family.
    pub family: FamId,
    /// Its name.
    pub family_name: String,
    /// Values of the domain's variables, and of the inner loop's where it matters.
    pub tile: Vec<(String, i64)>,
    /// The launch, from a symbolic base.
    pub epoch: u32,
    /// What is touched.
    pub touch: Option<Touch>,
}

/// One side of a counterexample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// A task.
    Task(Site),
    /// The caller, who writes inputs before each launch and reads outputs after it.
    Caller {
        /// On which rank.
        rank: usize,
        /// Before (writes) or after (reads) which launch.
        epoch: u32,
        /// Whether it writes.
        writes: bool,
        /// The tensor.
        buffer: BufId,
        /// Its name.
        name: String,
    },
}

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let region = super::region::text(&self.region);
        write!(
            f,
            "{} {} {} {:?} @ rank {} {region}",
            self.operand,
            self.mode.name(),
            self.buffer,
            self.buffer_name,
            self.rank
        )?;
        if self.version != 0 {
            write!(f, " version {}", self.version)?;
        }
        Ok(())
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.family, self.family_name)?;
        let tile: Vec<_> = self.tile.iter().map(|(n, v)| format!("{n}={v}")).collect();
        if !tile.is_empty() {
            write!(f, " ({})", tile.join(", "))?;
        }
        let (role, kind) = self.role;
        write!(
            f,
            ", `{}`, {role} {}, rank {}, epoch {}",
            self.agent,
            kind.name(),
            self.rank,
            self.epoch
        )?;
        match &self.touch {
            Some(touch) => write!(f, ": {touch}"),
            None => Ok(()),
        }
    }
}

impl Actor {
    /// Family and agent; nothing for a caller.
    pub(super) fn who(&self) -> Option<(FamId, Agent)> {
        match self {
            Actor::Task(site) => Some((site.family, site.agent)),
            Actor::Caller { .. } => None,
        }
    }
    /// Family and operand, for lists.
    pub(super) fn line(&self) -> String {
        match self {
            Actor::Task(Site { family, touch: Some(t), .. }) => format!("{family} {}", t.operand),
            Actor::Task(Site { family, agent, .. }) => format!("{family} `{agent}`"),
            Actor::Caller { buffer, .. } => format!("the caller's {buffer}"),
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Task(site) => site.fmt(f),
            Actor::Caller { rank, epoch, writes, buffer, name } => {
                let (when, what) = if *writes { ("before", "writes") } else { ("after", "reads") };
                write!(
                    f,
                    "the caller of rank {rank}, {when} launch {epoch}: {what} {buffer} {name:?}"
                )
            }
        }
    }
}
