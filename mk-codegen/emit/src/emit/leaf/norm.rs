//! Normalised rows: by ordinary loads and stores of all computing threads.

use super::{
    heads,
    record::{Group, LeafEmission, Prepared, by_all_threads},
};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Access, Agent, Expr, Family, Leaf, NormTile, Operand, Point, Var};

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "norm_rows",
    "norm_tasks",
    "Dtype::@{ dtype }@, @{ grad }@, @{ weight }@, 2 * kWarpgroupThreads, 2, @{ name }@Edges"
);

/// Elements of 16 bytes.
const VECTOR: i64 = 8;

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let (id, f) = (g.slices[0].id, g.head(e));
    let Leaf::NormTile(leaf) = &f.leaf else {
        return Err(EmitError::internal("emit/leaf/norm.rs", format!("{id} normalises nothing")));
    };
    let weight = f.accesses.iter().any(|a| a.operand == Operand::E0);
    let dtype = e.one_dtype(id, |_| true)?;
    let families = g.slices.iter().map(|s| family(e, *s, leaf)).collect::<Result<Vec<_>>>()?;
    let alike = |s: &Slice| {
        let weighs = |a: &Access| a.operand == Operand::E0;
        e.plan.families[s.id].accesses.iter().any(weighs) == weight
    };
    if !g.slices.iter().all(alike) {
        let what = "rows of one loop have a weight, or have none";
        return EmitError::refuse(&f.name, what);
    }
    let hooks =
        context! { task => "NormTask", eps => format!("__uint_as_float(0x{:08x}u)", leaf.eps) };
    let call = context! { dtype, grad => leaf.grad.to_string(), weight => weight.to_string() };
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices: vec![] })
}

/// An operand that is whole rows of 16-byte multiples on the own rank.
///
/// # Errors
/// [`EmitError::Refused`] for any other.
pub(super) fn whole_rows<'p>(e: &Emitter<'p>, f: &'p Family, of: Operand) -> Result<&'p Access> {
    let a = e.access(f, of)?;
    let last = a.region.len() - 1;
    let mut fits = a.each.is_none() && a.rank == Expr::Var(Var::RANK);
    fits &= a.region[last] == (Expr::Const(0), e.extent(a.buffer, last));
    for rank in 0..e.plan.mesh.size() as usize {
        let columns = e.points.shape(a.buffer, rank)?.last().copied().unwrap_or(0);
        fits &= columns % VECTOR == 0 && e.points.pitch(a.buffer, rank)? % VECTOR == 0;
    }
    if !fits {
        let what = format!("`{of}` is whole rows of 16-byte multiples, on the own rank");
        return EmitError::refuse(&f.name, what);
    }
    Ok(a)
}

/// Where the rows of an operand of [`whole_rows`] lie, under a name.
///
/// # Errors
/// As [`whole_rows`].
pub(super) fn place(e: &Emitter<'_>, f: &Family, name: &str, operand: Operand) -> Result<Value> {
    let a = whole_rows(e, f, operand)?;
    let (base, pitch) = (e.base(a.buffer, "params.header.rank"), e.own_pitch_bytes(a.buffer));
    heads::rows_of(f, a)?;
    let row = e.c(f, None, &e.row(a));
    let address = format!("{base} + static_cast<u64>({row}) * {pitch}");
    Ok(context! { name, address, pitch })
}

fn family(e: &Emitter<'_>, s: Slice, leaf: &NormTile) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let mut places = vec![place(e, f, "x", Operand::Src)?, place(e, f, "out", Operand::Dst)?];
    if leaf.grad {
        places.push(place(e, f, "d", Operand::Do)?);
    }
    let weight = match f.accesses.iter().any(|a| a.operand == Operand::E0) {
        true => Some(e.base(whole_rows(e, f, Operand::E0)?.buffer, "params.header.rank")),
        false => None,
    };
    let made = whole_rows(e, f, Operand::Dst)?;
    let row = heads::rows_of(f, made)?;
    Ok(context! {
        places,
        weight,
        rows => e.c(f, None, &made.region[row].1),
        columns => e.c(f, None, &made.region[made.region.len() - 1].1),
        load_waits => e.waits(f, Agent::Copier, Point::Start)?,
        posts => e.posts(f),
        ..e.slice(s)
    })
}
