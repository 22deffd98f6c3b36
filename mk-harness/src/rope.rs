//! Heads of rows, turned by the angles of their row.

use crate::{
    error::{HarnessError, Result},
    value::Matrix,
};

/// Each head of `x` turned by `table`, which has as many columns as a head: cosines and then sines.
///
/// # Errors
/// For rows that are not whole heads, or have no angles.
pub(crate) fn turned(back: bool, x: &Matrix, table: &Matrix) -> Result<Matrix> {
    let (columns, head) = (x.cols, table.cols);
    let half = head / 2;
    let whole = half > 0 && head % 2 == 0 && columns % head == 0;
    if !whole || columns == 0 || x.len() / columns * head != table.len() {
        return Err(HarnessError::mismatch("`rope` of rows that are not whole heads"));
    }
    let elements = (0..x.len()).map(|i| {
        let (row, place) = (i / columns * head, i % columns % head);
        let other = if place < half { i + half } else { i - half };
        let (cos, sin) = (table.at(row + place % half), table.at(row + half + place % half));
        let sign = if (place < half) != back { -1.0 } else { 1.0 };
        x.at(i).mul(cos).add(x.at(other).mul(sin).scale(sign))
    });
    Ok(Matrix::collect(columns, elements))
}
