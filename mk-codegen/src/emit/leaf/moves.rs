//! The template values of both leaves that copy: one source, read once, and its destinations, as evenly spaced rows.

use crate::emit::{context::Emitter, error::EmitError, types::Slice};
use crate::ir::{Access, Agent, COPY_STAGE_BYTES, Expr, FamId, Family, Operand, Point, Var};
use minijinja::{Value, context};

/// One copy family: a contiguous block (bulk) or rows (ldst), read once and written to each destination.
pub(super) fn copy(e: &Emitter<'_>, s: Slice, bulk: bool) -> Result<Value, EmitError> {
    let f = &e.plan.families[s.id];
    let (src, dst) = (e.access(f, Operand::Src)?, e.access(f, Operand::Dst)?);
    if src.each.is_some() {
        return Err(EmitError::unsupported(f.name.clone(), "a copy reads one place"));
    }
    let (col, cols) = &src.region[src.region.len() - 1];
    let (d_col, d_cols) = &dst.region[dst.region.len() - 1];
    let (Some((rows, s_step)), Some((d_rows, d_step))) = (rows(e, src), rows(e, dst)) else {
        return Err(EmitError::unsupported(f.name.clone(), "a copy moves evenly spaced rows"));
    };
    if cols != d_cols || rows != d_rows {
        return Err(EmitError::unsupported(
            f.name.clone(),
            "source and destination differ in shape",
        ));
    }
    e.check_dtypes(f, src, dst)?;
    let size = e.plan.buffers[src.buffer].dtype.size_bytes();
    let place = f.name.as_str();
    let from = e.own_pitch_bytes(src.buffer);
    // Rows of another rank must be as long as the own ones; the own ones may be what they are.
    let to = if dst.rank == Expr::Var(Var::RANK) {
        e.own_pitch_bytes(dst.buffer)
    } else {
        e.pitch_bytes(place, dst.buffer)?.to_string()
    };
    if bulk {
        check_rows(e, s.id, src, dst)?;
    }
    let close = [&s_step, &d_step].iter().all(|step| **step == Expr::Const(1));
    let each = dst.each.as_ref();
    let at = |a: &Access, base: String, pitch: &str, col: &Expr| {
        let each = a.each.as_ref();
        format!(
            "{base} + static_cast<u64>({}) * {pitch} + bytes_of({}, {size})",
            e.c(f, each, &e.row(a)),
            e.c(f, each, col)
        )
    };
    let target = e.base(dst.buffer, &e.c(f, each, &dst.rank));
    Ok(context! {
        rows => e.c(f, None, &rows),
        row_bytes => row_bytes(e, f, cols, size),
        source => at(src, e.base(src.buffer, &e.c(f, None, &src.rank)), &from, col),
        strided => bulk && !(close && whole_rows(e, s.id, src)? && whole_rows(e, s.id, dst)?),
        source_pitch => spaced(from, &e.c(f, None, &s_step)),
        destination => at(dst, target, &to, d_col),
        destination_pitch => spaced(to, &e.c(f, None, &d_step)),
        each => each.map(|x| x.var.clone()),
        destinations => each.map_or("1".into(), |x| e.c(f, None, &x.extent)),
        load_waits => e.waits(f, if bulk { Agent::Loader } else { Agent::Copier }, Point::Start)?,
        store_waits => e.waits(f, Agent::Storer, Point::Start)?,
        store_signals => f.waits.iter().any(|w| w.by == Agent::Storer && !e.is_entry(w.signal)),
        posts => e.posts(f),
        ..e.slice(s)
    })
}

/// Bytes of so many columns: none, where a task's columns lie past the end.
fn row_bytes(e: &Emitter<'_>, f: &Family, columns: &Expr, size: u64) -> String {
    let say = e.c(f, None, columns);
    match columns {
        Expr::Const(_) | Expr::Dim(_) => format!("bytes_of({say}, {size})"),
        _ => format!("bytes_of(max_i(0, {say}), {size})"),
    }
}

/// How many rows of the last dimension a region has, and how many rows of the buffer apart, if they are evenly spaced:
/// one dimension is cut, and all behind it are whole, or all a single index.
fn rows(e: &Emitter<'_>, a: &Access) -> Option<(Expr, Expr)> {
    let leading = &a.region[..a.region.len().checked_sub(1)?];
    let cut = leading.iter().position(|(_, len)| *len != Expr::Const(1));
    let cut = cut.unwrap_or(leading.len().checked_sub(1)?);
    let behind = || leading.iter().enumerate().skip(cut + 1);
    let rows = leading[cut].1.clone();
    let extents = || behind().map(|(d, _)| e.extent(a.buffer, d));
    if behind().all(|(_, (_, len))| *len == Expr::Const(1)) {
        return Some((rows, extents().fold(Expr::Const(1), |n, e| n * e)));
    }
    let whole = |(d, (base, len)): (usize, &(Expr, Expr))| {
        *base == Expr::Const(0) && *len == e.extent(a.buffer, d)
    };
    behind().all(whole).then(|| (extents().fold(rows, |n, e| n * e), Expr::Const(1)))
}

/// A bulk copy moves whole rows without gaps, in multiples of 16 bytes, on every rank; or parts of rows, each of which fits a
/// stage.
fn check_rows(e: &Emitter<'_>, id: FamId, src: &Access, dst: &Access) -> Result<(), EmitError> {
    let (mut aligned, mut longest) = (true, 0);
    for access in [src, dst] {
        each_row(e, id, access, |base, len, pitch| {
            aligned &= [base, len, pitch].iter().all(|n| n % 16 == 0);
            longest = longest.max(len);
        })?;
    }
    if !aligned {
        let what = format!(
            "{} to {} is not rows of 16-byte multiples: use via=ldst",
            src.buffer, dst.buffer
        );
        return Err(EmitError::unsupported(id.to_string(), what));
    }
    let whole = whole_rows(e, id, src)? && whole_rows(e, id, dst)?;
    if longest > i64::from(COPY_STAGE_BYTES) && !whole {
        let what = format!(
            "parts of rows of {longest} bytes do not fit a stage of {COPY_STAGE_BYTES}: use via=ldst"
        );
        return Err(EmitError::unsupported(id.to_string(), what));
    }
    Ok(())
}

/// Whether all rows of an access are whole, and multiples of 16 bytes.
fn whole_rows(e: &Emitter<'_>, id: FamId, a: &Access) -> Result<bool, EmitError> {
    let mut whole = true;
    each_row(e, id, a, |base, len, pitch| {
        whole &= base == 0 && len == pitch && pitch % 16 == 0;
    })?;
    Ok(whole)
}

/// Runs `f` for first byte, length and pitch of the rows of an access, in every task of every rank.
fn each_row(
    e: &Emitter<'_>,
    id: FamId,
    a: &Access,
    mut f: impl FnMut(i64, i64, i64),
) -> Result<(), EmitError> {
    let size = e.plan.buffers[a.buffer].dtype.size_bytes() as i64;
    for rank in 0..e.plan.mesh.size() as usize {
        for task in e.points.tasks(id, rank, 1)? {
            e.points.for_each::<EmitError>(&task, 0, a.each.as_ref(), None, |at| {
                let Some(r) = e.points.region(at, a)? else { return Ok(()) };
                let (base, len) = r.dims[r.dims.len() - 1];
                let pitch = e.points.pitch(a.buffer, r.rank)?;
                f(base * size, len * size, pitch * size);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// A distance in memory, so many times.
fn spaced(pitch: String, times: &str) -> String {
    if times == "1" { pitch } else { format!("{pitch} * ({times})") }
}
