//! Attention.

use super::Rules;
use crate::valid::touched::{Touched, area, made_of, matrix, of, one_place, text};
use mk_plan::{AttendTile, Family, Operand};
use std::collections::{BTreeMap, BTreeSet};

impl Rules for AttendTile {
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let [tile, depth, values] = [self.block[0], self.block[2], self.value_dim()];
        let of_one = |t: &&Touched<'_>| {
            matches!(t.operand, Operand::O | Operand::Lse | Operand::Sinks | Operand::Bounds)
        };
        if let (true, Some(t)) = (self.heads != 1, touched.iter().find(of_one)) {
            return Err(format!("a tile of {} heads has no `{}`", self.heads, t.operand));
        }
        one_place(touched, &[Operand::Q, Operand::K, Operand::V])?;
        let result = |t: &Touched<'_>| matches!(t.operand, Operand::O | Operand::AccOut);
        if touched.iter().any(|t| result(t) && t.extents.is_some()) {
            made_of(touched, &[Operand::Q, Operand::K, Operand::V])?;
        }
        paired(touched)?;
        let (mut rows, mut keys) = (None, BTreeMap::new());
        let mut width = BTreeMap::from([(true, i64::from(values))]);
        for t in touched.iter().filter(|t| !matches!(t.operand, Operand::Lse | Operand::Sinks)) {
            let Some([x, y]) = rows_and_columns(self, t)? else { continue };
            if t.operand == Operand::Q && (x > i64::from(tile) || y != i64::from(depth)) {
                return Err(format!("`q` is {x} x {y}, and a tile {tile} x {depth}"));
            }
            let wrong = |what: &str, n: i64, other: i64| {
                Err(format!("`{}` has {n} {what}, and others {other}", t.operand))
            };
            // Keys and values of one step are as many; queries are as wide as keys, results as values.
            let (of_rows, of_width) = match t.operand {
                Operand::K => (keys.entry(t.step).or_insert(x), width.entry(false).or_insert(y)),
                Operand::V => (keys.entry(t.step).or_insert(x), width.entry(true).or_insert(y)),
                Operand::Q => (rows.get_or_insert(x), width.entry(false).or_insert(y)),
                Operand::Bounds | Operand::Span | Operand::StatIn | Operand::StatOut => {
                    if y != 2 {
                        return wrong("columns", y, 2);
                    }
                    let of_rows = rows.get_or_insert(x);
                    if *of_rows != x {
                        return wrong("rows", x, *of_rows);
                    }
                    continue;
                }
                _ => (rows.get_or_insert(x), width.entry(true).or_insert(y)),
            };
            if *of_rows != x {
                return wrong("rows", x, *of_rows);
            }
            if *of_width != y {
                return wrong("columns", y, *of_width);
            }
        }
        if let Some(n) = of(touched, Operand::Sinks).map(area).find(|n| *n != 1) {
            return Err(format!("`sinks` has {n} elements, and a tile is of one head"));
        }
        for lse in of(touched, Operand::Lse).filter(|t| t.extents.is_some()) {
            let rows = rows.unwrap_or(0);
            if area(lse) != rows {
                return Err(format!("`lse` has {} elements, and others {rows} rows", area(lse)));
            }
        }
        Ok(())
    }

    fn contributions(&self) -> &'static [Operand] {
        &[Operand::AccIn, Operand::StatIn]
    }
}

/// The rows and columns that a tile touches. A query has one row for each of its heads.
fn rows_and_columns(tile: &AttendTile, t: &Touched<'_>) -> Result<Option<[i64; 2]>, String> {
    let keys = matches!(t.operand, Operand::K | Operand::V);
    let Some(dims) = t.extents.filter(|_| tile.heads != 1 && !keys) else { return matrix(t) };
    match dims {
        [ones @ .., (_, queries), (_, heads), (_, columns)]
            if ones.iter().all(|d| d.1 == 1) && *heads == i64::from(tile.heads) =>
        {
            Ok(Some([queries * heads, *columns]))
        }
        _ => Err(format!(
            "`{}` is {}, and a tile has {} heads of each query",
            t.operand,
            text(dims),
            tile.heads
        )),
    }
}

/// Keys have values at each step, and values keys.
fn paired(touched: &[Touched<'_>]) -> Result<(), String> {
    let steps = |operand| -> BTreeSet<u32> {
        of(touched, operand).filter(|t| t.extents.is_some()).map(|t| t.step).collect()
    };
    match steps(Operand::K) == steps(Operand::V) {
        true => Ok(()),
        false => Err("`k` and `v` are not read at the same steps".into()),
    }
}
