//! Statistics of attention's queries: by ordinary loads and stores of all computing threads.

use super::{
    heads,
    record::{Group, LeafEmission, Prepared, by_all_threads},
};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Access, Agent, Leaf, Operand, Point, STATS, StatsTile};

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "stats_rows",
    "stats_tasks",
    "@{ name }@Config, 2 * kWarpgroupThreads, 2, @{ name }@Edges"
);

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let (id, f) = (g.slices[0].id, g.head(e));
    let Leaf::StatsTile(StatsTile { block: [_, dim] }) = f.leaf else {
        return Err(EmitError::internal("emit/leaf/stats.rs", format!("{id} has no statistics")));
    };
    let dtype = e.one_dtype(id, |o| matches!(o, Operand::O | Operand::Do))?;
    if !matches!(dim, 64 | 128 | 192 | 256) {
        let what = "statistics are of results with heads of 64, 128, 192 or 256 elements";
        return EmitError::refuse(&f.name, what);
    }
    let families = g.slices.iter().map(|s| family(e, *s, dim)).collect::<Result<Vec<_>>>()?;
    let hooks = context! { tile => context! { dim, dtype } };
    Ok(Prepared { families, hooks, call: context! {}, workers: g.ctas, choices: vec![] })
}

fn family(e: &Emitter<'_>, s: Slice, dim: u32) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let place = |operand: Operand, dim: u32| -> Result<(Value, &Access)> {
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
