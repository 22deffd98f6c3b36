//! The contract of a family's leaf, in the form that the rules use.

use mk_plan::{Agent, Contract, Family, Plan, Point};

/// An edge of a contract by positions in its list of agents.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub from: u8,
    pub to: u8,
}

/// What the contract of a family's leaf says, in the form that the checks use.
pub(super) struct FamInfo {
    pub contract: Contract,
    /// Edges along which data flows.
    pub flows: Vec<Flow>,
    /// Back-pressure: `from` gives a stage back to `to`.
    pub backs: Vec<Flow>,
    /// Agents that pass on what others give them, or have no operands at all.
    pub relay: Vec<bool>,
    /// The number of each agent that there is, by its place in [`Agent::ALL`].
    numbers: [Option<u8>; Agent::ALL.len()],
    /// Agents that have an operand at the start, in the inner loop, and at the end of a task: a bit for each.
    operands: [u16; 3],
    /// Waits that look something up in memory.
    pub late: Late,
}

impl FamInfo {
    pub fn new(plan: &Plan, x: &Family) -> FamInfo {
        let (contract, late) = (x.leaf.contract(), Late::of(plan, x));
        let at = |a: Agent| contract.agents.iter().position(|x| *x == a).unwrap_or(0) as u8;
        let edges = |back: bool| {
            let of_kind = contract.edges.iter().filter(move |e| e.depth.is_some() == back);
            of_kind.map(|e| Flow { from: at(e.from), to: at(e.to) }).collect::<Vec<_>>()
        };
        let (flows, backs) = (edges(false), edges(true));
        let relay = contract.agents.iter().map(|a| {
            flows.iter().any(|f| f.to == at(*a)) || contract.operands.iter().all(|o| o.agent != *a)
        });
        let numbers = std::array::from_fn(|i| {
            contract.agents.iter().position(|a| *a as usize == i).map(|n| n as u8)
        });
        let mut operands = [0; 3];
        for a in &x.accesses {
            if let Some(spec) = contract.operand(a.operand) {
                operands[a.at as usize] |= 1 << at(spec.agent);
            }
        }
        FamInfo { relay: relay.collect(), flows, backs, numbers, operands, contract, late }
    }
    /// Whether a kernel may hand something on along an edge at a step of tasks with so many, also where the task's own
    /// regions are empty: leaves differ in whether an empty tile takes a stage.
    pub fn may_pass(&self, flow: Flow, step: u32, steps: u32) -> bool {
        let point = match step {
            0 => Point::Start,
            s if s + 1 == steps => Point::End,
            _ => Point::Inner,
        };
        let has = |agent: u8| self.operands[point as usize] & (1 << agent) != 0;
        has(flow.from) || (self.relay[usize::from(flow.from)] && has(flow.to))
    }
    pub fn agent(&self, index: u8) -> Agent {
        self.contract.agents[usize::from(index)]
    }
    pub fn index(&self, agent: Agent) -> u8 {
        self.number(agent).unwrap_or(0)
    }
    /// The number of an agent, if the leaf has it.
    pub fn number(&self, agent: Agent) -> Option<u8> {
        self.numbers[agent as usize]
    }
}

/// Whether an agent runs on a host, or is a copy engine.
pub(super) fn is_host(agent: Agent) -> bool {
    matches!(agent, Agent::Sender | Agent::Receiver | Agent::Engine)
}

/// Waits of a family that look something up in memory: what they look up is read before they wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Late(u64);

impl Late {
    /// Of a family.
    pub fn of(plan: &Plan, x: &Family) -> Late {
        let lines = x.waits.iter().zip(0u32..).filter(|(w, _)| plan.wait_names_stored(w));
        Late(lines.fold(0, |all, (_, line)| all | Late::bit(line)))
    }
    /// The last bit is of all lines from there on.
    fn bit(line: u32) -> u64 {
        1 << line.min(63)
    }
    pub fn has(self, line: u32) -> bool {
        self.0 & Late::bit(line) != 0
    }
}
