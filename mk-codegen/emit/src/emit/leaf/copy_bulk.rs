//! Copies by TMA through shared memory: whole rows without gaps, or parts of rows that each fit a stage. A lane loads,
//! another stores.

use super::{
    moves,
    record::{
        AgentEmission, Group, LeafEmission, Prepared, RingEmission, Seat, Spills, Warpgroups,
    },
};
use crate::emit::{EmitError, Result, context::Emitter};
use minijinja::{Value, context};
use mk_plan::{Agent, CopyTile, Leaf};

pub(in crate::emit) const EMISSION: LeafEmission = LeafEmission {
    template: "copy_bulk",
    texts: &[("copy_bulk", include_str!("../../../templates/leaf/copy_bulk.cu.j2"))],
    warpgroups: Warpgroups::MOVING,
    ring: Some(&RingEmission {
        comment: "The ring of stages that the role's bulk copies share.",
        config: "CopyConfig<@{ stages }@>",
        smem: "CopySmem",
        asserts: &[],
        inner_edges: None,
        inits: &[(0, "smem.init_barriers();")],
        stalls: &[("full", 0), ("empty", 0)],
        values: ring,
    }),
    agents: &[
        AgentEmission {
            agent: Agent::Loader,
            seat: Seat::Lane(0),
            state: &["RingCursor<@{ ring }@Config::kStages> ring;"],
            function: "bulk_copy_loader",
            arguments: ARGUMENTS,
        },
        AgentEmission {
            agent: Agent::Storer,
            seat: Seat::Lane(1),
            state: &["RingCursor<@{ ring }@Config::kStages> ring;"],
            function: "bulk_copy_storer",
            arguments: ARGUMENTS,
        },
    ],
    spills: Spills::NONE,
    prepare,
};

const ARGUMENTS: &str =
    "<@{ ring }@Config, @{ ring }@Edges>(ctx, smem, @{ name }@Hooks{params}, ring);";

fn ring(leaves: &[&Leaf]) -> Result<Value> {
    match leaves {
        [Leaf::CopyTile(CopyTile { stages, .. }), ..] => Ok(context! { stages }),
        _ => Err(EmitError::internal("emit/leaf/copy_bulk.rs", "the ring of another leaf")),
    }
}

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let families =
        g.slices.iter().map(|s| moves::copy(e, *s, (true, false))).collect::<Result<_, _>>()?;
    let (hooks, call, choices) = (context! {}, context! {}, Vec::new());
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices })
}
