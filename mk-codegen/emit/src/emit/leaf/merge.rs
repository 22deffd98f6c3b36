//! Parts of an attention put together: by ordinary loads and stores of all computing threads.

use super::{
    heads,
    record::{Group, LeafEmission, Prepared, by_all_threads},
};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Access, Agent, Expr, Leaf, MergeTile, Operand, Point, Var};

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "merge_rows",
    "merge_tasks",
    "@{ name }@Config, 2 * kWarpgroupThreads, 2, @{ name }@Edges"
);

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let (id, f) = (g.slices[0].id, g.head(e));
    let Leaf::MergeTile(MergeTile { block: [_, dim] }) = f.leaf else {
        return Err(EmitError::internal("emit/leaf/merge.rs", format!("{id} merges nothing")));
    };
    let dtype = e.one_dtype(id, |o| o == Operand::O)?;
    if !matches!(dim, 64 | 128 | 192 | 256) {
        let what = "parts are of results with heads of 64, 128, 192 or 256 elements";
        return EmitError::refuse(&f.name, what);
    }
    let sinks = f.accesses.iter().any(|a| a.operand == Operand::Sinks);
    let families = g.slices.iter().map(|s| family(e, *s, dim)).collect::<Result<Vec<_>>>()?;
    let hooks = context! { tile => context! { dim, dtype, sinks } };
    Ok(Prepared { families, hooks, call: context! {}, workers: g.ctas, choices: vec![] })
}

fn family(e: &Emitter<'_>, s: Slice, dim: u32) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let refuse = |what: &str| EmitError::refuse(&f.name, what);
    let Some((inner, count)) = &f.inner else { return refuse("parts are steps of a loop") };
    if !matches!(count, Expr::Const(1..=64)) {
        return refuse("parts are 64 at most: each lane of a warp has the sums of two");
    }
    let step = Expr::from(Var::INNER);
    let place = |operand: Operand, dim: u32| -> Result<(Value, &Access)> {
        let a = e.access(f, operand)?;
        let (address, pitch) = heads::rows_at(e, s.id, a, dim)?;
        // Of parts, each is behind the one before it.
        let part = match a.region.first() {
            Some((at, one)) if *at == step && *one == Expr::Const(1) => {
                let rows = (1..a.region.len() - 1).map(|d| e.extent(a.buffer, d));
                e.c(f, None, &rows.fold(Expr::Const(1), |n, x| n * x))
            }
            _ => "0".into(),
        };
        let part = format!("static_cast<u64>({part}) * {}", e.own_pitch_bytes(a.buffer));
        Ok((context! { address, pitch, part }, a))
    };
    let ((acc, from), (stat, of_stat)) = (place(Operand::AccIn, dim)?, place(Operand::StatIn, 2)?);
    if [from, of_stat].iter().any(|a| a.region.first().map(|r| &r.0) != Some(&step)) {
        return refuse("a step has the part of its number");
    }
    let (o, _) = place(Operand::O, dim)?;
    let row = heads::rows_of(f, from)?;
    Ok(context! {
        rows => e.c(f, None, &from.region[row].1),
        parts => e.c(f, None, count),
        inner,
        acc, stat, o,
        lse => heads::logarithms(e, s.id)?,
        sink => heads::sink(e, s.id)?.unwrap_or_else(|| "0".into()),
        load_waits => e.waits(f, Agent::Copier, Point::Start)?,
        posts => e.posts(f),
        ..e.slice(s)
    })
}
