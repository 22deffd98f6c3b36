//! What a task touches, and what holds of operands of several leaves.

use super::{boxes::BoxId, region};
use mk_plan::Operand;
use std::collections::BTreeSet;

/// What an access of a task touches: the operand, at which step, for which value of `each`, and where; nowhere if the
/// region is empty.
pub(super) type Operated = (Operand, u32, Option<i64>, Option<BoxId>);

/// One region that a task touches: which operand, at which step, for which value of `each`, and its extents; none where
/// it is empty.
pub(super) struct Touched<'a> {
    pub operand: Operand,
    pub step: u32,
    pub each: Option<i64>,
    pub extents: Option<&'a [(i64, i64)]>,
}

/// The last three extents, if those before are 1; empty regions are nothing.
pub(super) fn last_three(t: &Touched<'_>) -> Result<Option<[i64; 3]>, String> {
    let Some(dims) = t.extents else { return Ok(None) };
    match dims {
        [front @ .., x, y, z] if front.iter().all(|d| d.1 == 1) => Ok(Some([x.1, y.1, z.1])),
        _ => Err(format!("`{}` is {}: a tile of it has 3 dimensions", t.operand, text(dims))),
    }
}

/// Rows and columns; dimensions before or between the two only say where a row lies (on a rank, of a head).
pub(super) fn matrix(t: &Touched<'_>) -> Result<Option<[i64; 2]>, String> {
    let Some((columns, rows)) = t.extents.and_then(|d| d.split_last()) else { return Ok(None) };
    let mut rows = rows.iter().map(|d| d.1).filter(|n| *n != 1);
    match (rows.next(), rows.next()) {
        (n, None) => Ok(Some([n.unwrap_or(1), columns.1])),
        _ => Err(format!(
            "`{}` is {}: a tile has 2 dimensions",
            t.operand,
            text(t.extents.unwrap_or_default())
        )),
    }
}

/// `128 x 64`, without the ones in front.
pub(super) fn text(dims: &[(i64, i64)]) -> String {
    let lens: Vec<_> = dims.iter().map(|d| d.1.to_string()).collect();
    let ones = dims.iter().take_while(|d| d.1 == 1).count().min(lens.len().saturating_sub(2));
    lens[ones..].join(" x ")
}

pub(super) fn of<'t, 'a>(
    touched: &'t [Touched<'a>],
    operand: Operand,
) -> impl Iterator<Item = &'t Touched<'a>> {
    touched.iter().filter(move |t| t.operand == operand)
}

/// What lies in a region apart from where: its extents without ones.
pub(super) fn plain(t: &Touched<'_>) -> Vec<i64> {
    t.extents.unwrap_or_default().iter().map(|d| d.1).filter(|n| *n != 1).collect()
}

pub(super) fn area(t: &Touched<'_>) -> i64 {
    t.extents.map_or(0, region::area)
}

/// Operands that are one tile at each step: conditions choose where it lies.
pub(super) fn one_place(touched: &[Touched<'_>], operands: &[Operand]) -> Result<(), String> {
    for operand in operands {
        let mut steps = BTreeSet::new();
        let twice =
            of(touched, *operand).filter(|t| t.extents.is_some()).any(|t| !steps.insert(t.step));
        if twice {
            return Err(format!("`{operand}` is read from two places at one step"));
        }
    }
    Ok(())
}

/// A result has its operands, which are empty where a rank has no part of them.
pub(super) fn made_of(touched: &[Touched<'_>], operands: &[Operand]) -> Result<(), String> {
    match operands.iter().find(|o| of(touched, **o).next().is_none()) {
        Some(operand) => Err(format!("a result has no `{operand}`, of which it is made")),
        None => Ok(()),
    }
}
