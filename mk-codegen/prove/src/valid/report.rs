//! What the verifier says: a [`Proof`], or a [`Failure`] made of counterexamples.

use super::actor::Actor;
use mk_abi::count;
use mk_plan::{BufId, DimId, EdgeId, EvalError, Plan, PointError, StructureError};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt};
use thiserror::Error;

/// One violation of one rule, as a counterexample.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The plan is not well formed.
    #[error("{0}")]
    Structure(StructureError),
    /// Rule 1: two overlapping accesses, and nothing orders them.
    #[error(
        "race: nothing orders\n    {before}\nbefore\n    {after}\n{missing}{}",
        likewise_text(likewise)
    )]
    Race {
        /// What must come first.
        before: Box<Actor>,
        /// What must come later.
        after: Box<Actor>,
        /// Which edges there are, and which one is missing.
        missing: String,
        /// Other pairs of access lines that the same edge would order.
        likewise: Vec<String>,
    },
    /// Rule 2: agents that wait for each other.
    #[error("deadlock:\n    {}", stuck.join("\n    "))]
    Deadlock {
        /// Each line waits for the next; the last one closes the circle or says why it never comes.
        stuck: Vec<String>,
    },
    /// Rule 2: CTAs that wait for each other but cannot all be resident.
    #[error("{ctas} CTAs, but {target} has {sms} SMs: they are never all resident")]
    NotResident {
        /// CTAs of all roles.
        ctas: u32,
        /// SMs.
        sms: u32,
        /// The machine.
        target: String,
    },
    /// Rule 2: whether the plan ends depends on an order that nothing fixes.
    #[error("{place}: {message}")]
    HostOrder {
        /// Family and edge.
        place: String,
        /// Why.
        message: String,
    },
    /// Rule 3: what one epoch posts to a word is not what the wait counts.
    #[error("{wait}: {waiter} waits for {count} an epoch on {word}, {posted}")]
    Threshold {
        /// The wait.
        wait: EdgeId,
        /// Who waits.
        waiter: String,
        /// The word.
        word: String,
        /// The wait's count.
        count: i64,
        /// What is posted, by whom.
        posted: String,
    },
    /// Rule 3: several ranks post to one word.
    #[error(
        "{word} is posted by several ranks: {producers}; a rank one launch ahead would stand in for a late one: give \
         each rank a word of its own"
    )]
    Producers {
        /// The word.
        word: String,
        /// Who posts.
        producers: String,
    },
    /// Rule 3: a wait or post that cannot mean what it says.
    #[error("{place}: {message}")]
    Signalling {
        /// Family and edge.
        place: String,
        /// Why.
        message: String,
    },
    /// Rule 4: a path orders two accesses, but something on it is too weak for them.
    #[error(
        "{edge} is too weak to order\n    {before}\nbefore\n    {after}\n{why}{}",
        likewise_text(likewise)
    )]
    Insufficient {
        /// What must come first.
        before: Box<Actor>,
        /// What must come later.
        after: Box<Actor>,
        /// The wait or post.
        edge: EdgeId,
        /// What is insufficient, and what would do.
        why: String,
        /// Other pairs of access lines that rely on it.
        likewise: Vec<String>,
    },
    /// Rule 5: a read of memory that its own epoch and version did not write.
    #[error(
        "stale read: {read}\nof which {missing} is not written by epoch and version of the read"
    )]
    Uncovered {
        /// The read, or the accumulation.
        read: Box<Actor>,
        /// A part that nobody writes.
        missing: String,
    },
    /// Rule 5: a write to memory of contributions that no access of its own epoch and version reads, or goes on from: a
    /// sum lacks it.
    #[error("lost write: {write}\nof which {missing} is read by nobody in its epoch and version")]
    Unread {
        /// The write.
        write: Box<Actor>,
        /// A part that nobody reads.
        missing: String,
    },
    /// Rule 5: two writes of the same epoch and version overlap.
    #[error(
        "written twice:\n    {first}\nand\n    {second}\nboth write {common} in the same epoch and version"
    )]
    WrittenTwice {
        /// One write.
        first: Box<Actor>,
        /// The other.
        second: Box<Actor>,
        /// The common part.
        common: String,
    },
    /// Rule 5: an output that is not written exactly once.
    #[error("output {buffer} {name:?} of rank {rank}: {message}")]
    Output {
        /// The rank.
        rank: usize,
        /// The buffer.
        buffer: BufId,
        /// Its name.
        name: String,
        /// What is missing or too much.
        message: String,
    },
    /// Rule 5: something that depends on run-time tables and is not shown for every table.
    #[error("{place}: not shown for every table: {message}")]
    Ragged {
        /// Family and line.
        place: String,
        /// What fails, and for which counts.
        message: String,
    },
    /// Rule 6: something that is not proved for all values of the run-time dimension.
    #[error("{place}: not proved for every value: {message}")]
    RunTime {
        /// The entity, or family and line.
        place: String,
        /// What depends on the dimension how, and what to do.
        message: String,
    },
    /// Rule 6: an expression without a value.
    #[error("{0}")]
    Point(PointError),
    /// Rule 6: an access outside its buffer.
    #[error("{access}\nis outside its buffer, which is {shape:?} there")]
    Bounds {
        /// The access.
        access: Box<Actor>,
        /// Extents of the buffer.
        shape: Vec<i64>,
    },
    /// Rule 6: something that does not fit.
    #[error("{place}: {message}")]
    Capacity {
        /// The entity.
        place: String,
        /// What does not fit, and the limit.
        message: String,
    },
    /// Rule 6: more than the verifier unrolls.
    #[error("{what}: more than {limit}; this verifier decides no larger plan")]
    Limit {
        /// What there is too much of.
        what: String,
        /// The documented bound.
        limit: u64,
    },
}

impl Violation {
    /// The rule (1 to 6) of the verifier's header that is violated; 0 for a plan that is not well formed.
    pub fn rule(&self) -> u8 {
        use Violation::*;
        match self {
            Structure(_) => 0,
            Race { .. } => 1,
            Deadlock { .. } | NotResident { .. } | HostOrder { .. } => 2,
            Threshold { .. } | Producers { .. } | Signalling { .. } => 3,
            Insufficient { .. } => 4,
            Uncovered { .. }
            | Unread { .. }
            | WrittenTwice { .. }
            | Output { .. }
            | Ragged { .. } => 5,
            RunTime { .. } | Point(_) | Bounds { .. } | Capacity { .. } | Limit { .. } => 6,
        }
    }
}

impl Violation {
    /// Whether nothing is wrong but that a plan is larger than a limit, that of 32 bits included.
    pub fn is_too_large(&self) -> bool {
        match self {
            Violation::Limit { .. } => true,
            Violation::Structure(e) => e.too_large,
            Violation::Point(e) => matches!(e.source, EvalError::Overflow(..)),
            _ => false,
        }
    }

    /// Takes another violation up into this one if the same missing or weak edge explains both.
    fn absorb(&mut self, other: &Violation) -> bool {
        use Violation::{Insufficient, Race};
        let (list, before, after) = match (self, other) {
            (Race { after: mine, before: first, likewise, .. }, Race { before, after, .. })
                if mine.who() == after.who() && first.who().is_some() == before.who().is_some() =>
            {
                (likewise, before, after)
            }
            (
                Insufficient { edge: mine, likewise, .. },
                Insufficient { edge, before, after, .. },
            ) if mine == edge => (likewise, before, after),
            _ => return false,
        };
        let pair = format!("{} before {}", before.line(), after.line());
        if !list.contains(&pair) {
            list.push(pair);
        }
        true
    }
}

fn likewise_text(list: &[String]) -> String {
    if list.is_empty() { String::new() } else { format!("\nlikewise: {}", list.join("; ")) }
}

/// Why a plan is refused: at most [`Failure::MAX`] violations, each about another mistake as far as that can be told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Failure {
    /// Name of the plan.
    pub plan: String,
    /// The value of the run-time dimension with which they are, if it is about one.
    pub at: Option<AtValue>,
    /// The violations, by rule.
    pub violations: Vec<Violation>,
}

/// A value of a plan's run-time dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtValue {
    /// The dimension.
    pub dim: DimId,
    /// Its name.
    pub name: String,
    /// The value.
    pub value: i32,
}

impl Failure {
    /// Most violations that are reported.
    pub const MAX: usize = 20;

    pub(super) fn of(plan: &Plan, mut violations: Vec<Violation>) -> Failure {
        violations.sort_by_key(Violation::rule);
        violations.dedup();
        let mut distinct: Vec<Violation> = Vec::new();
        for v in violations {
            if !distinct.iter_mut().any(|d| d.absorb(&v)) && distinct.len() < Failure::MAX {
                distinct.push(v);
            }
        }
        Failure { plan: plan.name.clone(), at: None, violations: distinct }
    }

    /// The same, of a plan with a value of its run-time dimension.
    pub(super) fn with(self, plan: &Plan, dim: DimId, value: i32) -> Failure {
        let name = plan.dims[dim].name.clone();
        Failure { at: Some(AtValue { dim, name, value }), ..self }
    }

    /// The plan, of which this is a failure, with the value that it is about.
    pub fn plan_at(&self, plan: &Plan) -> Plan {
        self.at.as_ref().map_or_else(|| plan.clone(), |at| plan.at(at.dim, at.value))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.violations.len();
        let at = self.at.as_ref().map(|at| format!(" with {} = {}", at.name, at.value));
        let at = at.unwrap_or_default();
        writeln!(f, "plan {:?} is refused{at} ({n} violation{})", self.plan, plural(n))?;
        for v in &self.violations {
            let text = format!("rule {}: {v}", v.rule()).replace('\n', "\n  ");
            writeln!(f, "{text}")?;
        }
        Ok(())
    }
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// What was proved, in figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// Name of the plan.
    pub plan: String,
    /// Tasks of one epoch, on all ranks.
    pub tasks: usize,
    /// Accesses of one epoch, on all ranks.
    pub accesses: usize,
    /// Epochs that were unrolled.
    pub epochs: u32,
    /// After how many epochs the plan repeats.
    pub period: u32,
    /// Pairs of overlapping accesses that are ordered, callers included.
    pub pairs: u64,
    /// Of these, the pairs that needed a path through signals within an epoch, not only kernel boundaries.
    pub searched: u64,
    /// Waits that some proof relies on.
    pub waits_used: Vec<EdgeId>,
    /// Waits that no proof relies on: they may be there for speed, or for nothing.
    pub waits_unused: Vec<EdgeId>,
    /// Sets of run-time tables on which all rules were run; 1 if the plan has none.
    pub tables: usize,
    /// Counts for which ragged regions were shown disjoint and complete.
    pub counts: u64,
    /// Whether those were all counts that the tables allow.
    pub exhaustive: bool,
    /// Whether ranks are alike, so that one stood for all.
    pub folded: bool,
    /// Buffers of workspace whose memory other kernels may not write between launches.
    pub exclusive: BTreeSet<BufId>,
    /// The run-time dimension for all of whose values this holds, if there is one.
    pub values: Option<OverValues>,
    /// The run-time dimension at some of whose values this was looked at, where tables come with each launch, too.
    pub sampled: Option<Sampled>,
    /// Whether this is about smaller plans that lead to the plan; the figures are theirs.
    pub scaled: Option<Scaled>,
}

/// Smaller plans that were proved in place of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaled {
    /// How many.
    pub relatives: usize,
}

/// All values of a run-time dimension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverValues {
    /// The dimension's name.
    pub name: String,
    /// Its bound: the values are `1..=max`.
    pub max: i64,
    /// Sets of values for which tasks, waits and posts are the same.
    pub cells: usize,
}

/// Some values of a run-time dimension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampled {
    /// The dimension's name.
    pub name: String,
    /// Its bound.
    pub max: i64,
    /// The values, the bound first.
    pub values: Vec<i64>,
}

impl Proof {
    /// As one line, for [`Proof::read`].
    pub fn write(&self) -> String {
        // Numbers, strings and lists only: nothing that JSON does not have.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What [`Proof::write`] wrote; `None` of any other text.
    pub fn read(line: &str) -> Option<Proof> {
        serde_json::from_str(line).ok()
    }

    /// Sorts a plan's waits into those that were used, and the others.
    pub(super) fn name_waits(&mut self, plan: &Plan, used: BTreeSet<EdgeId>) {
        let all: BTreeSet<EdgeId> =
            plan.families.values().flat_map(|x| x.waits.iter().map(|w| w.edge)).collect();
        self.waits_unused = all.difference(&used).copied().collect();
        self.waits_used = used.into_iter().collect();
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "plan {:?}: {} and {} an epoch, {} (period {})",
            self.plan,
            count(self.tasks, "task"),
            count(self.accesses, "access"),
            count(self.epochs, "epoch"),
            self.period
        )?;
        writeln!(
            f,
            "  {} ordered, {} of them by a path of signals",
            count(self.pairs, "pair"),
            self.searched
        )?;
        let list = |edges: &[EdgeId]| {
            let names: Vec<_> = edges.iter().map(EdgeId::to_string).collect();
            if names.is_empty() { "none".to_string() } else { names.join(" ") }
        };
        writeln!(
            f,
            "  waits used: {}; not used: {}",
            list(&self.waits_used),
            list(&self.waits_unused)
        )?;
        if let Some(OverValues { name, max, .. }) = &self.values {
            writeln!(f, "  for every {name} in 1..={max}, another one in each launch")?;
        }
        if let Some(Sampled { name, max, values }) = &self.sampled {
            let values: Vec<_> = values.iter().map(i64::to_string).collect();
            writeln!(
                f,
                "  for {name} = {} (NOT every one up to {max}), by themselves and in turns",
                values.join(", ")
            )?;
        }
        if let Some(Scaled { relatives }) = &self.scaled {
            writeln!(
                f,
                "  of {relatives} smaller plans that lead to it; in the plan itself the ends of all loops"
            )?;
        }
        if self.counts > 0 {
            let all = if self.exhaustive { "every" } else { "NOT every" };
            writeln!(
                f,
                "  ragged: {} counts ({all} one that the tables allow), {} sets of tables",
                self.counts, self.tables
            )?;
        }
        if !self.exclusive.is_empty() {
            let names: Vec<_> = self.exclusive.iter().map(BufId::to_string).collect();
            writeln!(
                f,
                "  not to be written by other kernels between launches: {}",
                names.join(" ")
            )?;
        }
        Ok(())
    }
}

/// What is wrong with a plan; with a run-time dimension also values of it with which it may be.
#[derive(Default)]
pub(super) struct Found {
    pub violations: Vec<Violation>,
    pub values: Vec<i64>,
}

impl From<Vec<Violation>> for Found {
    fn from(violations: Vec<Violation>) -> Found {
        Found { violations, values: Vec::new() }
    }
}
