//! Heads of rows, turned by the angles of their row.

use super::{algebra::Algebra, cells::Lines};

/// Each head of `x`, of rows of so many columns, turned by `table`: rows of `head` columns, cosines and then sines.
/// Nothing of rows that are not whole heads.
pub(super) fn turned<A: Algebra>(
    algebra: &mut A,
    back: bool,
    [columns, head]: [usize; 2],
    x: &[A::Elem],
    table: &[A::Elem],
) -> Option<Vec<A::Elem>> {
    let half = head / 2;
    let whole = half > 0 && head % 2 == 0 && columns % head == 0;
    if !whole || columns == 0 || x.len() / columns * head != table.len() {
        return None;
    }
    let mut out = Vec::with_capacity(x.len());
    for (row, angles) in x.chunks(columns).zip(table.chunks(head)) {
        for (j, own) in row.iter().enumerate() {
            let at = j % head;
            let is_first = at < half;
            let other = row[if is_first { j + half } else { j - half }];
            let straight = algebra.mul(*own, angles[at % half]);
            let across = algebra.mul(other, angles[half + at % half]);
            out.push(match is_first != back {
                true => algebra.difference(straight, across),
                false => algebra.add(straight, across),
            });
        }
    }
    Some(out)
}

/// Both halves of the heads are one index, and so are those of the angles: `x` and `table` are a line and where it
/// begins, `columns` and `head` their lengths.
pub(super) fn link(lines: &mut Lines, x: (u32, i32), table: (u32, i32), [columns, head]: [i32; 2]) {
    let half = head / 2;
    if half == 0 {
        return;
    }
    let angles = (table.0, table.1, half);
    lines.link(angles, (table.0, table.1 + half, half));
    for first in (0..columns - head + 1).step_by(head as usize) {
        for at in [first, first + half] {
            lines.link(angles, (x.0, x.1 + at, half));
        }
    }
}
