//! Contracts of leaves.
//!
//! A CTA is not a sequential program: a loader runs tiles ahead of its consumers, a storer behind them. A contract says
//! which agents a leaf has, who performs each access through which proxy, and which edges inside the leaf order them.
//! The verifier knows a leaf by its contract alone; the templates implement it.

use super::leaf::{
    Agent, COPY_STAGE_BYTES, Carry, Consumers, CopyVia, EPILOGUE_OPERANDS, EpilogueOp, GradOf,
    Leaf, Operand, Store, attend_grad_smem_bytes, attend_smem_bytes,
};
use super::mma::{mma_exchange_bytes, mma_stage_bytes, mma_staging_bytes};
use super::plan::{Mode, Proxy};

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

impl Leaf {
    /// What the verifier may rely on and the template must implement.
    pub fn contract(&self) -> Contract {
        use self::Consumers::PingPong;
        use Agent::*;
        let op =
            |operand, mode, agent, proxy, arity| OperandSpec { operand, mode, agent, proxy, arity };
        let flow = |name, from, to| EdgeSpec {
            name,
            from,
            to,
            proxy_fence: false,
            depth: None,
            per_task: false,
        };
        let back = |name, from, to, depth| EdgeSpec { depth: Some(depth), ..flow(name, from, to) };
        let (read, write) = (Mode::Read, Mode::Write);
        let tab = |agent| op(Operand::Tab, read, agent, Proxy::Generic, Arity::Any);
        match self {
            Leaf::Signal | Leaf::Enter => {
                Contract { agents: vec![Lead], operands: vec![], edges: vec![], smem_bytes: 0 }
            }
            Leaf::CopyTile { via: CopyVia::Bulk, stages } => Contract {
                agents: vec![Loader, Storer],
                operands: vec![
                    op(Operand::Src, read, Loader, Proxy::Async, Arity::Many),
                    op(Operand::Dst, write, Storer, Proxy::Async, Arity::Many),
                    tab(Loader),
                ],
                edges: vec![flow("full", Loader, Storer), back("empty", Storer, Loader, *stages)],
                smem_bytes: stages.saturating_mul(COPY_STAGE_BYTES),
            },
            Leaf::CopyTile { via: CopyVia::Ldst | CopyVia::Gather, .. } => Contract {
                agents: vec![Copier],
                operands: vec![
                    op(Operand::Src, read, Copier, Proxy::Generic, Arity::Many),
                    op(Operand::Dst, write, Copier, Proxy::Generic, Arity::Many),
                    tab(Copier),
                ],
                edges: vec![],
                smem_bytes: 0,
            },
            Leaf::MmaTile {
                block: [m, n, k], stages, store, epilogue, consumers, cluster, ..
            } => {
                let tma = *store == Store::Tma;
                let mut operands = vec![
                    op(Operand::A, read, Loader, Proxy::Async, Arity::Many),
                    // Of a tensor of the caller that no task writes, it may be read before the task's waits, which order nothing about it.
                    op(Operand::B, read, Loader, Proxy::Async, Arity::One),
                ];
                let tails = epilogue.iter().filter_map(|e| e.operand());
                for (e, mode) in EPILOGUE_OPERANDS.into_iter().zip(tails) {
                    operands.push(op(e, mode, Consumers, Proxy::Generic, Arity::One));
                }
                if epilogue.contains(&EpilogueOp::Carry) {
                    operands.push(op(Operand::AccIn, read, Loader, Proxy::Async, Arity::One));
                }
                let (agent, proxy) =
                    if tma { (Storer, Proxy::Async) } else { (Consumers, Proxy::Generic) };
                operands.push(op(Operand::C, write, agent, proxy, Arity::Many));
                operands.push(tab(Loader));
                // Without TMA the consumers store by themselves, and tell the storer when they have. The stage of a tile's last
                // step may go back by way of the storer, when it has sent the panels there: later than `empty` says, and before
                // any staging panel of the tile goes back.
                let edges = vec![
                    flow("full", Loader, Consumers),
                    back("empty", Consumers, Loader, *stages),
                    EdgeSpec { proxy_fence: tma, ..flow("staged", Consumers, Storer) },
                    // Warpgroups that take turns have panels of their own.
                    back("drained", Storer, Consumers, if *consumers == PingPong { 2 } else { 1 }),
                ];
                Contract {
                    agents: vec![Loader, Consumers, Storer],
                    operands,
                    edges,
                    smem_bytes: stages * mma_stage_bytes([*m, *n, *k])
                        + mma_staging_bytes([*m, *n], *stages)
                            .max(mma_exchange_bytes([*m, *n], *cluster)),
                }
            }
            Leaf::ReduceTile { epilogue } => {
                let mut operands = vec![
                    op(Operand::Src, read, Copier, Proxy::Generic, Arity::Many),
                    op(Operand::W, read, Copier, Proxy::Generic, Arity::Optional),
                ];
                let tails = epilogue.iter().filter_map(|e| e.operand());
                for (e, mode) in EPILOGUE_OPERANDS.into_iter().zip(tails) {
                    operands.push(op(e, mode, Copier, Proxy::Generic, Arity::One));
                }
                operands.push(op(Operand::Dst, write, Copier, Proxy::Generic, Arity::Many));
                operands.push(tab(Copier));
                Contract { agents: vec![Copier], operands, edges: vec![], smem_bytes: 0 }
            }
            Leaf::AttendTile { block: [rows, keys, depth], carry, stages, store, .. } => {
                let tma = *store == Store::Tma;
                let mut operands = vec![
                    op(Operand::Q, read, Loader, Proxy::Async, Arity::One),
                    op(Operand::K, read, Loader, Proxy::Async, Arity::Many),
                    op(Operand::V, read, Loader, Proxy::Async, Arity::Many),
                ];
                if *carry == Carry::Scratch {
                    for o in [Operand::AccIn, Operand::StatIn] {
                        operands.push(op(o, read, Consumers, Proxy::Generic, Arity::Optional));
                    }
                    for o in [Operand::AccOut, Operand::StatOut] {
                        operands.push(op(o, write, Consumers, Proxy::Generic, Arity::Optional));
                    }
                }
                let (agent, proxy) =
                    if tma { (Storer, Proxy::Async) } else { (Consumers, Proxy::Generic) };
                operands.push(op(Operand::O, write, agent, proxy, Arity::Optional));
                operands.push(op(Operand::Lse, write, Consumers, Proxy::Generic, Arity::Optional));
                // Queries come once a task, and `o` leaves once: from where the queries were, or past shared memory by the consumers
                // themselves, who then tell the storer when they have.
                let once = |name, from, to| EdgeSpec { per_task: true, ..back(name, from, to, 1) };
                Contract {
                    agents: vec![Loader, Consumers, Storer],
                    operands,
                    edges: vec![
                        flow("q_full", Loader, Consumers),
                        once("q_empty", Consumers, Loader),
                        flow("kv_full", Loader, Consumers),
                        back("kv_empty", Consumers, Loader, *stages),
                        EdgeSpec { proxy_fence: tma, ..flow("staged", Consumers, Storer) },
                        once("drained", Storer, Consumers),
                    ],
                    smem_bytes: attend_smem_bytes([*rows, *keys, *depth], *stages),
                }
            }
            Leaf::StatsTile { .. } => Contract {
                agents: vec![Copier],
                operands: vec![
                    op(Operand::O, read, Copier, Proxy::Generic, Arity::One),
                    op(Operand::Do, read, Copier, Proxy::Generic, Arity::One),
                    op(Operand::Lse, read, Copier, Proxy::Generic, Arity::One),
                    op(Operand::Dst, write, Copier, Proxy::Generic, Arity::One),
                ],
                edges: vec![],
                smem_bytes: 0,
            },
            Leaf::AttendGradTile { of, block, stages, .. } => {
                let held = of.held().iter();
                let held = held.map(|o| op(*o, read, Loader, Proxy::Async, Arity::One));
                let moving = of.moving().iter();
                let moving = moving.map(|o| op(*o, read, Loader, Proxy::Async, Arity::Many));
                let arity = if *of == GradOf::Queries { Arity::One } else { Arity::Optional };
                let made = of.made().iter();
                let made = made.map(|o| op(*o, write, Consumers, Proxy::Generic, arity));
                let operands = held.chain(moving).chain(made).collect();
                let once = |name, from, to| EdgeSpec { per_task: true, ..back(name, from, to, 1) };
                let [own, other] = match of {
                    GradOf::Queries => [["q_full", "q_empty"], ["kv_full", "kv_empty"]],
                    GradOf::Keys => [["kv_full", "kv_empty"], ["q_full", "q_empty"]],
                };
                // Consumers store past shared memory, and tell the storer when they have.
                Contract {
                    agents: vec![Loader, Consumers, Storer],
                    operands,
                    edges: vec![
                        flow(own[0], Loader, Consumers),
                        once(own[1], Consumers, Loader),
                        flow(other[0], Loader, Consumers),
                        back(other[1], Consumers, Loader, *stages),
                        flow("staged", Consumers, Storer),
                        once("drained", Storer, Consumers),
                    ],
                    smem_bytes: attend_grad_smem_bytes(*of, *block, *stages),
                }
            }
            Leaf::Tabulate { .. } => Contract {
                agents: vec![Copier],
                operands: vec![
                    op(Operand::Src, read, Copier, Proxy::Generic, Arity::Many),
                    op(Operand::Dst, write, Copier, Proxy::Generic, Arity::Many),
                ],
                edges: vec![],
                smem_bytes: 0,
            },
            Leaf::NicSend => Contract {
                agents: vec![Issuer, Sender, Receiver],
                operands: vec![
                    op(Operand::Src, read, Sender, Proxy::Host, Arity::One),
                    op(Operand::Dst, write, Sender, Proxy::Host, Arity::One),
                ],
                edges: vec![flow("fifo", Issuer, Sender), flow("immediate", Sender, Receiver)],
                smem_bytes: 0,
            },
            Leaf::HostCopy => Contract {
                agents: vec![Engine],
                operands: vec![
                    op(Operand::Src, read, Engine, Proxy::Host, Arity::One),
                    op(Operand::Dst, write, Engine, Proxy::Host, Arity::One),
                ],
                edges: vec![],
                smem_bytes: 0,
            },
        }
    }
}

impl Contract {
    /// The specification of an operand, if the leaf has it.
    pub fn operand(&self, operand: Operand) -> Option<&OperandSpec> {
        self.operands.iter().find(|o| o.operand == operand)
    }
}
