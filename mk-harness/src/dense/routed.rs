//! Rows of experts: their products, and tokens as rows and as weighted sums of them.

use super::routes::{Packed, known};
use super::{Dense, Set, on};
use crate::{
    HarnessError, Result,
    near::Near,
    routing,
    value::{Matrix, Value},
};
use mk_syntax::{Def, Factors, Node, Op, SCALE_BLOCK, ValueId};
use std::{collections::BTreeMap, sync::Arc};

impl Dense<'_> {
    /// Rows of `x` by the matrices of their experts; rows of none are not judged.
    pub(super) fn grouped(
        &self,
        node: &Node,
        rows: &[usize],
        [x, w]: [&Value; 2],
    ) -> Result<Value> {
        let (x, w) = (on(x, 0)?, on(w, 0)?);
        let narrow = self.multiplied(node.inputs[0]).is_narrow();
        let experts = self.experts(node, self.extent(node.result, 0))?;
        let (k, n) = (self.width(node.inputs[0]), self.width(node.result));
        let transposed = node.op == (Op::GroupedGemm { transposed: true });
        // A stored matrix, as rows.
        let wide = if transposed { k } else { n };
        let mut near = vec![Near::unasked(); rows.len() * n];
        for e in 0..self.extent(node.inputs[1], 0) {
            let of_expert = |(_, row): &(usize, &usize)| experts.get(**row) == Some(&Some(e));
            let mine: Vec<usize> = rows.iter().enumerate().filter(of_expert).map(|x| x.0).collect();
            if mine.is_empty() {
                continue;
            }
            let left = x.pick(k, mine.iter().flat_map(|i| i * k..(i + 1) * k));
            let right = match self.matrix_of(node.inputs[1], e)? {
                Some(matrix) => matrix.pick(wide, 0..k * n),
                None => w.pick(wide, e * k * n..(e + 1) * k * n),
            };
            let turned = (0..k).flat_map(|c| (0..n).map(move |r| r * k + c));
            let right = if transposed { right.pick(n, turned) } else { right };
            let made = left.product(&right, mine.len(), k, narrow);
            for (from, to) in mine.iter().enumerate() {
                (0..n).for_each(|j| near[to * n + j] = made.at(from * n + j));
            }
        }
        Ok(Value::Whole(Matrix::collect(n, near.into_iter())))
    }

    /// Matrix `e` of the caller's stack, times the factors of its blocks if it has some; `None` of one that is made.
    fn matrix_of(&self, stack: ValueId, e: usize) -> Result<Option<Matrix>> {
        let program = self.inputs.case().program;
        let given = |id: ValueId| program.tensors().get(id.index());
        let one = |t| Ok::<_, HarnessError>(on(&self.input(t, Set::Chosen, &[e])?, 0)?.clone());
        if let Some(given) = given(stack) {
            return one(given).map(Some);
        }
        let Some(Def::Node(Node { op: Op::Dequantize(Factors::Blocks), inputs, .. })) =
            program.def(stack)
        else {
            return Ok(None);
        };
        let (Some(values), Some(factors)) = (given(inputs[0]), given(inputs[1])) else {
            return Ok(None);
        };
        let (values, factors) = (one(values)?, one(factors)?);
        // Rows, and columns of each; factors of the last two dimensions.
        let dims = |id| self.inputs.case().bound.shape(id).unwrap_or(&[]).to_vec();
        let (shape, blocks) = (dims(inputs[0]), dims(inputs[1]));
        let of = |dims: &[u64], from_end: usize| {
            dims.len().checked_sub(from_end).map_or(1, |d| dims[d].max(1) as usize)
        };
        let [height, width] = [of(&shape, 2), of(&shape, 1)];
        let (wide, each) = (of(&blocks, 1), of(&blocks, 2) * of(&blocks, 1));
        let block = SCALE_BLOCK as usize;
        let scaled = (0..values.len()).map(|i| {
            let (row, column) = (i / width % height, i % width);
            let at = i / width / height * each + row / block * wide + column / block;
            values.at(i).mul(factors.at(at))
        });
        Ok(Some(Matrix::collect(width, scaled)))
    }

    /// The factors of tokens in rows of experts, `[blocks, rows]`; those of no token are not judged.
    pub(super) fn factors_dispatched(
        &self,
        node: &Node,
        blocks: &[usize],
        x: &Value,
    ) -> Result<Value> {
        let (x, rows) = (on(x, 0)?, self.extent(node.result, 1));
        let tokens = self.extent(node.inputs[0], 1);
        let packed = self.packed(node.inputs[1], rows).unwrap_or_default();
        let all = blocks.iter().flat_map(|b| (0..rows).map(move |row| (*b, row)));
        let near = all.map(|(block, row)| match packed.get(row).copied().flatten() {
            Some((_, token)) => x.at(block * tokens + token),
            None => Near::unasked(),
        });
        Ok(Value::Whole(Matrix::collect(rows, near)))
    }

    /// Rows, each with the vector of its expert; rows of none are not judged.
    pub(super) fn biased(&self, node: &Node, rows: &[usize], [x, c]: [&Value; 2]) -> Result<Value> {
        let (x, c, n) = (on(x, 0)?, on(c, 0)?, self.width(node.result));
        let program = self.inputs.case().program;
        let counts = routing::counts_of(program, node.result);
        let experts = self.experts_by(counts, self.extent(node.result, 0))?;
        let near = rows.iter().enumerate().flat_map(|(i, row)| {
            let expert = experts.get(*row).copied().flatten();
            (0..n).map(move |j| match expert {
                Some(e) => x.at(i * n + j).add(c.at(e * n + j)),
                None => Near::unasked(),
            })
        });
        Ok(Value::Whole(Matrix::collect(n, near)))
    }

    /// The expert of each of so many rows, by the counts or the route of a product.
    fn experts(&self, node: &Node, n_rows: usize) -> Result<Vec<Option<usize>>> {
        self.experts_by(node.inputs.get(2).copied(), n_rows)
    }

    fn experts_by(&self, counts: Option<ValueId>, n_rows: usize) -> Result<Vec<Option<usize>>> {
        let case = self.inputs.case();
        let counts = counts.and_then(|id| case.program.tensors().get(id.index()));
        let counts = counts.ok_or_else(|| HarnessError::mismatch("counts that are made"))?;
        Ok(match self.packed(counts.id, n_rows) {
            Some(packed) => packed.iter().map(|row| Some((*row)?.0)).collect(),
            None => {
                let parts = 0..routing::parts(case, counts);
                let of_ranks: Vec<_> =
                    parts.map(|rank| self.inputs.counts(self.launch, counts, rank)).collect();
                routing::experts(n_rows, &of_ranks)
            }
        })
    }

    /// Of some experts their rows of `x`, the other way round, times those of `dy`.
    pub(super) fn wgrad(
        &self,
        node: &Node,
        chosen: &[usize],
        [x, dy]: [&Value; 2],
    ) -> Result<Value> {
        let (x, dy) = (on(x, 0)?, on(dy, 0)?);
        let experts = self.experts(node, self.extent(node.inputs[0], 0))?;
        let (k, n) = (self.width(node.inputs[0]), self.width(node.inputs[1]));
        let mut near = Vec::with_capacity(chosen.len() * k * n);
        for e in chosen {
            let of_expert = |(_, of): &(usize, &Option<usize>)| **of == Some(*e);
            let mine: Vec<usize> =
                experts.iter().enumerate().filter(of_expert).map(|x| x.0).collect();
            if mine.is_empty() {
                near.extend((0..k * n).map(|_| Near::exact(0.0)));
                continue;
            }
            let turned = (0..k).flat_map(|c| mine.iter().map(move |r| r * k + c));
            let left = x.pick(mine.len(), turned);
            let right = dy.pick(n, mine.iter().flat_map(|i| i * n..(i + 1) * n));
            let made = left.product(&right, k, mine.len(), false);
            near.extend((0..k * n).map(|i| made.at(i)));
        }
        Ok(Value::Whole(Matrix::collect(k * n, near.into_iter())))
    }

    /// The experts of all tokens.
    pub(super) fn ids(&self, ids: ValueId) -> Arc<Vec<i32>> {
        let case = self.inputs.case();
        let of_rank = |tensor, rank| self.inputs.ids(self.launch, tensor, rank);
        let make = || match case.program.tensors().get(ids.index()) {
            Some(tensor) => (0..case.ranks).flat_map(|rank| of_rank(tensor, rank)).collect(),
            None => Vec::new(),
        };
        known(&self.routes, |known| &mut known.ids, ids, make)
    }

    /// Expert and token of each of so many rows, by a route; `None` for counts.
    pub(super) fn packed(&self, ids: ValueId, rows: usize) -> Option<Arc<Packed>> {
        let case = self.inputs.case();
        let experts = routing::experts_of(case, ids)?;
        let slots = self.extent(ids, 1);
        let of = (case.ranks, routing::keep(case, ids));
        let make = || routing::packed(&self.ids(ids), slots, experts, rows, of);
        Some(known(&self.routes, |known| &mut known.packed, (ids, rows), make))
    }

    /// The rows that tokens have at their experts, in their order.
    pub(super) fn routed(&self, ids: ValueId, rows: usize, tokens: &[usize]) -> Vec<usize> {
        let packed = self.packed(ids, rows).unwrap_or_default();
        let of_token = |of: &Option<(usize, usize)>| of.is_some_and(|(_, t)| tokens.contains(&t));
        let mine = packed.iter().enumerate().filter(|(_, of)| of_token(of));
        mine.map(|(row, _)| row).collect()
    }

    /// Rows of experts, which are tokens, each times the weight of its slot where there are weights; rows of none are
    /// not judged.
    pub(super) fn dispatched(
        &self,
        node: &Node,
        rows: &[usize],
        (x, weights): (&Value, Option<&Value>),
    ) -> Result<Value> {
        let (x, n) = (on(x, 0)?, self.width(node.result));
        let weights = weights.map(|w| on(w, 0)).transpose()?;
        let packed = self.packed(node.inputs[1], self.extent(node.result, 0)).unwrap_or_default();
        let (slots, ids) = (self.extent(node.inputs[1], 1), self.ids(node.inputs[1]));
        let mut near = Vec::with_capacity(rows.len() * n);
        for row in rows {
            let Some((expert, token)) = packed.get(*row).copied().flatten() else {
                near.extend((0..n).map(|_| Near::unasked()));
                continue;
            };
            let of_token = ids.iter().skip(token * slots).take(slots);
            let slot = of_token.map(|id| usize::try_from(*id)).position(|id| id == Ok(expert));
            let factor = weights.zip(slot).map(|(w, slot)| w.at(token * slots + slot));
            near.extend((0..n).map(|j| {
                let x = x.at(token * n + j);
                factor.map_or(x, |factor| x.mul(factor))
            }));
        }
        Ok(Value::Whole(Matrix::collect(n, near.into_iter())))
    }

    /// Of each slot of tokens the product of its row and the token's, and 0 where it has none.
    pub(super) fn products(
        &self,
        node: &Node,
        tokens: &[usize],
        [y, dy]: [&Value; 2],
    ) -> Result<Value> {
        let (y, dy) = (on(y, 0)?, on(dy, 0)?);
        let n = self.width(node.inputs[0]);
        let packed =
            self.packed(node.inputs[1], self.extent(node.inputs[0], 0)).unwrap_or_default();
        let rows = packed.iter().enumerate().filter_map(|(i, row)| Some(((*row)?, i)));
        let rows: BTreeMap<(usize, usize), usize> = rows.collect();
        let (slots, ids) = (self.extent(node.inputs[1], 1), self.ids(node.inputs[1]));
        let of_slot = |token: usize, slot: usize| {
            let expert = usize::try_from(*ids.get(token * slots + slot)?).ok()?;
            rows.get(&(expert, token)).copied()
        };
        let product = |(token, slot): (usize, usize)| match of_slot(token, slot) {
            None => Near::exact(0.0),
            Some(row) => {
                let left = y.pick(n, row * n..(row + 1) * n);
                left.product(&dy.pick(1, token * n..(token + 1) * n), 1, n, false).at(0)
            }
        };
        let all = tokens.iter().flat_map(|t| (0..slots).map(move |j| (*t, j)));
        Ok(Value::Whole(Matrix::collect(slots, all.map(product))))
    }

    /// Tokens as weighted sums of their rows, of which `y` has those that are named beside it.
    pub(super) fn combined(
        &self,
        node: &Node,
        tokens: &[usize],
        (y, held): (&Value, &[usize]),
        weights: &Value,
    ) -> Result<Value> {
        let (y, weights) = (on(y, 0)?, on(weights, 0)?);
        let n = self.width(node.result);
        let ids = node.inputs[1];
        let packed = self.packed(ids, self.extent(node.inputs[0], 0)).unwrap_or_default();
        let rows: BTreeMap<(usize, usize), usize> = held
            .iter()
            .enumerate()
            .filter_map(|(i, row)| Some((packed.get(*row).copied()??, i)))
            .collect();
        let drops = routing::keep(self.inputs.case(), ids).is_some();
        let (slots, ids) = (self.extent(ids, 1), self.ids(ids));
        let mut near = Vec::with_capacity(tokens.len() * n);
        for (i, token) in tokens.iter().enumerate() {
            // The row of each slot; no expert has none.
            let from: Vec<Result<Option<usize>, _>> = (0..slots)
                .map(|slot| {
                    let expert =
                        usize::try_from(ids.get(token * slots + slot).copied().unwrap_or(-1))?;
                    Ok::<_, std::num::TryFromIntError>(rows.get(&(expert, *token)).copied())
                })
                .collect();
            near.extend((0..n).map(|j| {
                let terms = from.iter().enumerate().map(|(slot, row)| match row {
                    Ok(Some(row)) => y.at(row * n + j).mul(weights.at(i * slots + slot)),
                    Ok(None) if !drops => Near::unasked(),
                    Ok(None) | Err(_) => Near::exact(0.0),
                });
                terms.reduce(Near::add).unwrap_or_else(Near::unasked)
            }));
        }
        Ok(Value::Whole(Matrix::collect(n, near.into_iter())))
    }
}
