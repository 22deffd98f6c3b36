//! Links between dimensions of a task's operands.

use super::{
    cells::{Lines, Stretch},
    unroll::{Touch, Unrolled},
};

pub(super) struct Linker<'l, 'a> {
    pub lines: &'l mut Lines,
    pub unrolled: &'l Unrolled<'a>,
    pub line_of: &'l dyn Fn(u32) -> u32,
    pub sequence: u32,
}

/// Rows and columns of a tile: which dimensions they are. Of one row, none is.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub rows: Option<usize>,
    pub columns: Option<usize>,
}

impl Linker<'_, '_> {
    pub fn stretch(&self, t: &Touch, d: usize) -> Stretch {
        let (base, len) = self.unrolled.region(t)[d];
        ((self.line_of)(t.slab) + d as u32, base, len)
    }

    /// The dimensions that have more than one element.
    pub fn plain(&self, t: &Touch) -> Vec<usize> {
        let region = self.unrolled.region(t).iter().enumerate();
        region.filter(|(_, d)| d.1 != 1).map(|(i, _)| i).collect()
    }

    pub fn matrix(&self, t: &Touch) -> Result<Matrix, String> {
        let region = self.unrolled.region(t);
        let last = region.len().checked_sub(1);
        let mut rows = (0..last.unwrap_or(0)).filter(|d| region[*d].1 != 1);
        match (rows.next(), rows.next()) {
            (rows, None) => Ok(Matrix { rows, columns: last }),
            _ => Err(format!("`{}` has more than two dimensions", t.operand)),
        }
    }

    /// The same, and which dimension has heads, where several of each query are rows.
    pub fn of_heads(&self, t: &Touch, heads: u32) -> Result<(Matrix, Option<usize>), String> {
        if heads <= 1 {
            return Ok((self.matrix(t)?, None));
        }
        let region = self.unrolled.region(t);
        let several = |d: usize| (region[d].1 != 1).then_some(d);
        match region.len().checked_sub(3) {
            Some(rows) if (0..rows).all(|d| several(d).is_none()) => {
                let m = Matrix { rows: several(rows), columns: Some(rows + 2) };
                Ok((m, several(rows + 1)))
            }
            _ => Err(format!("`{}` has more than queries, heads and elements", t.operand)),
        }
    }

    pub fn len(&self, t: &Touch, d: Option<usize>) -> i32 {
        d.map_or(1, |d| self.unrolled.region(t)[d].1)
    }

    /// Two dimensions are the same index; none stands for one of a single element.
    pub fn link(
        &mut self,
        (a, i): (&Touch, Option<usize>),
        (b, j): (&Touch, Option<usize>),
    ) -> Result<(), String> {
        let (n, m) = (self.len(a, i), self.len(b, j));
        if n != m {
            return Err(format!("`{}` has {n} where `{}` has {m}", a.operand, b.operand));
        }
        if let (Some(i), Some(j)) = (i, j)
            && n > 1
        {
            let (x, y) = (self.stretch(a, i), self.stretch(b, j));
            self.lines.link(x, y);
        }
        Ok(())
    }

    /// Two regions have the same elements in the same order.
    pub fn alike(&mut self, a: &Touch, b: &Touch) -> Result<(), String> {
        let (x, y) = (self.plain(a), self.plain(b));
        if x.len() != y.len() {
            return Err(format!("`{}` and `{}` have other dimensions", a.operand, b.operand));
        }
        for (i, j) in x.into_iter().zip(y) {
            self.link((a, Some(i)), (b, Some(j)))?;
        }
        Ok(())
    }

    pub fn cut_statistics(&mut self, t: &Touch, m: Matrix) {
        let (line, base, len) = self.stretch(t, m.columns.unwrap_or(0));
        (1..len).for_each(|i| self.lines.cut(line, base + i));
    }
}
