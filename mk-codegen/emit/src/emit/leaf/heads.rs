//! Rows of heads on the own rank, for leaves that read and write them by loads and stores.

use crate::emit::{EmitError, Result, context::Emitter};
use mk_plan::{Access, Expr, FamId, Family, Operand, Var, row_dim};

/// The dimension that queries or keys lie along.
pub(in crate::emit) fn rows_of(f: &Family, a: &Access) -> Result<usize> {
    row_dim(a).ok_or_else(|| {
        let what = format!("rows of `{}` lie along several dimensions of {}", a.operand, a.buffer);
        EmitError::unsupported(f.name.clone(), what)
    })
}

/// Whether an access takes all elements of heads, which are `dim`.
pub(in crate::emit) fn whole_heads(e: &Emitter<'_>, a: &Access, dim: u32) -> Result<bool> {
    let last = a.region.len() - 1;
    let (base, len) = &a.region[last];
    let all = *len == Expr::from(dim as i32) || *len == e.extent(a.buffer, last);
    let long = e.points.shape(a.buffer, 0)?.last() == Some(&i64::from(dim));
    Ok(*base == Expr::Const(0) && all && long)
}

/// Address of the first row of a head on this rank, and the bytes from one to the next, as C.
pub(in crate::emit) fn rows_at(
    e: &Emitter<'_>,
    id: FamId,
    a: &Access,
    dim: u32,
) -> Result<(String, String)> {
    let f = &e.plan.families[id];
    let (n, row) = (a.region.len(), rows_of(f, a)?);
    let own = a.each.is_none() && a.rank == Expr::Var(Var::RANK);
    if !own || !whole_heads(e, a, dim)? {
        let what = format!("`{}` is whole heads of the own rank", a.operand);
        return EmitError::refuse(&f.name, what);
    }
    e.check_lines(id, a)?;
    let pitch = e.own_pitch_bytes(a.buffer);
    let base = e.base(a.buffer, "params.header.rank");
    let between = (row + 1..n - 1).map(|d| e.extent(a.buffer, d));
    let step = e.c(f, None, &between.fold(Expr::Const(1), |n, x| n * x));
    let first = e.c(f, None, &e.row(a));
    Ok((
        format!("{base} + static_cast<u64>({first}) * {pitch}"),
        format!("static_cast<u64>({step}) * {pitch}"),
    ))
}

/// Address of the logarithm of a tile's first row, as C; 0 where they are not asked for.
pub(in crate::emit) fn logarithms(e: &Emitter<'_>, id: FamId) -> Result<String> {
    let f = &e.plan.families[id];
    if !f.accesses.iter().any(|a| a.operand == Operand::Lse) {
        return Ok("0".into());
    }
    let lse = e.access(f, Operand::Lse)?;
    let ones = lse.region[..lse.region.len() - 1].iter().all(|(_, len)| *len == Expr::Const(1));
    let own = lse.each.is_none() && lse.rank == Expr::Var(Var::RANK);
    if !own || !ones {
        let what = "logarithms of sums are of the own rank, those of a head side by side";
        return EmitError::refuse(&f.name, what);
    }
    let base = e.base(lse.buffer, "params.header.rank");
    let (row, pitch) = (e.c(f, None, &e.row(lse)), e.own_pitch_bytes(lse.buffer));
    let last = e.c(f, None, &lse.region[lse.region.len() - 1].0);
    Ok(format!("{base} + static_cast<u64>({row}) * {pitch} + bytes_of({last}, 4)"))
}

/// Address of the sink of a tile's head, as C; none where there are no sinks.
pub(in crate::emit) fn sink(e: &Emitter<'_>, id: FamId) -> Result<Option<String>> {
    let f = &e.plan.families[id];
    let Some(a) = f.accesses.iter().find(|a| a.operand == Operand::Sinks) else { return Ok(None) };
    let own = a.each.is_none() && a.when.is_none() && a.rank == Expr::Var(Var::RANK);
    let [(first, _)] = &a.region[..] else {
        return EmitError::refuse(&f.name, "sinks are one of each head");
    };
    if !own {
        return EmitError::refuse(&f.name, "sinks are of the own rank, always");
    }
    let (base, first) = (e.base(a.buffer, "params.header.rank"), e.c(f, None, first));
    Ok(Some(format!("{base} + bytes_of({first}, 4)")))
}

/// Address of the bounds of a tile's first row, two i32 each, as C; none where nothing is masked by them.
pub(in crate::emit) fn bounds(e: &Emitter<'_>, id: FamId) -> Result<Option<String>> {
    let f = &e.plan.families[id];
    let Some(a) = f.accesses.iter().find(|a| a.operand == Operand::Bounds) else { return Ok(None) };
    let two = a.region.len() == 2 && a.region[1] == (Expr::Const(0), Expr::Const(2));
    let shape = e.points.shape(a.buffer, 0)?;
    if !two || shape.last() != Some(&2) || e.plan.buffers[a.buffer].pitch.is_some() {
        let what = "bounds are two of each row, side by side";
        return EmitError::refuse(&f.name, what);
    }
    let base = e.base(a.buffer, "params.header.rank");
    let first = e.c(f, None, &a.region[0].0);
    Ok(Some(format!("{base} + static_cast<u64>({first}) * 8")))
}
