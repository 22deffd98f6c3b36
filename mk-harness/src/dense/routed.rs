//! Rows of experts: their products, and tokens as rows and as weighted sums of them.

use super::routes::{Packed, known};
use super::{Dense, Set, on};
use crate::{
    HarnessError, Result,
    dropped::dropped_of,
    math,
    near::Near,
    routing,
    value::{Matrix, Value},
};
use mk_syntax::{Def, Factors, Node, Op, SCALE_BLOCK, Tensor, ValueId};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// Columns of a matrix that are made, and multiplied, at once.
const COLUMNS: usize = 128;

/// Elements by their place.
type Elements<'e> = Box<dyn Fn(usize) -> f64 + Send + Sync + 'e>;

/// A matrix of a stack, whose elements are made when they are read.
struct Stacked<'e> {
    values: Elements<'e>,
    /// Those of its blocks; and the matrix's rows and columns, and the blocks'.
    factors: Option<(Vec<f64>, [usize; 4])>,
}

impl Stacked<'_> {
    fn at(&self, i: usize) -> Near {
        let x = (self.values)(i);
        let Some((factors, [height, width, down, across])) = &self.factors else {
            return Near::exact(x);
        };
        let (row, column, block) = (i / width % height, i % width, SCALE_BLOCK as usize);
        let matrix = i / width / height * down * across;
        Near::product(x, factors[matrix + row / block * across + column / block])
    }
}

impl Dense<'_> {
    /// How many rows of its tokens each rank loses.
    pub(super) fn dropped(&self, node: &Node) -> Result<Value> {
        let case = self.inputs.case();
        let ids = node.inputs.get(1).and_then(|id| case.program.tensors().get(id.index()));
        let of_ranks = ids.and_then(|ids| dropped_of(&self.inputs, self.launch, ids));
        let of_ranks = of_ranks.ok_or_else(|| HarnessError::mismatch("rows of no routing"))?;
        let stride = of_ranks.get(1).map_or(1, |(rank, _)| *rank);
        let count = |rank: usize| of_ranks[rank / stride % of_ranks.len()].1.dropped as f64;
        let of_rank = |rank| Matrix::exact(1, vec![count(rank)]);
        Ok(Value::Contributions((0..case.ranks).map(of_rank).collect()))
    }

    /// Rows of `x` by the matrices of their experts; rows of none are not judged.
    pub(super) fn grouped(
        &self,
        node: &Node,
        rows: &[usize],
        [x, w]: [&Value; 2],
    ) -> Result<Value> {
        let k = self.width(node.inputs[0]);
        if !self.is_partial(node) {
            let all = (0..k).collect::<Vec<_>>();
            return Ok(Value::Whole(self.share(node, rows, [on(x, 0)?, on(w, 0)?], &all)?));
        }
        // Of a K that ranks share, each has its part.
        let of_rank = |rank: usize| {
            let part = self.layout(node.inputs[0], rank)?.columns();
            self.share(node, rows, [on(x, rank)?, on(w, rank)?], &part)
        };
        let contributions = (0..self.inputs.case().ranks).map(of_rank);
        Ok(Value::Contributions(contributions.collect::<Result<_>>()?))
    }

    /// The same over a part of K.
    fn share(
        &self,
        node: &Node,
        rows: &[usize],
        [x, w]: [&Matrix; 2],
        part: &[usize],
    ) -> Result<Matrix> {
        let narrow = self.multiplied(node.inputs[0]).is_narrow();
        let experts = self.experts(node.inputs.get(2).copied(), self.extent(node.result, 0))?;
        let (k, n) = (self.width(node.inputs[0]), self.width(node.result));
        let transposed = node.op == (Op::GroupedGemm { transposed: true });
        let mut near = vec![Near::unasked(); rows.len() * n];
        for e in 0..self.extent(node.inputs[1], 0) {
            let of_expert = |(_, row): &(usize, &usize)| experts.get(**row) == Some(&Some(e));
            let mine: Vec<usize> = rows.iter().enumerate().filter(of_expert).map(|x| x.0).collect();
            if mine.is_empty() {
                continue;
            }
            let of_row = |i: &usize| {
                let first = i * k;
                part.iter().map(move |c| first + c)
            };
            let left = x.pick(part.len(), mine.iter().flat_map(of_row));
            let given = self.matrix_of(node.inputs[1], e)?;
            // Columns of it, of which only so many are held at once.
            let right = |columns: &Range<usize>| {
                let place = |c: usize, j: usize| if transposed { j * k + c } else { c * n + j };
                let places = part.iter().flat_map(|c| columns.clone().map(move |j| place(*c, j)));
                match &given {
                    Some(matrix) => Matrix::collect(columns.len(), places.map(|i| matrix.at(i))),
                    None => w.pick(columns.len(), places.map(|i| e * k * n + i)),
                }
            };
            let parts = (0..n).step_by(COLUMNS).map(|from| from..(from + COLUMNS).min(n));
            let parts: Vec<Range<usize>> = parts.collect();
            let made = math::each(&parts, &|columns| {
                left.product(&right(columns), mine.len(), part.len(), narrow)
            });
            for (columns, made) in parts.iter().zip(made) {
                for (from, to) in mine.iter().enumerate() {
                    let row = &mut near[to * n..][columns.clone()];
                    row.iter_mut().enumerate().for_each(|(j, x)| {
                        *x = made.at(from * columns.len() + j);
                    });
                }
            }
        }
        Ok(Matrix::collect(n, near.into_iter()))
    }

    /// Matrix `e` of the caller's stack, times the factors of its blocks if it has some; `None` of one that is made.
    fn matrix_of(&self, stack: ValueId, e: usize) -> Result<Option<Stacked<'_>>> {
        let program = self.inputs.case().program;
        let given = |id: ValueId| program.tensors().get(id.index());
        if let Some(given) = given(stack) {
            let values = self.elements_of(given, e)?;
            return Ok(Some(Stacked { values, factors: None }));
        }
        let Some(Def::Node(Node { op: Op::Dequantize(Factors::Blocks), inputs, .. })) =
            program.def(stack)
        else {
            return Ok(None);
        };
        let (Some(values), Some(factors)) = (given(inputs[0]), given(inputs[1])) else {
            return Ok(None);
        };
        // Rows, and columns of each; factors of the last two dimensions.
        let dims = |id| self.inputs.case().bound.shape(id).unwrap_or(&[]).to_vec();
        let (shape, blocks) = (dims(inputs[0]), dims(inputs[1]));
        let of = |dims: &[u64], from_end: usize| {
            dims.len().checked_sub(from_end).map_or(1, |d| dims[d].max(1) as usize)
        };
        let sizes = [of(&shape, 2), of(&shape, 1), of(&blocks, 2), of(&blocks, 1)];
        let of_blocks = self.elements_of(factors, e)?;
        let n = blocks.iter().skip(1).map(|n| *n as usize).product();
        let of_blocks = (0..n).map(of_blocks).collect();
        let values = self.elements_of(values, e)?;
        Ok(Some(Stacked { values, factors: Some((of_blocks, sizes)) }))
    }

    /// The elements of a row of a tensor of the caller.
    fn elements_of(&self, tensor: &Tensor, row: usize) -> Result<Elements<'_>> {
        let width = self.width(tensor.id);
        for rank in 0..self.inputs.case().ranks {
            let layout = self.inputs.layout(tensor, rank)?;
            if layout.rows().contains(&row) && layout.columns().len() == width {
                let from = (row - layout.rows().start) * width;
                let element = self.inputs.elements(self.launch, tensor, rank);
                return Ok(Box::new(move |i| element(from + i)));
            }
        }
        let all = on(&self.input(tensor, Set::Chosen, &[row])?, 0)?.clone();
        Ok(Box::new(move |i| all.data[i]))
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
        let experts = self.experts(counts, self.extent(node.result, 0))?;
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
    fn experts(&self, counts: Option<ValueId>, n_rows: usize) -> Result<Vec<Option<usize>>> {
        let case = self.inputs.case();
        let counts = counts.and_then(|id| case.program.tensors().get(id.index()));
        let counts = counts.ok_or_else(|| HarnessError::mismatch("counts that are made"))?;
        Ok(match self.packed(counts.id, n_rows) {
            Some(packed) => packed.iter().map(|row| Some((*row)?.0)).collect(),
            None => {
                let parts = self.inputs.sharing(counts.id).into_iter();
                let of_rank = |rank| self.inputs.counts(self.launch, counts, rank);
                routing::experts(n_rows, &parts.map(of_rank).collect::<Vec<_>>())
            }
        })
    }

    /// Of some experts their rows of `x`, the other way round, times those of `dy`.
    pub(super) fn wgrad(&self, node: &Node, rows: &[usize], [x, dy]: [&Value; 2]) -> Result<Value> {
        let (x, dy) = (on(x, 0)?, on(dy, 0)?);
        let experts = self.experts(node.inputs.get(2).copied(), self.extent(node.inputs[0], 0))?;
        let (k, n) = (self.width(node.inputs[0]), self.width(node.inputs[1]));
        let mut near = Vec::with_capacity(rows.len() * k * n);
        for e in rows {
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
            Some(tensor) => {
                let ranks = self.inputs.sharing(ids);
                ranks.into_iter().flat_map(|rank| of_rank(tensor, rank)).collect()
            }
            None => Vec::new(),
        };
        known(&self.routes, |known| &mut known.ids, ids, make)
    }

    /// Expert and token of each of so many rows, by a route; `None` for counts.
    pub(super) fn packed(&self, ids: ValueId, rows: usize) -> Option<Arc<Packed>> {
        let case = self.inputs.case();
        let experts = routing::experts_of(case, ids)?;
        let slots = self.extent(ids, 1);
        let ranks = self.inputs.sharing(ids).len();
        let of = (ranks, routing::keep(case, ids, ranks));
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

    /// Each row times the weight of its token's slot; rows of none are not judged.
    pub(super) fn weighed(
        &self,
        node: &Node,
        rows: &[usize],
        [x, weights]: [&Value; 2],
    ) -> Result<Value> {
        let (x, weights, n) = (on(x, 0)?, on(weights, 0)?, self.width(node.result));
        let packed = self.packed(node.inputs[1], self.extent(node.result, 0)).unwrap_or_default();
        let (slots, ids) = (self.extent(node.inputs[1], 1), self.ids(node.inputs[1]));
        let mut near = Vec::with_capacity(rows.len() * n);
        for (i, row) in rows.iter().enumerate() {
            let of_row = packed.get(*row).copied().flatten().and_then(|(expert, token)| {
                let mut of_token = ids.iter().skip(token * slots).take(slots);
                let slot = of_token.position(|id| usize::try_from(*id) == Ok(expert))?;
                Some(weights.at(token * slots + slot))
            });
            near.extend((0..n).map(|j| match of_row {
                Some(weight) => x.at(i * n + j).mul(weight),
                None => Near::unasked(),
            }));
        }
        Ok(Value::Whole(Matrix::collect(n, near.into_iter())))
    }

    /// Of each slot of tokens the product of its row and the token's, or of its two rows, and 0 where it has none.
    pub(super) fn products(
        &self,
        node: &Node,
        tokens: &[usize],
        [y, dy]: [&Value; 2],
    ) -> Result<Value> {
        self.of_each(y, |rank, y| self.products_of(node, tokens, [y, on(dy, rank)?]))
    }

    /// What is made of a value; of contributions, of each.
    fn of_each(&self, of: &Value, f: impl Fn(usize, &Matrix) -> Result<Matrix>) -> Result<Value> {
        Ok(match of {
            Value::Whole(whole) => Value::Whole(f(0, whole)?),
            Value::Contributions(all) => {
                let made = all.iter().enumerate().map(|(rank, one)| f(rank, one));
                Value::Contributions(made.collect::<Result<_>>()?)
            }
        })
    }

    fn products_of(&self, node: &Node, tokens: &[usize], [y, dy]: [&Matrix; 2]) -> Result<Matrix> {
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
                let other = if node.op == Op::WeighGrad { row } else { token };
                left.product(&dy.pick(1, other * n..(other + 1) * n), 1, n, false).at(0)
            }
        };
        let all = tokens.iter().flat_map(|t| (0..slots).map(move |j| (*t, j)));
        Ok(Matrix::collect(slots, all.map(product)))
    }

    /// Tokens as weighted sums of their rows, of which `y` has those that are named beside it.
    pub(super) fn combined(
        &self,
        node: &Node,
        tokens: &[usize],
        (y, held): (&Value, &[usize]),
        weights: &Value,
    ) -> Result<Value> {
        self.of_each(y, |rank, y| self.combined_of(node, tokens, (y, held), on(weights, rank)?))
    }

    fn combined_of(
        &self,
        node: &Node,
        tokens: &[usize],
        (y, held): (&Matrix, &[usize]),
        weights: &Matrix,
    ) -> Result<Matrix> {
        let n = self.width(node.result);
        let ids = node.inputs[1];
        let packed = self.packed(ids, self.extent(node.inputs[0], 0)).unwrap_or_default();
        let rows: BTreeMap<(usize, usize), usize> = held
            .iter()
            .enumerate()
            .filter_map(|(i, row)| Some((packed.get(*row).copied()??, i)))
            .collect();
        let drops = self.inputs.case().program.drops(ids);
        let (slots, ids) = (self.extent(ids, 1), self.ids(ids));
        let mut near = Vec::with_capacity(tokens.len() * n);
        for (i, token) in tokens.iter().enumerate() {
            // The row of each slot; no expert has none.
            let of_slot = |slot: usize| {
                let expert = usize::try_from(*ids.get(token * slots + slot)?).ok()?;
                Some(rows.get(&(expert, *token)).copied())
            };
            let from: Vec<Option<Option<usize>>> = (0..slots).map(of_slot).collect();
            near.extend((0..n).map(|j| {
                let terms = from.iter().enumerate().map(|(slot, row)| match row {
                    Some(Some(row)) => y.at(row * n + j).mul(weights.at(i * slots + slot)),
                    Some(None) if !drops => Near::unasked(),
                    _ => Near::exact(0.0),
                });
                terms.reduce(Near::add).unwrap_or_else(Near::unasked)
            }));
        }
        Ok(Matrix::collect(n, near.into_iter()))
    }
}
