//! The template values of both leaves that copy: one source, read once, and its destinations, as evenly spaced rows.

use super::{heads::whole_heads, record::Group};
use crate::emit::{EmitError, Result, context::Emitter, maps::View, types::Slice};
use minijinja::{Value, context};
use mk_plan::{
    Access, Agent, COPY_STAGE_BYTES, Expr, FamId, Family, Leaf, Operand, Point, Space, Var,
    mma_narrow, row_dim,
};

/// Whether some elements of a loop's copies are single bytes.
pub(super) fn of_bytes(e: &Emitter<'_>, g: &Group) -> bool {
    let all = g.slices.iter().flat_map(|s| &e.plan.families[s.id].accesses);
    let mut moved = all.filter(|a| matches!(a.operand, Operand::Src | Operand::Dst));
    moved.any(|a| e.plan.buffers[a.buffer].dtype.size_bytes() == 1)
}

/// Whether some copies read rows of which each rank has its own number.
pub(super) fn of_own_rows(e: &Emitter<'_>, g: &Group) -> bool {
    let mut read = g.slices.iter().flat_map(|s| &e.plan.families[s.id].accesses);
    read.any(|a| a.operand == Operand::Src && e.plan.buffers[a.buffer].own_rows)
}

/// Whether copies stand beside GEMMs of eight bits, whose sums are promoted, and beside all that moves rows over nodes.
pub(super) fn few_registers(e: &Emitter<'_>, g: &Group) -> bool {
    let role = g.slices.first().map(|s| e.plan.families[s.id].role);
    let narrow = |f: &Family| matches!(&f.leaf, Leaf::MmaTile(tile) if mma_narrow(tile.block[2]));
    let mut beside = e.plan.families.values().filter(|f| Some(f.role) == role);
    e.plan.nic.is_some() && beside.any(narrow)
}

/// Of a task's rows those that are there, and the word that others are full of; where a loop has both, all rows of the
/// others are there.
fn given_rows(e: &Emitter<'_>, f: &Family, src: &Access) -> String {
    let buffer = &e.plan.buffers[src.buffer];
    if !buffer.own_rows {
        return ", rows, 0".into();
    }
    let first = e.c(f, None, &src.region[0].0);
    let fill = if buffer.dtype.is_integer() { "~0u" } else { "0" };
    let left = format!("static_cast<int>(params.header.own_rows) - ({first})");
    format!(", static_cast<u32>(max_i(0, min_i(rows, {left}))), {fill}")
}

/// One copy family: a contiguous block (bulk) or rows (ldst), read once and written to each destination.
pub(super) fn copy(e: &mut Emitter<'_>, s: Slice, (bulk, own): (bool, bool)) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let (sources, targets) = (choice(e, s.id, Operand::Src)?, choice(e, s.id, Operand::Dst)?);
    let (src, dst) = (sources[0], targets[0]);
    if src.each.is_some() {
        return EmitError::refuse(&f.name, "a copy reads one place");
    }
    let (col, cols) = &src.region[src.region.len() - 1];
    let (d_col, d_cols) = &dst.region[dst.region.len() - 1];
    let (Some((rows, s_step)), Some((d_rows, d_step))) = (rows(e, src), rows(e, dst)) else {
        return EmitError::refuse(&f.name, "a copy moves evenly spaced rows");
    };
    if cols != d_cols || rows != d_rows {
        return EmitError::refuse(&f.name, "source and destination differ in shape");
    }
    let size = e.plan.buffers[src.buffer].dtype.size_bytes();
    let place = f.name.as_str();
    let from = e.own_pitch_bytes(src.buffer);
    // Another rank's rows are addressed by a pitch that all ranks share; own rows may have any.
    let to = if dst.rank == Expr::Var(Var::RANK) {
        e.own_pitch_bytes(dst.buffer)
    } else {
        e.pitch_bytes(place, dst.buffer)?.to_string()
    };
    if bulk {
        check_rows(e, s.id, src, dst)?;
    }
    let close = [&s_step, &d_step].iter().all(|step| **step == Expr::Const(1));
    let strided = bulk && !(close && whole_rows(e, s.id, src)? && whole_rows(e, s.id, dst)?);
    let boxes = if strided { boxes(e, s.id, &sources)? } else { None };
    let each = dst.each.as_ref();
    let at = |a: &Access, base: String, pitch: &str, col: &Expr| {
        let each = a.each.as_ref();
        format!(
            "{base} + static_cast<u64>({}) * {pitch} + bytes_of({}, {size})",
            e.c(f, each, &e.row(a)),
            e.c(f, each, col)
        )
    };
    // Of several places, all alike, a condition chooses one.
    let base = |list: &[&Access]| {
        let of = |a: &Access| e.base(a.buffer, &e.c(f, a.each.as_ref(), &a.rank));
        let (last, others) = list.split_last().unwrap_or((&src, &[]));
        others
            .iter()
            .rev()
            .fold(of(last), |rest, a| format!("({} ? {} : {rest})", e.condition(f, a), of(a)))
    };
    let (source, target) = (base(&sources), base(&targets));
    Ok(context! {
        rows => e.c(f, None, &rows),
        row_bytes => row_bytes(e, f, cols, size),
        source => at(src, source, &from, col),
        strided,
        boxes,
        source_pitch => spaced(from, &e.c(f, None, &s_step)),
        destination => at(dst, target, &to, d_col),
        destination_pitch => spaced(to, &e.c(f, None, &d_step)),
        each => each.map(|x| x.var.clone()),
        destinations => each.map_or("1".into(), |x| e.c(f, None, &x.extent)),
        own_rows => if own { given_rows(e, f, src) } else { String::new() },
        load_waits => e.waits(f, if bulk { Agent::Loader } else { Agent::Copier }, Point::Start)?,
        store_waits => e.waits(f, Agent::Storer, Point::Start)?,
        store_signals => f.waits.iter().any(|w| w.by == Agent::Storer && !e.is_entry(w.signal)),
        posts => e.posts(f),
        asks => asks(e, f)?,
        ..e.slice(s)
    })
}

/// The condition, in C, under which a task moves data; both ends share it.
fn asks(e: &Emitter<'_>, f: &Family) -> Result<Option<String>> {
    let ends = f.accesses.iter().filter(|a| matches!(a.operand, Operand::Src | Operand::Dst));
    let mut asked = ends.map(|a| (a, e.plan.meeting(a.when.as_ref()).map(|m| m.entry)));
    let Some((_, first)) = asked.next() else { return Ok(None) };
    if asked.any(|(a, entry)| entry != first || entry.is_some() && a.each.is_some()) {
        let what =
            "a copy where parts meet has the same condition at both ends, and one destination";
        return EmitError::refuse(&f.name, what);
    }
    Ok(first.map(|entry| e.c(f, None, entry)))
}

/// The places of an operand: one, or several that differ in the buffer alone, of which each task's conditions choose
/// one.
fn choice<'p>(e: &Emitter<'p>, id: FamId, operand: Operand) -> Result<Vec<&'p Access>> {
    let f = &e.plan.families[id];
    let all: Vec<&Access> = f.accesses.iter().filter(|a| a.operand == operand).collect();
    let always = |a: &Access| e.plan.beside_meeting(a.when.as_ref()).is_none();
    let (first, others) = match &all[..] {
        [one] if always(one) => return Ok(all),
        [first, others @ ..] if !others.is_empty() => (first, others),
        _ => return e.access(f, operand).map(|a| vec![a]),
    };
    let refuse = |what: &str| EmitError::refuse(&f.name, what);
    for a in others {
        let (x, y) = (&e.plan.buffers[first.buffer], &e.plan.buffers[a.buffer]);
        let alike = (&a.region, &a.rank, &a.each) == (&first.region, &first.rank, &first.each)
            && (&x.shape, &x.pitch, x.dtype, x.space) == (&y.shape, &y.pitch, y.dtype, y.space);
        if !alike {
            return refuse("places that a condition chooses from differ in the buffer alone");
        }
    }
    for rank in 0..e.plan.mesh.size() as usize {
        for task in e.points.tasks(id, rank, 1)? {
            let mut chosen = 0;
            for a in &all {
                let Some(when) = e.plan.beside_meeting(a.when.as_ref()) else {
                    return refuse("one of several places has no condition");
                };
                if when.mentions(Var::EACH) {
                    return refuse("the same place is chosen for each of several destinations");
                }
                chosen += i32::from(e.points.eval(&task, when)? != 0);
            }
            if chosen != 1 {
                return refuse("conditions choose one place for each task");
            }
        }
    }
    Ok(all)
}

/// Rows of one head of `[B, S, H, D]`, as the loader asks TMA for a stage's worth of them: there are too many short
/// rows to ask for each. `None` where rows are not that.
fn boxes(e: &mut Emitter<'_>, id: FamId, sources: &[&Access]) -> Result<Option<String>> {
    let f = &e.plan.families[id];
    let mut maps = Vec::new();
    for a in sources {
        let shape = e.points.shape(a.buffer, 0)?;
        let [.., heads, wide] = shape[..] else { return Ok(None) };
        let bytes = wide as u64 * e.plan.buffers[a.buffer].dtype.size_bytes();
        let rows = (u64::from(COPY_STAGE_BYTES) / bytes.max(1)) as u32;
        // A box has at most 256 of each dimension (CUDA driver API, cuTensorMapEncodeTiled).
        let fits = wide <= 256
            && (2..=256).contains(&rows)
            && u64::from(rows) * bytes == u64::from(COPY_STAGE_BYTES);
        let input = e.plan.buffers[a.buffer].space == Space::In;
        let own = a.each.is_none() && a.rank == Expr::Var(Var::RANK);
        let of_heads = shape.len() == 4 && heads > 1 && row_dim(a) == Some(1);
        if !(fits && input && own && of_heads && whole_heads(e, a, wide as u32)?) {
            return Ok(None);
        }
        let view = View::cut([1, 2, 3]);
        maps.push(e.maps.index_plain(e.plan, a.buffer, &view, &[1, rows, 1, wide as u32])?);
    }
    let map = |i: usize| format!("&params.maps[kMap{}]", maps[i]);
    let last = maps.len() - 1;
    let map = (0..last).rev().fold(map(last), |rest, i| {
        format!("({} ? {} : {rest})", e.condition(f, sources[i]), map(i))
    });
    let at = |d: usize| e.c(f, None, &sources[0].region[d].0);
    Ok(Some(format!("{map}, {}, {}, {}", at(2), at(1), at(0))))
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
    // A vector.
    if leading.is_empty() {
        return Some((Expr::Const(1), Expr::Const(1)));
    }
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

/// A bulk copy moves whole rows without gaps, in multiples of 16 bytes, on every rank; or parts of rows, each of which
/// fits a stage.
fn check_rows(e: &Emitter<'_>, id: FamId, src: &Access, dst: &Access) -> Result<()> {
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
        return EmitError::refuse(id.to_string(), what);
    }
    let whole = whole_rows(e, id, src)? && whole_rows(e, id, dst)?;
    if longest > i64::from(COPY_STAGE_BYTES) && !whole {
        let what = format!(
            "parts of rows of {longest} bytes do not fit a stage of {COPY_STAGE_BYTES}: use via=ldst"
        );
        return EmitError::refuse(id.to_string(), what);
    }
    Ok(())
}

/// Whether all rows of an access are whole, and multiples of 16 bytes.
fn whole_rows(e: &Emitter<'_>, id: FamId, a: &Access) -> Result<bool> {
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
) -> Result<()> {
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

/// `pitch * times`, as C.
fn spaced(pitch: String, times: &str) -> String {
    if times == "1" { pitch } else { format!("{pitch} * ({times})") }
}
