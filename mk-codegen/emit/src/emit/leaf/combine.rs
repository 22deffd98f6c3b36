//! Weighted sums of rows that are each looked up, a row for each iteration of the inner loop: in f32, in order, rounded
//! once.

use super::record::{Group, LeafEmission, Prepared, by_all_threads, inner_access};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{
    Access, Agent, Each, EpilogueOp, Expr, Family, Leaf, Operand, Point, ReduceTile, Var,
};

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "combine_rows",
    "combine_rows",
    "Dtype::@{ dtype }@, Dtype::@{ dtype_to }@, @{ teams }@, @{ 2 // teams }@ * kWarpgroupThreads, \
     @{ 1 + teams }@, @{ name }@Edges"
);

/// Whether a sum has factors.
pub(in crate::emit) fn is_weighted(f: &Family) -> bool {
    f.accesses.iter().any(|a| a.operand == Operand::W)
}

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let families = g.slices.iter().map(|s| family(e, *s)).collect::<Result<_>>()?;
    let head = g.head(e);
    let constant = |expr: Option<&Expr>| match expr {
        Some(Expr::Const(n)) if *n > 0 => Ok(*n),
        _ => EmitError::refuse(
            &g.name,
            "weighted sums have a fixed number of rows and contributions",
        ),
    };
    let each = contributions_of(head).map(|each| &each.extent);
    let adds = addend_of(head).is_some();
    let (rows, contributions) = (constant(head.inner.as_ref().map(|i| &i.1))?, constant(each)?);
    let lacks = may_lack(head);
    for s in &g.slices {
        let f = &e.plan.families[s.id];
        if f.inner.as_ref().map(|i| &i.1) != head.inner.as_ref().map(|i| &i.1)
            || contributions_of(f).map(|each| &each.extent) != each
            || may_lack(f) != lacks
            || addend_of(f).is_some() != adds
        {
            let what = "sums of one group have as many rows and contributions";
            return EmitError::refuse(&f.name, what);
        }
    }
    let src = head.accesses.iter().find(|a| a.operand == Operand::Src);
    let columns = src.and_then(|a| a.region.last());
    let columns = columns.map_or_else(String::new, |(_, n)| e.c(head, None, n));
    let of = |operand| e.one_dtype(g.slices[0].id, |o| o == operand);
    let teams = e.points.teams(&g.families())?;
    Ok(Prepared {
        families,
        hooks: context! { rows, contributions, columns, lacks, adds, teams },
        call: context! { teams, dtype => of(Operand::Src)?, dtype_to => of(Operand::Dst)? },
        workers: teams * g.ctas,
        choices: vec![format!("teams {teams}")],
    })
}

/// Whether some contributions of a row may not be there.
fn may_lack(f: &Family) -> bool {
    let mut factors = f.accesses.iter().filter(|a| a.operand == Operand::W);
    factors.any(|w| w.when.as_ref().is_some_and(|when| when.mentions(Var::EACH)))
}

/// Whether rows end where the rank's own do: nothing is read of those behind.
fn ends_with_own(e: &Emitter<'_>, [src, w, dst]: [&Access; 3], addend: Option<&Access>) -> bool {
    let own = |a: &Access| e.plan.buffers[a.buffer].own_rows;
    let of_row = |a: &Access| !own(a) || own(dst) && a.region[0] == dst.region[0];
    of_row(w) && !own(src) && addend.is_none_or(of_row)
}

/// The repetition over a row's contributions.
fn contributions_of(f: &Family) -> Option<&Each> {
    f.accesses.iter().find(|a| a.operand == Operand::Src).and_then(|a| a.each.as_ref())
}

/// What is added to the sums.
fn addend_of(f: &Family) -> Option<&Access> {
    f.accesses.iter().find(|a| a.operand == Operand::E0)
}

/// Columns of an access to one row.
fn row(a: &Access) -> Option<&(Expr, Expr)> {
    let (last, front) = a.region.split_last()?;
    front.iter().all(|(_, n)| *n == Expr::Const(1)).then_some(last)
}

/// What is looked up, weighed and summed, row by row.
fn family(e: &Emitter<'_>, s: Slice) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let refuse = |what: &str| EmitError::refuse(&f.name, what);
    let one = |operand| inner_access(f, operand);
    let (Some(src), Some(w), Some(dst)) = (one(Operand::Src), one(Operand::W), one(Operand::Dst))
    else {
        return refuse(
            "a weighted sum has one source, one factor and one result in its inner loop",
        );
    };
    let addend = addend_of(f);
    let epilogue = addend.map(|_| EpilogueOp::Add).into_iter().collect();
    if f.leaf != (Leaf::ReduceTile(ReduceTile { epilogue })) {
        return refuse("nothing but an `add` follows a weighted sum");
    }
    let own = |a: &Access| a.rank == Expr::Var(Var::RANK);
    let wide = |a: &Access| {
        let n = a.region.len() - 1;
        let (from, columns) = row(a)?;
        (*from == Expr::Const(0)).then(|| (columns.clone(), n, e.extent(a.buffer, n)))
    };
    // A result's columns may be named otherwise than a contribution's: their numbers count.
    let number = |x: &Expr| e.number(x);
    let (Some((n, _, all)), Some((m, _, to))) = (wide(src), wide(dst)) else {
        return refuse("a weighted sum is of whole rows, one at a time");
    };
    let same = [&n, &all, &m, &to].map(number);
    if same.iter().any(|x| x.is_none() || *x != same[0]) {
        return refuse("a weighted sum is of whole rows, one at a time");
    }
    if !own(w) || dst.each.is_some() || w.each != src.each {
        return refuse("a weighted sum has factors of its own rank, one for each contribution");
    }
    if dst.rank.mentions(Var::INNER) {
        return refuse("weighted sums of a task go to one rank");
    }
    if row(w).is_none_or(|(_, n)| *n != Expr::Const(1)) {
        return refuse("a factor is one element");
    }
    if dst.when.as_ref().is_some_and(|w| w.mentions(Var::EACH)) {
        return refuse("a row is there, or is not, whatever its contributions are");
    }
    if src.when != w.when && src.when != dst.when || w.when != dst.when && !may_lack(f) {
        return refuse("contributions of a row are where their factors are, or where the row is");
    }
    if let Some(added) = addend {
        let as_result = own(added)
            && added.at == Point::Inner
            && added.each.is_none()
            && added.when == dst.when
            && row(added).is_some_and(|(from, n)| {
                *from == Expr::Const(0) && number(n).is_some() && number(n) == number(&m)
            })
            && e.plan.buffers[added.buffer].dtype == e.plan.buffers[dst.buffer].dtype;
        if !as_result {
            return refuse(
                "the addend of a weighted sum has another shape, dtype or condition than its result",
            );
        }
    }
    if !ends_with_own(e, [src, w, dst], addend) {
        return refuse("a weighted sum reads a rank's own rows where it makes one of them");
    }
    let (Some(each), Some(inner)) = (&src.each, &f.inner) else {
        return refuse("a weighted sum runs over its contributions");
    };
    let from = e.pitch_bytes(&f.name, src.buffer)?;
    // Another rank's rows are addressed by a pitch that all ranks share; own rows may have any.
    let width = match own(dst) {
        true => e.own_pitch_bytes(dst.buffer),
        false => e.pitch_bytes(&f.name, dst.buffer)?.to_string(),
    };
    let say = |x: &Expr| e.c(f, Some(each), x);
    let mut looks = f.waits.iter().filter(|w| w.at == Point::Start);
    if looks.any(|w| e.plan.wait_names_stored(w)) {
        return refuse("a weighted sum looks words up in its inner loop");
    }
    Ok(context! {
        inner => inner.0.clone(),
        each => each.var.clone(),
        exists => e.there(f, None, dst),
        there => e.there(f, Some(each), w),
        source => format!("{} + static_cast<u64>({}) * {from}", e.base(src.buffer, &say(&src.rank)), say(&e.row(src))),
        factor => format!(
            "{} + static_cast<u64>({}) * 4",
            e.base(w.buffer, "params.header.rank"),
            say(&e.flat(w, 0, w.region.len()))
        ),
        destination => format!(
            "{} + static_cast<u64>({}) * {width}",
            e.base(dst.buffer, &e.c(f, None, &dst.rank)),
            e.c(f, None, &e.row(dst))
        ),
        addend => addend.map_or_else(String::new, |x| format!(
            "{} + static_cast<u64>({}) * {}",
            e.base(x.buffer, "params.header.rank"),
            e.c(f, None, &e.row(x)),
            e.own_pitch_bytes(x.buffer)
        )),
        decode_waits => e.waits(f, Agent::Copier, Point::Start)?,
        load_waits => e.waits(f, Agent::Copier, Point::Inner)?,
        posts => e.posts(f),
        ..e.slice(s)
    })
}
