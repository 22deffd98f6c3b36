//! The record by which a leaf becomes CUDA. `leaf/mod.rs` says how it is used.

use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::Value;
use mk_plan::{Access, Agent, FamId, Family, InternalEdge, Leaf, Operand, Point};

/// Everything that the emitter, the audit and the trace layer know of a leaf.
pub(in crate::emit) struct LeafEmission {
    /// Name of the template that prints the hooks.
    pub template: &'static str,
    /// Its text, and the texts of templates that it includes, by name.
    pub texts: &'static [(&'static str, &'static str)],
    /// Threads and registers of a CTA that runs it.
    pub warpgroups: Warpgroups,
    /// The shared memory that its agents hand data through, if they do.
    pub ring: Option<&'static RingEmission>,
    /// Its agents, in the contract's order.
    pub agents: &'static [AgentEmission],
    /// Registers that the compiler may keep in memory.
    pub spills: Spills,
    /// Checks the families of one loop, and gives the values of the templates.
    pub prepare: fn(&mut Emitter<'_>, &Group) -> Result<Prepared>,
}

/// The record of a leaf whose tasks all computing threads carry out together, without a ring: its template, the device
/// function, and that one's template parameters. The module's `prepare` is the record's.
macro_rules! by_all_threads {
    ($template:literal, $function:literal, $parameters:literal) => {
        $crate::emit::leaf::LeafEmission {
            template: $template,
            texts: &[
                ($template, include_str!(concat!("../../../templates/leaf/", $template, ".cu.j2"))),
                ("schedule", include_str!("../../../templates/leaf/schedule.cu.j2")),
            ],
            warpgroups: $crate::emit::leaf::Warpgroups::MOVING,
            ring: None,
            agents: &[$crate::emit::leaf::AgentEmission {
                agent: mk_plan::Agent::Copier,
                seat: $crate::emit::leaf::Seat::Computing,
                state: &[],
                function: $function,
                arguments: concat!(
                    "<",
                    $parameters,
                    ">(ctx, @{ name }@Hooks{params}, threadIdx.x - kWarpgroupThreads);"
                ),
            }],
            spills: $crate::emit::leaf::Spills::NONE,
            prepare,
        }
    };
}
pub(super) use by_all_threads;

impl LeafEmission {
    /// Whether some agent is all of the computing warpgroups.
    pub fn computes(&self) -> bool {
        self.agents.iter().any(|a| a.seat == Seat::Computing)
    }
}

/// Registers of a thread of a warpgroup that does nothing: the fewest that there are.
pub(in crate::emit) const IDLE_REGISTERS: u32 = 24;

/// Warpgroups of a CTA: the first issues, by single lanes or warps; the others compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::emit) struct Warpgroups {
    /// Registers of a thread of the first warpgroup.
    pub issuing_registers: u32,
    /// Registers of a thread of the others.
    pub computing_registers: u32,
    /// How many others there are.
    pub computing: u32,
}

impl Warpgroups {
    /// Of roles that only move rows, or do nothing.
    pub const MOVING: Warpgroups =
        Warpgroups { issuing_registers: 104, computing_registers: 200, computing: 2 };

    /// [`Self::MOVING`], where other roles ask for so many threads.
    pub fn moving(threads: u32) -> Warpgroups {
        let computing = (threads / 128).saturating_sub(1).max(Self::MOVING.computing);
        let file = 65_536 / 128 - Self::MOVING.issuing_registers;
        let computing_registers = (file / computing / 8 * 8).min(Self::MOVING.computing_registers);
        Warpgroups { computing_registers, computing, ..Self::MOVING }
    }

    /// [`Self::MOVING`] for loops of all its computing threads, where other roles ask for so many: further warpgroups
    /// are idle, and keep [`IDLE_REGISTERS`].
    pub fn beside_idle(threads: u32) -> Warpgroups {
        let idle = (threads / 128).saturating_sub(1 + Self::MOVING.computing);
        let issuing_registers = Self::MOVING.issuing_registers - 16 * idle.min(1);
        Warpgroups { issuing_registers, ..Self::MOVING }
    }

    /// Threads of the CTA.
    pub fn threads(&self) -> u32 {
        (1 + self.computing) * 128
    }
}

/// The stages in shared memory that the loops of a role use one after the other.
pub(in crate::emit) struct RingEmission {
    /// The line above its types.
    pub comment: &'static str,
    /// Its configuration, a C++ type. A template over [`Self::values`].
    pub config: &'static str,
    /// The class template of the shared memory, over the configuration.
    pub smem: &'static str,
    /// Further `static_assert`s. Templates over [`Self::values`] and `name`.
    pub asserts: &'static [&'static str],
    /// Edges that are no edges of a plan: one declaration.
    pub inner_edges: Option<&'static str>,
    /// Initialisations of mbarriers, each by one thread of the first warpgroup before it first synchronises.
    pub inits: &'static [(u32, &'static str)],
    /// The contract's edges that are mbarriers; in a traced kernel, the slot of the two that an agent has in which its
    /// cycles there are added up.
    pub stalls: &'static [(&'static str, u32)],
    /// The values that its templates need, from the leaves of all loops that share it, which is at least one.
    pub values: fn(&[&Leaf]) -> Result<Value>,
}

impl RingEmission {
    /// The trace slot of an internal edge.
    ///
    /// # Errors
    /// [`EmitError::Internal`] for an edge that the record does not have.
    pub fn slot(&self, edge: &InternalEdge) -> Result<u32> {
        let found = self.stalls.iter().find(|(name, _)| *name == edge.name);
        found.map(|(_, slot)| *slot).ok_or_else(|| {
            let what = format!("{} {} has no trace slot", edge.edge, edge.name);
            EmitError::internal("emit/leaf/record.rs", what)
        })
    }
}

/// An agent as a loop of one device function.
pub(in crate::emit) struct AgentEmission {
    /// Which of the contract's.
    pub agent: Agent,
    /// Which threads run it.
    pub seat: Seat,
    /// Its state from one loop of its role to the next: declarations, templates over `ring`, the name of the ring.
    pub state: &'static [&'static str],
    /// The device function.
    pub function: &'static str,
    /// The rest of the call, behind the name: a template over `name` (of the loop), `ring` and [`Prepared::call`].
    pub arguments: &'static str,
}

/// Threads of a CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::emit) enum Seat {
    /// One lane of a warp of the first warpgroup. Warp 2 of CTA 0 also announces the launch, and warp 3 counts the CTA
    /// in.
    Lane(u32),
    /// All threads of the computing warpgroups.
    Computing,
}

/// Bytes of registers that a thread of a kernel may spill, by the rest of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::emit) struct Spills {
    /// Where a role has several loops of this leaf.
    pub several_loops: u32,
    /// Where its inner loop is traced, or sums of eight bits.
    pub traced_inner_loop: u32,
    /// Of 8-bit operands, in several loops or where gates and ups are saved: outside the steps along K.
    pub promoted: u32,
}

impl Spills {
    /// None.
    pub const NONE: Spills = Spills { several_loops: 0, traced_inner_loop: 0, promoted: 0 };
}

/// Families of a role that one set of agents runs on end; see [`mk_plan::Plan::runs`].
pub(in crate::emit) struct Group {
    /// Prefix of its types.
    pub name: String,
    /// The families, which are at least one, and their tasks' numbers.
    pub slices: Vec<Slice>,
    /// First CTA of the role.
    pub first_cta: u32,
    /// CTAs of the role.
    pub ctas: u32,
    /// CTAs of the role that share each task.
    pub cluster: u32,
}

impl Group {
    /// The first family, which has the leaf of all.
    pub fn head<'p>(&self, e: &Emitter<'p>) -> &'p Family {
        &e.plan.families[self.slices[0].id]
    }

    /// The families.
    pub fn families(&self) -> Vec<FamId> {
        self.slices.iter().map(|s| s.id).collect()
    }
}

/// The one access of an operand, if it is in the inner loop.
pub(in crate::emit) fn inner_access(f: &Family, operand: Operand) -> Option<&Access> {
    let mut all = f.accesses.iter().filter(|a| a.operand == operand);
    let first = all.next().filter(|a| a.at == Point::Inner);
    if all.next().is_some() { None } else { first }
}

/// The values of a leaf's templates for one loop.
pub(in crate::emit) struct Prepared {
    /// Of each family.
    pub families: Vec<Value>,
    /// Of all of them, in the hooks.
    pub hooks: Value,
    /// Of all of them, in the agents' calls.
    pub call: Value,
    /// Workers that take tasks of a dynamic schedule.
    pub workers: u32,
    /// Choices that follow from the plan without being written in it, for the comment at the kernel's head.
    pub choices: Vec<String>,
}
