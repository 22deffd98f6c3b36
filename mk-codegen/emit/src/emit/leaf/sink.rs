//! Gradients of attention's sinks: by ordinary loads and stores of all computing threads.

use super::{
    heads,
    record::{Group, LeafEmission, Prepared, by_all_threads},
};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Agent, Expr, Operand, Point, STATS, Var};

pub(in crate::emit) const EMISSION: LeafEmission =
    by_all_threads!("sink_rows", "sink_tasks", "2 * kWarpgroupThreads, 2, @{ name }@Edges");

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let families = g.slices.iter().map(|s| family(e, *s)).collect::<Result<Vec<_>>>()?;
    let hooks = context! {};
    Ok(Prepared { families, hooks, call: context! {}, workers: g.ctas, choices: vec![] })
}

fn family(e: &Emitter<'_>, s: Slice) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let refuse = |what: &str| EmitError::refuse(&f.name, what);
    let Some((inner, count)) = &f.inner else { return refuse("queries are steps of a loop") };
    let stats = e.access(f, Operand::Stats)?;
    let (address, pitch) = heads::rows_at(e, s.id, stats, STATS)?;
    let rows = heads::rows_of(f, stats)?;
    // Steps are matrices behind each other.
    let (step, others) = match &stats.region[..] {
        [(at, one), others @ ..] if *at == Expr::from(Var::INNER) && *one == Expr::Const(1) => {
            let lines = (1..=others.len() - 1).map(|d| e.extent(stats.buffer, d));
            (lines.fold(Expr::Const(1), |n, x| n * x), others)
        }
        _ => return refuse("a step has the queries of a sequence of its number"),
    };
    if others.iter().any(|(at, n)| at.mentions(Var::INNER) || n.mentions(Var::INNER)) {
        return refuse("queries of each step lie as those of the others do");
    }
    let dst = e.access(f, Operand::Dst)?;
    let one = dst.region.iter().all(|(_, n)| *n == Expr::Const(1));
    if !one || dst.each.is_some() || dst.when.is_some() || dst.rank != Expr::Var(Var::RANK) {
        return refuse("a gradient is one element of the own rank");
    }
    let flat = e.c(f, None, &e.flat(dst, 0, dst.region.len()));
    let Some(sink) = heads::sink(e, s.id)? else { return refuse("it has no sink") };
    Ok(context! {
        inner,
        steps => e.c(f, None, count),
        stats => context! { address, pitch },
        step => format!("static_cast<u64>({}) * {}", e.c(f, None, &step), e.own_pitch_bytes(stats.buffer)),
        rows => e.c(f, None, &stats.region[rows].1),
        sink,
        dst => format!("{} + bytes_of({flat}, 4)", e.base(dst.buffer, "params.header.rank")),
        load_waits => e.waits(f, Agent::Copier, Point::Start)?,
        posts => e.posts(f),
        ..e.slice(s)
    })
}
