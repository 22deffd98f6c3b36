//! Rows of experts: products, and the rows that tokens are copied to.

use super::{Dense, on};
use crate::{
    HarnessError,
    near::Near,
    routing,
    value::{Matrix, Value},
};
use mk_syntax::Node;

impl Dense<'_> {
    /// The rows of each expert, by part of the ranks that have experts of their own.
    fn rows_of(&self, node: &Node) -> Result<Vec<Vec<i32>>, HarnessError> {
        let case = self.inputs.case();
        let counts = node.inputs.get(2).and_then(|id| case.program.tensors().get(id.index()));
        let counts = counts.ok_or_else(|| HarnessError::mismatch("counts that are made"))?;
        let parts = 0..routing::parts(case, counts);
        Ok(parts.map(|rank| self.inputs.counts(self.launch, counts, rank)).collect())
    }

    /// Rows of `x` by the matrices of their experts; rows of none are not judged.
    pub(super) fn grouped(
        &self,
        node: &Node,
        rows: &[usize],
        [x, w]: [&Value; 2],
    ) -> Result<Value, HarnessError> {
        let (x, w) = (on(x, 0)?, on(w, 0)?);
        let of_ranks = self.rows_of(node)?;
        let experts = routing::experts(self.extent(node.result, 0), &of_ranks);
        let (k, n) = (self.extent(node.inputs[1], 1), self.width(node.result));
        let mut near = vec![Near::unasked(); rows.len() * n];
        for e in 0..self.extent(node.inputs[1], 0) {
            let of_expert = |(_, row): &(usize, &usize)| experts.get(**row) == Some(&Some(e));
            let mine: Vec<usize> = rows.iter().enumerate().filter(of_expert).map(|x| x.0).collect();
            if mine.is_empty() {
                continue;
            }
            let left = x.pick(k, mine.iter().flat_map(|i| i * k..(i + 1) * k));
            let right = w.pick(n, e * k * n..(e + 1) * k * n);
            let made = left.product(&right, mine.len(), k);
            for (from, to) in mine.iter().enumerate() {
                (0..n).for_each(|j| near[to * n + j] = made.at(from * n + j));
            }
        }
        Ok(Value::Whole(Matrix::collect(n, near.into_iter())))
    }

    /// Tokens, where experts have them as rows; others are some token, and nobody reads them.
    pub(super) fn dispatched(
        &self,
        node: &Node,
        rows: &[usize],
        x: &Value,
    ) -> Result<Value, HarnessError> {
        let case = self.inputs.case();
        let ids = node.inputs.get(1).and_then(|id| case.program.tensors().get(id.index()));
        let ids = ids.ok_or_else(|| HarnessError::mismatch("ids that are made"))?;
        if routing::parts(case, ids) != 1 {
            return Err(HarnessError::unsupported("`dispatch` to experts of other ranks"));
        }
        let (x, width) = (on(x, 0)?, self.width(node.result));
        let slots = self.extent(node.inputs[1], 1);
        let tokens = routing::tokens(&self.inputs.integers(self.launch, ids, 0), slots);
        let token = |row: &usize| tokens.get(row).copied().unwrap_or(0);
        let places = rows.iter().flat_map(|row| (0..width).map(move |j| token(row) * width + j));
        Ok(Value::Whole(x.pick(width, places)))
    }
}
