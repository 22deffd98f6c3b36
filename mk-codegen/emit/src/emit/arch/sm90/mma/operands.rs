//! Where the factors of a GEMM lie, as its loader asks TMA for them.

use crate::emit::{EmitError, Result, context::Emitter, maps::View};
use mk_dtype::HALF_BYTES;
use mk_plan::{
    ALayout, Access, BLayout, BufId, Expr, FamId, Family, Leaf, MMA_SHIFT_COLUMNS, MMA_STEP_BYTES,
    MmaTile, Operand, Var, depth_dim, mma_panel_columns, row_dim,
};
use std::collections::BTreeSet;

/// Rows of 16-bit elements that together take a multiple of 16 bytes, whatever their length.
const SHIFT_ROWS: u32 = 8;

/// Whether tiles shift rows of operand B.
pub(in crate::emit) fn shifted(f: &Family) -> bool {
    matches!(f.leaf, Leaf::MmaTile(MmaTile { shifted: true, .. }))
}

/// The map of such rows, of which eight are one: a box has every eighth row of a step.
///
/// # Errors
/// [`EmitError::Refused`] for other than a matrix of eight rows and more, without gaps.
pub(in crate::emit) fn shifted_map(
    e: &mut Emitter<'_>,
    f: &Family,
    b: BufId,
    columns: u32,
) -> Result<usize, EmitError> {
    let place = &e.layout.buffers[b];
    let whole = |(shape, pitch): (&Vec<i64>, &i64)| match shape[..] {
        [rows, columns] => rows >= i64::from(SHIFT_ROWS) && columns == *pitch,
        _ => false,
    };
    if e.runtime() || !place.shape.iter().zip(&place.pitch).all(whole) {
        let what = "rows that are shifted are eight and more, of a matrix without gaps";
        return Err(EmitError::unsupported(f.name.clone(), what));
    }
    let depth = MMA_STEP_BYTES / HALF_BYTES / SHIFT_ROWS;
    let boxes = [depth, columns + MMA_SHIFT_COLUMNS];
    e.maps.index_plain(e.plan, b, &View::together(SHIFT_ROWS.into()), &boxes)
}

/// A tile of a factor: coordinates in a tensor map.
pub(in crate::emit) struct Factor {
    /// How the buffer's dimensions are those of the map.
    pub view: View,
    /// Boxes of the map, outermost first.
    pub box_dims: Vec<u32>,
    /// First row of C (of A), or first column (of B).
    pub across: Expr,
    /// First k.
    pub k: Expr,
    /// Gated: from a gate's column to that of its up.
    pub up: Expr,
    /// Which matrix of a stack of them, where the map tells them apart.
    pub outer: Option<Expr>,
}

/// The left factor: rows of one matrix after another `[.., m, k]`; or `[.., k, m]`, also `[k, shards, m]`, whose rows
/// of C come in shards.
///
/// # Errors
/// [`EmitError::Refused`] for regions that no map has.
pub(in crate::emit) fn left(
    e: &Emitter<'_>,
    id: FamId,
    layout: ALayout,
    block: [u32; 3],
    loaded_rows: u32,
) -> Result<Factor> {
    let f = &e.plan.families[id];
    let a = e.access(f, Operand::A)?;
    let n = a.region.len();
    let last = &a.region[n - 1].0;
    let rows = rows_of(e, id, a)?;
    let depth = depth_dim(a, layout).ok_or_else(|| several(e, id, a))?;
    // Dimensions between the two make one long row of the map.
    let inner = match rows + 2 == n {
        true => last.clone(),
        false => e.flat(a, rows + 1, n - 1) * e.pitch(a.buffer) + last.clone(),
    };
    let view = View::cut([rows + 1]);
    e.check_depth(id, a, depth, &view, block[2])?;
    let outer = e.flat(a, 0, rows + 1);
    let (across, k, box_rows) = match layout {
        ALayout::Mk => (outer, inner, loaded_rows),
        ALayout::Km => (inner, outer, block[2]),
    };
    // A swizzle's row: of C, or of k.
    let row = if layout == ALayout::Mk { block[2] } else { 64 };
    Ok(Factor { view, box_dims: vec![box_rows, row], across, k, up: Expr::Const(0), outer: None })
}

/// Rows of the left factors `[m, k]` that the tiles of one loop load: where all matrices have fewer than a tile has
/// room for, no more than whole swizzles of eight, since TMA takes time for rows that there are none of. A loop's
/// stages expect one number of bytes, whichever family's tile they carry, so that the matrix with the most rows counts.
///
/// # Errors
/// [`EmitError::Internal`] for a family without a left factor.
pub(in crate::emit) fn loaded_rows(
    e: &Emitter<'_>,
    families: &[FamId],
    layout: ALayout,
    block_m: u32,
) -> Result<u32> {
    if layout == ALayout::Km {
        return Ok(block_m);
    }
    let mut most = 8;
    for id in families {
        let a = e.access(&e.plan.families[*id], Operand::A)?;
        let there = e.layout.buffers[a.buffer].shape.iter().map(|shape| shape[0]).max();
        let rows = match (a.region.len(), there.and_then(|n| u32::try_from(n).ok())) {
            (2, Some(n)) => n.max(1).next_multiple_of(8).min(block_m),
            _ => block_m,
        };
        most = most.max(rows);
    }
    Ok(most)
}

/// Rows of the left factor `[m, k]` that tiles load whose rows end with the tensor, where all of one loop that end so
/// have as many; each of so many CTAs side by side loads whole swizzles of eight of them. TMA takes time for rows that
/// there are none of.
///
/// # Errors
/// Where a task or a region has no value.
pub(in crate::emit) fn end_rows(
    e: &Emitter<'_>,
    families: &[FamId],
    [block_m, ..]: [u32; 3],
    [below, beside]: [u32; 2],
) -> Result<Option<u32>> {
    let [id] = families else { return Ok(None) };
    let f = &e.plan.families[*id];
    let layout = |leaf: &Leaf| matches!(leaf, Leaf::MmaTile(MmaTile { a_layout: ALayout::Mk, .. }));
    if e.runtime() || e.plan.looks_up(f) || f.inner.is_some() || !layout(&f.leaf) {
        return Ok(None);
    }
    let targets: Vec<_> = f.accesses.iter().filter(|x| x.operand == Operand::C).collect();
    let (a, [c]) = (e.access(f, Operand::A)?, &targets[..]) else { return Ok(None) };
    if a.region.len() != 2 || c.region.len() != 2 {
        return Ok(None);
    }
    let mut ends = BTreeSet::new();
    for rank in 0..e.plan.mesh.size() as usize {
        for task in e.points.tasks(*id, rank, 1)? {
            let regions = (e.points.region(&task, a)?, e.points.region(&task, c)?);
            let (Some(loaded), Some(region)) = regions else { return Ok(None) };
            if loaded.dims[0].1 != region.dims[0].1 {
                return Ok(None);
            }
            for above in (0..below).map(|tile| i64::from(tile * block_m)) {
                let rows = u32::try_from(region.dims[0].1 - above).unwrap_or(0);
                if (1..block_m).contains(&rows) {
                    ends.insert(rows.next_multiple_of(8 * beside));
                }
            }
        }
    }
    let mut ends = ends.into_iter();
    let (one, other) = (ends.next(), ends.next());
    Ok(one.filter(|rows| other.is_none() && *rows < block_m))
}

/// The right factor: `[k, n]` or `[n, k]`; gated, gates and ups `[k, 2, n]` or `[2, n, k]`. Dimensions in front choose
/// a matrix of a stack, and are one dimension of the map: k ends with each matrix, and not with the last of them.
///
/// # Errors
/// [`EmitError::Refused`] for regions that no map has.
pub(in crate::emit) fn right(
    e: &Emitter<'_>,
    id: FamId,
    layout: BLayout,
    gated: bool,
    block: [u32; 3],
) -> Result<Factor> {
    let f = &e.plan.families[id];
    let b = e.access(f, Operand::B)?;
    let n = b.region.len();
    let last = b.region[n - 1].0.clone();
    // Dimensions of one matrix. Those between its rows and the last make one long row of the map, along k.
    let front = match (layout, gated) {
        (_, true) => n - 3,
        (BLayout::Nk, false) => rows_of(e, id, b)?,
        (BLayout::Kn, false) if rows_of(e, id, b)? + 2 == n => n - 2,
        (BLayout::Kn, false) => {
            return EmitError::refuse(&f.name, "rows of operand B are contiguous");
        }
    };
    let between = if gated { n } else { front + 2 };
    let both = front + usize::from(layout == BLayout::Kn);
    let stacked = b.region[..front].iter().all(|(_, len)| *len == Expr::Const(1));
    if gated && (b.region[both] != (Expr::Const(0), Expr::Const(2)) || !stacked) {
        let what = "a gated product reads gates and ups, `0 : 2`, of one matrix";
        return EmitError::refuse(&f.name, what);
    }
    let flat = |from| e.flat(b, from, n - 1);
    let (across, k, up) = match (layout, gated) {
        (BLayout::Kn, false) => (last, flat(front), Expr::Const(0)),
        (BLayout::Nk, false) if between < n => {
            let k = e.flat(b, front + 1, n - 1) * e.pitch(b.buffer) + last;
            (b.region[front].0.clone(), k, Expr::Const(0))
        }
        (BLayout::Nk, false) => (flat(front), last, Expr::Const(0)),
        (BLayout::Kn, true) => (last, b.region[front].0.clone(), e.pitch(b.buffer)),
        (BLayout::Nk, true) => (flat(front), last, e.extent(b.buffer, n - 2)),
    };
    let (box_rows, box_cols) = match (layout, gated) {
        (BLayout::Kn, false) => (64, mma_panel_columns(block[1])),
        (BLayout::Kn, true) => (64, 64),
        (BLayout::Nk, false) => (block[1], block[2]),
        (BLayout::Nk, true) => (block[1] / 2, block[2]),
    };
    let k_dim = if layout == BLayout::Nk { n - 1 } else { front };
    // [stack,] rows, columns; of [k, 2, n] the last two are one row.
    let row_end = if !gated || layout == BLayout::Kn { front + 1 } else { n - 1 };
    let (cuts, mut box_dims) = (vec![row_end], vec![box_rows, box_cols]);
    let (view, outer) = if front == 0 {
        (View::cut(cuts), None)
    } else {
        box_dims.insert(0, 1);
        (View::cut([front, row_end]), Some(e.flat(b, 0, front)))
    };
    e.check_depth(id, b, k_dim, &view, block[2])?;
    if outer.as_ref().is_some_and(|o| o.mentions(Var::INNER)) {
        let what = "an inner loop stays in one matrix of operand B";
        return EmitError::refuse(&f.name, what);
    }
    Ok(Factor { view, box_dims, across, k, up, outer })
}

/// The dimension that a matrix's rows lie along.
pub(in crate::emit) fn rows_of(e: &Emitter<'_>, id: FamId, a: &Access) -> Result<usize> {
    row_dim(a).ok_or_else(|| several(e, id, a))
}

fn several(e: &Emitter<'_>, id: FamId, a: &Access) -> EmitError {
    let what = format!("rows of `{}` lie along several dimensions of {}", a.operand, a.buffer);
    EmitError::unsupported(e.plan.families[id].name.clone(), what)
}
