//! Copies through registers: rows of any length and pitch, by all computing threads.

use super::{
    moves,
    record::{AgentEmission, Group, LeafEmission, Prepared, Seat, Spills, Warpgroups},
};
use crate::emit::{context::Emitter, error::EmitError};
use minijinja::context;
use mk_plan::Agent;

pub(in crate::emit) const EMISSION: LeafEmission = LeafEmission {
    template: "copy_rows",
    texts: &[
        ("copy_rows", include_str!("../../../templates/leaf/copy_rows.cu.j2")),
        ("schedule", include_str!("../../../templates/leaf/schedule.cu.j2")),
    ],
    warpgroups: Warpgroups::MOVING,
    ring: None,
    agents: &[AgentEmission {
        agent: Agent::Copier,
        seat: Seat::Computing,
        state: &[],
        function: "copy_rows",
        arguments: "<2 * kWarpgroupThreads, 2, @{ name }@Edges@{ \", 1\" if bytes else (\", 2\" if \
            own else \"\") }@@{ \", true\" if own else \"\" }@>(ctx, @{ name \
            }@Hooks{params}, threadIdx.x - kWarpgroupThreads);",
    }],
    spills: Spills::NONE,
    prepare,
};

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared, EmitError> {
    let own = moves::of_own_rows(e, g);
    let families =
        g.slices.iter().map(|s| moves::copy(e, *s, (false, own))).collect::<Result<_, _>>()?;
    let (hooks, call) = (context! {}, context! { bytes => moves::of_bytes(e, g), own });
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices: vec![] })
}
