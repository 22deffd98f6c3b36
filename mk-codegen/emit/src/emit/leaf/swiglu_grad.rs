//! Gradients of gated rows, which have weights that are looked up: in f32, each row by a warp.

use super::record::{Group, LeafEmission, Prepared, by_all_threads, inner_access};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Access, Agent, Expr, Family, Operand, Point, SwigluGradTile, Var};

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "swiglu_grad_rows",
    "swiglu_grad_rows",
    "Dtype::@{ dtype }@, 2 * kWarpgroupThreads, 2, @{ name }@Edges"
);

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let families = g.slices.iter().map(|s| family(e, *s)).collect::<Result<_>>()?;
    let all = g.slices.iter().map(|s| sizes(e, &e.plan.families[s.id]));
    let all = all.collect::<Result<Vec<_>>>()?;
    let [rows, columns] = all[0];
    if all.iter().any(|sizes| *sizes != all[0]) {
        let what = "gated rows of one group are as many and as long";
        return EmitError::refuse(&g.name, what);
    }
    let dtype = e.one_dtype(g.slices[0].id, |o| o == Operand::Src)?;
    let (hooks, call) = (context! { rows, columns }, context! { dtype });
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices: vec![] })
}

/// The one access of an operand, in the inner loop.
fn one(f: &Family, operand: Operand) -> Result<&Access> {
    match inner_access(f, operand) {
        Some(a) if a.each.is_none() => Ok(a),
        _ => EmitError::refuse(&f.name, "a gated row has each operand once, in its inner loop"),
    }
}

/// Rows and columns.
fn sizes(e: &Emitter<'_>, f: &Family) -> Result<[i32; 2]> {
    let rows = f.inner.as_ref().and_then(|i| e.number(&i.1));
    let columns = one(f, Operand::Src)?.region.last().and_then(|(_, n)| e.number(n));
    match (rows, columns) {
        (Some(rows), Some(columns)) if rows.min(columns) > 0 => Ok([rows, columns]),
        _ => EmitError::refuse(&f.name, "gated rows have a fixed number of rows and columns"),
    }
}

/// Where a row's operands lie.
fn family(e: &Emitter<'_>, s: Slice) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let refuse = |what: &str| EmitError::refuse(&f.name, what);
    let [_, columns] = sizes(e, f)?;
    let [src, h, w] = SwigluGradTile::READS.map(|o| one(f, o));
    let [dst, weighted, sum] = SwigluGradTile::WRITES.map(|o| one(f, o));
    let (src, h, w, dst, weighted, sum) = (src?, h?, w?, dst?, weighted?, sum?);
    let own = |a: &Access| a.rank == Expr::Var(Var::RANK);
    if [src, h, dst, weighted, sum].iter().any(|a| !own(a)) {
        return refuse("gated rows are of the own rank");
    }
    if !own(w) {
        // Places there are counted as here.
        e.pitch_bytes(&f.name, w.buffer)?;
    }
    if [h, w, dst, weighted, sum].iter().any(|a| a.when != src.when) {
        return refuse("all of a gated row is there, or nothing");
    }
    // Whether the last dimensions are taken whole, and one index of each dimension before them.
    let whole = |a: &Access, sizes: &[i32]| {
        let Some(front) = a.region.len().checked_sub(sizes.len()) else { return false };
        let all = |(d, n): (usize, &i32)| {
            let (from, len) = &a.region[front + d];
            let extent = e.number(&e.extent(a.buffer, front + d));
            *from == Expr::Const(0) && e.number(len) == Some(*n) && extent == Some(*n)
        };
        a.region[..front].iter().all(|(_, n)| *n == Expr::Const(1))
            && sizes.iter().enumerate().all(all)
    };
    if ![src, weighted].iter().all(|a| whole(a, &[columns])) {
        return refuse("gradients and weighted results are whole rows, one at a time");
    }
    if ![h, dst].iter().all(|a| whole(a, &[2, columns])) {
        return refuse("gates and ups, and gradients of them, are whole rows, one at a time");
    }
    if ![w, sum].iter().all(|a| whole(a, &[]) && !a.region.is_empty()) {
        return refuse("a row's weight is one element, and its gradient");
    }
    let Some(inner) = &f.inner else { return refuse("gated rows are those of a loop") };
    let say = |x: &Expr| e.c(f, None, x);
    // Of gates the first row of two, which lie behind each other.
    let row = |a: &Access, next: i32| {
        let row = say(&(e.row(a) + Expr::Const(next)));
        let base = e.base(a.buffer, "params.header.rank");
        format!("{base} + static_cast<u64>({row}) * {}", e.own_pitch_bytes(a.buffer))
    };
    let element = |a: &Access| {
        let last = a.region.last().map_or(Expr::Const(0), |(at, _)| at.clone());
        format!(
            "{} + static_cast<u64>({}) * {} + bytes_of({}, 4)",
            e.base(a.buffer, &say(&a.rank)),
            say(&e.row(a)),
            e.own_pitch_bytes(a.buffer),
            say(&last)
        )
    };
    let (decode_waits, mut load_waits) = e.waits_to_look_up(f)?;
    load_waits.extend(e.waits(f, Agent::Copier, Point::Inner)?);
    Ok(context! {
        inner => inner.0.clone(),
        exists => e.there(f, None, src),
        row => [row(src, 0), row(h, 0), row(h, 1), row(dst, 0), row(dst, 1), row(weighted, 0)],
        weight => element(w),
        of_weight => element(sum),
        decode_waits,
        load_waits,
        posts => e.posts(f),
        ..e.slice(s)
    })
}
