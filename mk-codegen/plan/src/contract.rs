//! Contracts of leaves.
//!
//! A CTA is not a sequential program: a loader runs tiles ahead of its consumers, a storer behind them. A contract says
//! which agents a leaf has, who performs each access through which proxy, and which edges inside the leaf order them.
//! The verifier knows a leaf by its contract alone; the templates implement it.

use super::{
    epilogue::{EPILOGUE_OPERANDS, EpilogueOp},
    names::{Agent, Mode, Operand, Point, Proxy},
};
use mk_abi::DType;

/// An access that a leaf performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandSpec {
    /// Which.
    pub operand: Operand,
    /// Read or write.
    pub mode: Mode,
    /// By whom.
    pub agent: Agent,
    /// Through which proxy.
    pub proxy: Proxy,
    /// How many accesses may name it.
    pub arity: Arity,
}

/// How many accesses name an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly one.
    One,
    /// None or one.
    Optional,
    /// One or more. Of an operand that is one tile at each step, conditions choose one.
    Many,
    /// None, one or more.
    Any,
}

/// An edge between two agents of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeSpec {
    /// Name in the plan.
    pub name: &'static str,
    /// Who arrives.
    pub from: Agent,
    /// Who waits.
    pub to: Agent,
    /// Whether the wait is followed (or the arrival preceded) by a proxy fence, so that the async proxy may touch what
    /// the generic proxy wrote.
    pub proxy_fence: bool,
    /// `None`: data flows from task step to the same step. `Some(depth)`: back-pressure, `from` at step n allows `to`
    /// at step n + depth.
    pub depth: Option<u32>,
    /// Whether the steps of back-pressure are tasks, and not iterations of their inner loop.
    pub per_task: bool,
}

/// The contract of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// Agents, in the order in which data passes through them.
    pub agents: Vec<Agent>,
    /// Accesses.
    pub operands: Vec<OperandSpec>,
    /// Internal edges.
    pub edges: Vec<EdgeSpec>,
    /// Shared memory that one CTA needs for this leaf, in bytes.
    pub smem_bytes: u32,
}

impl OperandSpec {
    pub(crate) fn new(
        operand: Operand,
        mode: Mode,
        agent: Agent,
        proxy: Proxy,
        arity: Arity,
    ) -> OperandSpec {
        OperandSpec { operand, mode, agent, proxy, arity }
    }

    /// What an agent looks up.
    pub(crate) fn tab(agent: Agent) -> OperandSpec {
        OperandSpec::new(Operand::Tab, Mode::Read, agent, Proxy::Generic, Arity::Any)
    }

    /// Operands of an epilogue's operations, each touched once.
    pub(crate) fn tails(
        epilogue: &[EpilogueOp],
        agent: Agent,
    ) -> impl Iterator<Item = OperandSpec> {
        let modes = epilogue.iter().filter_map(|op| op.operand());
        EPILOGUE_OPERANDS
            .into_iter()
            .zip(modes)
            .map(move |(e, mode)| OperandSpec::new(e, mode, agent, Proxy::Generic, Arity::One))
    }
}

impl EdgeSpec {
    /// Data flows.
    pub(crate) fn flow(name: &'static str, from: Agent, to: Agent) -> EdgeSpec {
        EdgeSpec { name, from, to, proxy_fence: false, depth: None, per_task: false }
    }

    /// A stage goes back.
    pub(crate) fn back(name: &'static str, from: Agent, to: Agent, depth: u32) -> EdgeSpec {
        EdgeSpec { depth: Some(depth), ..EdgeSpec::flow(name, from, to) }
    }

    /// What there is one of goes back, once a task.
    pub(crate) fn once(name: &'static str, from: Agent, to: Agent) -> EdgeSpec {
        EdgeSpec { per_task: true, ..EdgeSpec::back(name, from, to, 1) }
    }
}

impl Contract {
    /// Of a leaf whose one agent reads and writes by itself.
    pub(crate) fn of_one(agent: Agent, operands: Vec<OperandSpec>) -> Contract {
        Contract { agents: vec![agent], operands, edges: vec![], smem_bytes: 0 }
    }

    /// The specification of an operand, if the leaf has it.
    pub fn operand(&self, operand: Operand) -> Option<&OperandSpec> {
        self.operands.iter().find(|o| o.operand == operand)
    }
}

/// Where in a task a leaf does what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Accesses. An operand that is not listed is nowhere.
    pub operands: Vec<(Operand, &'static [Point])>,
    /// Waits, by agent.
    pub waits: Vec<(Agent, Point)>,
    /// Posts, by agent.
    pub posts: Vec<(Agent, Point)>,
    /// Whether a task may have an inner loop.
    pub inner: bool,
}

impl Allowed {
    /// Reads at the start, after waits, and writes at the end, before posts.
    pub(crate) fn at_both_ends(contract: &Contract) -> Allowed {
        let point = |mode| if mode == Mode::Read { &[Point::Start] } else { &[Point::End] };
        Allowed {
            operands: contract.operands.iter().map(|o| (o.operand, &point(o.mode)[..])).collect(),
            waits: contract.agents.iter().map(|a| (*a, Point::Start)).collect(),
            posts: contract.agents.iter().map(|a| (*a, Point::End)).collect(),
            inner: false,
        }
    }

    /// The same around an inner loop, in which some operands are touched.
    pub(crate) fn in_loop(contract: &Contract, inner: &[Operand]) -> Allowed {
        let mut allowed = Allowed::at_both_ends(contract);
        for (_, at) in allowed.operands.iter_mut().filter(|(o, _)| inner.contains(o)) {
            *at = &[Point::Inner];
        }
        Allowed { inner: true, ..allowed }
    }
}

/// Types that a template takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Any: bytes are moved.
    Any,
    /// What tensor cores multiply, of 16 bits.
    Half,
    /// What tensor cores multiply, of eight.
    Narrow,
    /// What sums go on with, and chains read.
    Float,
    /// What sums and results are rounded to.
    Stored,
    /// Factors, logarithms, statistics, carried state.
    F32,
    /// Entries of tables.
    I32,
    /// A caller's experts of tokens.
    Experts,
    /// This one.
    Only(DType),
}

impl Elements {
    /// Whether it is one of them.
    pub const fn has(self, dtype: DType) -> bool {
        match self {
            Elements::Any => true,
            Elements::Half => dtype.multiplies() && !dtype.is_narrow(),
            Elements::Narrow => dtype.is_narrow(),
            Elements::Float => dtype.format().computes,
            Elements::Stored => !dtype.is_integer(),
            Elements::F32 => matches!(dtype, DType::F32),
            Elements::I32 => matches!(dtype, DType::I32),
            Elements::Experts => dtype.is_integer(),
            Elements::Only(one) => dtype as u32 == one as u32,
        }
    }

    /// The types, for messages.
    pub(crate) fn names(self) -> String {
        let all = DType::ALL.iter().filter(|d| self.has(**d)).map(|d| d.name());
        all.collect::<Vec<_>>().join(", ")
    }
}

/// Operands that have one type, and which types these are. Where `first` is given, it is of the first access alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneType {
    /// The operands.
    pub operands: Vec<Operand>,
    /// Their types.
    pub of: Elements,
    /// Types of the first access, which is by itself.
    pub first: Option<Elements>,
}

impl OneType {
    pub(crate) fn new(operands: &[Operand], of: Elements) -> OneType {
        OneType { operands: operands.into(), of, first: None }
    }
}
