//! The spill budget of a kernel, from the records of its leaves.

use super::{arch::carrier, leaf::Carrier, types::Options};
use mk_plan::{Family, Operand, Plan, saves_gates};

/// Bytes of registers that a thread may spill: the most that a leaf of the plan allows.
pub(super) fn spill_bytes(plan: &Plan, options: Options) -> u32 {
    // Registers are short in inner loops, and beside the sums of eight bits that are promoted.
    let narrow = |f: &Family| is_narrow(plan, f);
    let traced_loop =
        options.trace && plan.families.values().any(|f| f.inner.is_some() || narrow(f));
    let mut most = 0;
    for role in plan.roles.keys() {
        let (mut several, mut traced, mut promoted, mut loops) = (0, 0, 0, 0);
        let mut saves = false;
        for run in plan.runs(role) {
            let Carrier::Agents(l) = carrier(plan, &plan.families[run[0]]) else { continue };
            loops += usize::from(l.spills.several_loops > 0);
            several = several.max(l.spills.several_loops);
            traced = traced.max(l.spills.traced_inner_loop);
            for f in run.iter().map(|id| &plan.families[*id]).filter(|f| narrow(f)) {
                promoted = promoted.max(l.spills.promoted);
                saves |= saves_gates(f.leaf.epilogue());
            }
        }
        most = most.max(if loops > 1 { several } else { 0 });
        most = most.max(if loops > 1 || saves { promoted } else { 0 });
        most = most.max(if traced_loop { traced } else { 0 });
    }
    most
}

/// Whether the compiler is kept from holding indices of thread and CTA in registers across tiles: beside GEMMs of eight
/// bits in several loops it spills them.
pub(super) fn indices_anew(plan: &Plan) -> bool {
    plan.roles.keys().any(|role| {
        let runs = plan.runs(role);
        let families = || runs.iter().flatten().map(|id| &plan.families[*id]);
        runs.len() > 1 && families().any(|f| is_narrow(plan, f))
    })
}

/// Whether a family multiplies elements of eight bits.
fn is_narrow(plan: &Plan, f: &Family) -> bool {
    let mut operands = f.accesses.iter().filter(|a| a.operand == Operand::A);
    f.leaf.product().is_some() && operands.any(|a| plan.buffers[a.buffer].dtype.is_narrow())
}
