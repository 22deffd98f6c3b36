//! Flows between families: signals before there are signals.
//!
//! A flow is an array of words that one side raises and the other waits for. Its two ends are families by operand: a
//! [`Writer`] raises words when what it does through its operand is done, a [`Reader`] waits before its operand is
//! touched. Of an operand that is written this hands over data. Of one that is read it hands back memory: a *credit*,
//! whose writer is the reader of the data and whose reader writes them again.
//!
//! Agents, completions, scopes and proxies of both ends follow from the leaves' contracts and the network
//! (`passes/signals`); the optional fields are for flows that need others.

use crate::passes::shape::ranks::own_rank;
use mk_plan::{Access, Agent, Completion, Each, Entity, Expr, FamId, Operand, Point, Var};
use std::fmt;

/// A flow of a draft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::passes) struct FlowId(u32);

impl Entity for FlowId {
    const PREFIX: &'static str = "flow";
    fn new(index: usize) -> Self {
        FlowId(u32::try_from(index).unwrap_or(u32::MAX))
    }
    fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.0)
    }
}

/// Data, or room for them, handed over word by word.
#[derive(Clone)]
pub(in crate::passes) struct Flow {
    /// Name of the signal.
    pub name: &'static str,
    /// Extents of its array.
    pub shape: Vec<Expr>,
    pub from: Vec<Writer>,
    /// Sum of the posts to each word in each launch. Over the variables of a reader, where words differ.
    pub count: Expr,
    pub to: Vec<Reader>,
}

/// A family that raises words of a flow.
#[derive(Clone)]
pub(in crate::passes) struct Writer {
    pub family: FamId,
    /// The operand whose accesses are done; that of a leaf that only signals is not looked at.
    pub operand: Operand,
    /// The word that a task raises, and on which rank.
    pub word: Vec<Expr>,
    pub rank: Expr,
    pub each: Option<Each>,
    pub when: Option<Expr>,
    /// By how much: rows, where a word counts rows and another family posts the credit for those that are missing.
    pub amount: Expr,
    /// When in the task.
    pub at: Point,
    /// The agent that posts, where it is not the last one of the leaf.
    pub by: Option<Agent>,
    /// The completion that it posts after, where it is not the least that the operand's accesses need.
    pub after: Option<Completion>,
}

/// A family that waits for words of a flow.
#[derive(Clone)]
pub(in crate::passes) struct Reader {
    pub family: FamId,
    /// The operand that needs the data or the room, which decides the agent that waits.
    pub operand: Operand,
    pub word: Vec<Expr>,
    pub each: Option<Each>,
    pub when: Option<Expr>,
    /// When in the task; at each iteration of the inner loop, where word or condition name it, else at the start.
    pub at: Option<Point>,
    /// The agent that waits, where it is not the one that brings the operand.
    pub by: Option<Agent>,
    /// Launches back: 1 for memory that is handed back in the launch before.
    pub lag: u32,
}

/// A place from which an operand is read, with the words that announce the data there.
///
/// An operand may have several, each with a condition: this rank's memory, a peer's data, another node's. Their
/// conditions exclude each other.
pub(in crate::passes) struct Source {
    pub access: Access,
    /// None for data that lie there when the kernel begins.
    pub arrivals: Vec<Arrival>,
}

/// Words of a flow that stand for the data of a source.
pub(in crate::passes) struct Arrival {
    pub flow: FlowId,
    pub word: Vec<Expr>,
    /// Repetition; that of the access, where the word or the condition names it.
    pub each: Option<Each>,
    /// The condition of the access, unless it is another one.
    pub when: Option<Expr>,
}

impl Flow {
    /// Words that these families raise. Readers come with [`Draft::read`](super::Draft::read).
    pub fn new(name: &'static str, shape: Vec<Expr>, count: Expr, from: Vec<Writer>) -> Flow {
        Flow { name, shape, from, count, to: Vec::new() }
    }
}

impl Writer {
    /// One post at the end of each task, on this rank.
    pub fn new(family: FamId, operand: Operand, word: Vec<Expr>) -> Writer {
        Writer {
            family,
            operand,
            word,
            rank: own_rank(),
            each: None,
            when: None,
            amount: 1.into(),
            at: Point::End,
            by: None,
            after: None,
        }
    }

    /// On another rank.
    pub fn on(self, rank: Expr) -> Writer {
        Writer { rank, ..self }
    }

    /// On several ranks, where there are some.
    pub fn on_each(self, ranks: impl Into<Option<(Expr, Each)>>) -> Writer {
        match ranks.into() {
            Some((rank, each)) => Writer { rank, each: Some(each), ..self },
            None => self,
        }
    }

    /// Of some tasks only.
    pub fn when(self, when: Option<Expr>) -> Writer {
        Writer { when, ..self }
    }
}

impl Reader {
    /// One word, before the operand is touched.
    pub fn new(family: FamId, operand: Operand, word: Vec<Expr>) -> Reader {
        Reader { family, operand, word, each: None, when: None, at: None, by: None, lag: 0 }
    }

    /// Of some tasks only.
    pub fn when(self, when: Option<Expr>) -> Reader {
        Reader { when, ..self }
    }
}

impl Source {
    /// Data that one word announces, or each repetition of the access by one.
    pub fn behind(access: Access, flow: FlowId, word: Vec<Expr>) -> Source {
        Source { access, arrivals: vec![Arrival::new(flow, word)] }
    }

    /// Its words are awaited under this condition, whichever data are read.
    pub fn whether(mut self, when: Expr) -> Source {
        self.arrivals.iter_mut().for_each(|arrival| arrival.when = Some(when.clone()));
        self
    }
}

impl From<Access> for Source {
    fn from(access: Access) -> Source {
        Source { access, arrivals: Vec::new() }
    }
}

impl Arrival {
    /// A word for all that the access reads, or one for each repetition.
    pub fn new(flow: FlowId, word: Vec<Expr>) -> Arrival {
        Arrival { flow, word, each: None, when: None }
    }

    /// The end of the flow at a family that reads the source.
    pub(super) fn reader(self, family: FamId, access: &Access) -> (FlowId, Reader) {
        let Arrival { flow, word, each, when } = self;
        let when = when.or_else(|| {
            // One word for all repetitions is awaited, whichever of them there are.
            let of_each = |when: &Expr| when.mentions(Var::EACH);
            let named = word.iter().any(|e| e.mentions(Var::EACH));
            access.when.clone().filter(|when| named || !of_each(when))
        });
        let repeated = word.iter().chain(&when).any(|e| e.mentions(Var::EACH));
        let each = each.or_else(|| access.each.clone().filter(|_| repeated));
        (flow, Reader { each, when, ..Reader::new(family, access.operand, word) })
    }
}
