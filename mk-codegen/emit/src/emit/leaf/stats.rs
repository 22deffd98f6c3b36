//! Statistics of attention's queries: by ordinary loads and stores of all computing threads.

use super::{
    heads,
    record::{AgentEmission, Group, LeafEmission, Prepared, Seat, Spills, Warpgroups},
};
use crate::emit::{context::Emitter, error::EmitError, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Access, Agent, Leaf, Operand, Point, STATS, StatsTile};

pub(in crate::emit) const EMISSION: LeafEmission = LeafEmission {
    template: "stats_rows",
    texts: &[
        ("stats_rows", include_str!("../../../templates/leaf/stats_rows.cu.j2")),
        ("schedule", include_str!("../../../templates/leaf/schedule.cu.j2")),
    ],
    warpgroups: Warpgroups::MOVING,
    ring: None,
    agents: &[AgentEmission {
        agent: Agent::Copier,
        seat: Seat::Computing,
        state: &[],
        function: "stats_tasks",
        arguments: "<@{ name }@Config, 2 * kWarpgroupThreads, 2, @{ name }@Edges>(ctx, @{ name }@Hooks{params}, \
            threadIdx.x - kWarpgroupThreads);",
    }],
    spills: Spills::NONE,
    prepare,
};

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared, EmitError> {
    let (id, f) = (g.slices[0].id, g.head(e));
    let Leaf::StatsTile(StatsTile { block: [_, dim] }) = f.leaf else {
        return Err(EmitError::internal("emit/leaf/stats.rs", format!("{id} has no statistics")));
    };
    let dtype = e.one_dtype(id, |o| matches!(o, Operand::O | Operand::Do))?;
    if !matches!(dim, 64 | 128 | 192 | 256) {
        let what = "statistics are of results with heads of 64, 128, 192 or 256 elements";
        return Err(EmitError::unsupported(f.name.clone(), what));
    }
    let families =
        g.slices.iter().map(|s| family(e, *s, dim)).collect::<Result<Vec<_>, EmitError>>()?;
    let hooks = context! { tile => context! { dim, dtype } };
    Ok(Prepared { families, hooks, call: context! {}, workers: g.ctas, choices: vec![] })
}

fn family(e: &Emitter<'_>, s: Slice, dim: u32) -> Result<Value, EmitError> {
    let f = &e.plan.families[s.id];
    let place = |operand: Operand, dim: u32| -> Result<(Value, &Access), EmitError> {
        let a = e.access(f, operand)?;
        let (address, pitch) = heads::rows_at(e, s.id, a, dim)?;
        Ok((context! { address, pitch }, a))
    };
    let ((o, from), (d_o, _)) = (place(Operand::O, dim)?, place(Operand::Do, dim)?);
    let (stats, _) = place(Operand::Dst, STATS)?;
    let row = heads::rows_of(f, from)?;
    Ok(context! {
        rows => e.c(f, None, &from.region[row].1),
        o, d_o, stats,
        lse => heads::logarithms(e, s.id)?,
        load_waits => e.waits(f, Agent::Copier, Point::Start)?,
        posts => e.posts(f),
        ..e.slice(s)
    })
}
