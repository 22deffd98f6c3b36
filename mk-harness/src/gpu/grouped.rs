//! Ragged rows on a GPU: each expert's rows are a product of their own, and rows that no expert has are not compared.

use super::{reference::Evaluator, setting::Setting};
use crate::{HarnessError, Result, routing};
use mk_abi::DType;
use mk_runtime::{DeviceTensor, MapOp, Operand};
use mk_syntax::{Node, Op, ValueId};
use std::collections::BTreeMap;

/// Consecutive rows of an expert on a rank.
struct Stretch {
    expert: u64,
    first: u64,
    rows: u64,
}

/// What ranks were given of a tensor of integers: by rank.
fn integers(s: &Setting<'_>, id: ValueId) -> Result<Vec<Vec<i32>>> {
    if s.case.program.mesh_axes().len() > 1 {
        return Err(HarnessError::unsupported("a GPU's reference of experts over two axes"));
    }
    let of_rank = |rank: usize| {
        let tensor = s.case.program.tensors().get(id.index()).and_then(|t| s.held(rank, t));
        let tensor = tensor.ok_or_else(|| HarnessError::mismatch("integers that are made"))?;
        let all = if tensor.elements() == 0 { Vec::new() } else { tensor.download_integers()? };
        Ok(all.into_iter().map(|n| i32::try_from(n).unwrap_or(-1)).collect())
    };
    (0..s.case.ranks).map(of_rank).collect()
}

/// A routing of all ranks.
struct Packed {
    ids: Vec<i32>,
    slots: usize,
    /// Expert and token of each row.
    rows: Vec<Option<(usize, usize)>>,
    /// The rows of experts and tokens.
    places: BTreeMap<(usize, usize), usize>,
}

impl Packed {
    /// By the experts of tokens, with so many rows on each rank.
    fn new(s: &Setting<'_>, ids: ValueId, rows: u64) -> Result<Packed> {
        let slots = s.case.bound.shape(ids).and_then(|d| d.get(1)).map_or(1, |n| *n as usize);
        let experts = routing::experts_of(s.case, ids).unwrap_or(1);
        let all = integers(s, ids)?.concat();
        let of = (s.case.ranks, routing::keep(s.case, ids, s.case.ranks));
        let rows = routing::packed(&all, slots, experts, rows as usize * s.case.ranks, of);
        let places = rows.iter().enumerate().filter_map(|(row, of)| Some(((*of)?, row))).collect();
        Ok(Packed { ids: all, slots, rows, places })
    }

    /// The row of a token's slot, if it has one.
    fn row(&self, token: usize, slot: usize) -> Option<usize> {
        let expert = usize::try_from(*self.ids.get(token * self.slots + slot)?).ok()?;
        self.places.get(&(expert, token)).copied()
    }

    /// The slot of a token that names an expert.
    fn slot(&self, token: usize, expert: usize) -> Option<usize> {
        let named = self.ids.iter().skip(token * self.slots).take(self.slots);
        named.map(|id| usize::try_from(*id)).position(|id| id == Ok(expert))
    }
}

/// The rows of each of a rank's experts, by the counts that it was given, or by the experts of all tokens.
fn stretches(s: &Setting<'_>, rank: usize, id: ValueId) -> Result<Vec<Stretch>> {
    let given = integers(s, id)?;
    let counts = match routing::experts_of(s.case, id) {
        None => given.into_iter().nth(rank).unwrap_or_default(),
        Some(experts) => {
            let own = experts.div_ceil(s.case.ranks.max(1));
            let mut counts = vec![0; own];
            for e in given.into_iter().flatten() {
                let mine = usize::try_from(e).ok().and_then(|e| e.checked_sub(rank * own));
                mine.and_then(|e| counts.get_mut(e)).into_iter().for_each(|n| *n += 1);
            }
            let keep = routing::keep(s.case, id, s.case.ranks).and_then(|n| i32::try_from(n).ok());
            counts.iter_mut().for_each(|n: &mut i32| *n = (*n).min(keep.unwrap_or(i32::MAX)));
            counts
        }
    };
    let mut first = 0;
    let of = |(expert, n): (u64, i32)| {
        let rows = n.max(0) as u64;
        let stretch = Stretch { expert, first, rows };
        first += rows.next_multiple_of(mk_syntax::RAGGED_BLOCK);
        stretch
    };
    let all = (0..).zip(counts).map(of).collect::<Vec<_>>();
    Ok(all.into_iter().filter(|s| s.rows > 0).collect())
}

/// Elements of a row.
fn columns(t: &DeviceTensor) -> u64 {
    t.shape()[1..].iter().product()
}

/// Writes `from` into `to`, from an element on.
fn put(to: &DeviceTensor, at: u64, from: &DeviceTensor) -> Result<()> {
    let (bytes, size) = (from.buffer().size_bytes(), from.dtype().size_bytes());
    Ok(to.buffer().copy_range(at * size, from.buffer(), 0, bytes)?)
}

impl Evaluator<'_, '_> {
    /// What an operation on rows of experts makes, of this shape on the rank; rows of none are 0.
    ///
    /// # Errors
    /// [`HarnessError::Mismatch`] for other operations; [`HarnessError::Runtime`].
    pub(super) fn of_experts(&self, node: &Node, shape: &[u64]) -> Result<DeviceTensor> {
        let [a, b, c] = [0, 1, 2].map(|i| node.inputs.get(i).copied().unwrap_or(node.result));
        let counts = routing::counts_of(self.s.case.program, node.result);
        let moves = matches!(node.op, Op::Dispatch { .. }) && node.inputs.len() == 2;
        let fill: &dyn Fn(&DeviceTensor) -> Result<()> = match (node.op, counts) {
            (Op::GroupedGemm { transposed }, _) => {
                &move |out| self.product(out, [a, b], c, transposed)
            }
            (Op::GroupedWgrad, _) => &move |out| self.wgrad(out, [a, b], c),
            (Op::Bias, Some(counts)) => &move |out| self.biased(out, [a, b], counts),
            (Op::Dispatch { .. }, _) if moves => &move |out| self.dispatched(out, a, b),
            (Op::Dispatch { .. }, _) => &move |out| self.weighed(out, [a, b, c], true),
            (Op::DispatchFactors, _) => &move |out| self.factors_dispatched(out, a, b),
            (Op::Combine, _) => &move |out| self.combined(out, a, b, c),
            (Op::CombineGrad | Op::WeighGrad, _) => &move |out| self.products(out, (node, a), b, c),
            (Op::Weigh, _) => &move |out| self.weighed(out, [a, b, c], false),
            (Op::Dropped, _) => &move |out| self.lost(out, a, b),
            _ => return Err(HarnessError::mismatch("an operation on other rows")),
        };
        let dtype = if moves { self.on(a, self.rank)?.dtype() } else { DType::F32 };
        let out = DeviceTensor::zeros(self.s.world, self.rank as u32, dtype, shape)?;
        if out.elements() > 0 {
            fill(&out)?;
        }
        Ok(out)
    }

    /// How many rows of the rank's tokens have none of those that are kept.
    fn lost(&self, out: &DeviceTensor, rows: ValueId, ids: ValueId) -> Result<()> {
        let of = Packed::new(self.s, ids, self.layout(rows, self.rank)?.shape()[0])?;
        let first = self.first_token(ids);
        let each = self.layout(ids, self.rank)?.shape()[0] as usize;
        let slots = (first..first + each).flat_map(|t| (0..of.slots).map(move |j| (t, j)));
        let lost = |(t, j): &(usize, usize)| {
            let named = of.ids.get(t * of.slots + j).is_some_and(|id| *id >= 0);
            named && of.row(*t, *j).is_none()
        };
        Ok(out.upload_f32(&[slots.filter(lost).count() as f32])?)
    }

    /// Elements of a tensor from one on, in this shape.
    fn part(&self, t: &DeviceTensor, at: u64, shape: &[u64]) -> Result<DeviceTensor> {
        let part = self.make(t.dtype(), shape)?;
        let (bytes, size) = (part.buffer().size_bytes(), t.dtype().size_bytes());
        part.buffer().copy_range(0, t.buffer(), at * size, bytes)?;
        Ok(part)
    }

    /// What all ranks have of a value, one after the other.
    fn floats(&self, id: ValueId) -> Result<Vec<f32>> {
        let of_rank = |rank| Ok(self.on(id, rank)?.download_f32()?);
        let all = (0..self.s.case.ranks).map(of_rank);
        Ok(all.collect::<Result<Vec<_>>>()?.concat())
    }

    /// The first of the rank's tokens.
    fn first_token(&self, ids: ValueId) -> usize {
        let tokens = self.s.case.bound.shape(ids).map_or(0, |d| d[0] as usize);
        self.rank * tokens.div_ceil(self.s.case.ranks.max(1))
    }

    /// `x` by the matrices of the experts.
    fn product(
        &self,
        out: &DeviceTensor,
        operands: [ValueId; 2],
        counts: ValueId,
        transposed: bool,
    ) -> Result<()> {
        let [x, w] = [self.on(operands[0], self.rank)?, self.on(operands[1], self.rank)?];
        let behind = if transposed { w.shape().len() + 1 - x.shape().len() } else { 2 };
        let [first_dim, others] =
            [&w.shape()[1..behind], &w.shape()[behind..]].map(|s| s.iter().product::<u64>());
        let (depth, columns) = if transposed { (others, first_dim) } else { (first_dim, others) };
        for Stretch { expert, first, rows } in stretches(self.s, self.rank, counts)? {
            let a = self.part(x, first * depth, &[rows, depth])?;
            let b = self.part(w, expert * first_dim * others, &[first_dim, others])?;
            let right = if transposed { Operand::t(&b) } else { Operand::new(&b) };
            let c = self.make(DType::F32, &[rows, columns])?;
            self.s.reference.gemm(&c, Operand::new(&a), right, false)?;
            put(out, first * columns, &c)?;
        }
        Ok(())
    }

    /// Rows with their expert's vector added.
    fn biased(&self, out: &DeviceTensor, operands: [ValueId; 2], counts: ValueId) -> Result<()> {
        let [x, b] = [self.on(operands[0], self.rank)?, self.on(operands[1], self.rank)?];
        let n = columns(out);
        for Stretch { expert, first, rows } in stretches(self.s, self.rank, counts)? {
            let a = self.part(x, first * n, &[rows, n])?;
            let sum = self.make(DType::F32, &[rows, n])?;
            let vector = self.part(b, expert * n, &[n])?;
            self.s.reference.map(MapOp::Bias, &sum, &a, Some(&vector))?;
            put(out, first * n, &sum)?;
        }
        Ok(())
    }

    /// Of each expert its rows, the other way round, times those of `dy`.
    fn wgrad(&self, out: &DeviceTensor, operands: [ValueId; 2], counts: ValueId) -> Result<()> {
        let [x, dy] = [self.on(operands[0], self.rank)?, self.on(operands[1], self.rank)?];
        let [k, n] = [columns(x), columns(dy)];
        for Stretch { expert, first, rows } in stretches(self.s, self.rank, counts)? {
            let a = self.part(x, first * k, &[rows, k])?;
            let b = self.part(dy, first * n, &[rows, n])?;
            let c = self.make(DType::F32, &[k, n])?;
            self.s.reference.gemm(&c, Operand::t(&a), Operand::new(&b), false)?;
            put(out, expert * k * n, &c)?;
        }
        Ok(())
    }

    /// Tokens of all ranks where experts of the rank have them as rows.
    fn dispatched(&self, out: &DeviceTensor, x: ValueId, ids: ValueId) -> Result<()> {
        let rows = out.shape()[0];
        let packed = Packed::new(self.s, ids, rows)?;
        // By way of the host: a copy for each row would be tens of thousands of calls.
        let of_rank = |rank| Ok(self.on(x, rank)?.buffer().download()?);
        let all = (0..self.s.case.ranks).map(of_rank);
        let from = all.collect::<Result<Vec<_>>>()?.concat();
        let row_bytes = (columns(out) * out.dtype().size_bytes()) as usize;
        let mut bytes = vec![0; rows as usize * row_bytes];
        let own = packed.rows.iter().skip(self.rank * rows as usize);
        for (to, of) in bytes.chunks_exact_mut(row_bytes).zip(own) {
            let Some((_, token)) = of else { continue };
            let row = from.get(token * row_bytes..(token + 1) * row_bytes);
            row.into_iter().for_each(|row| to.copy_from_slice(row));
        }
        Ok(out.buffer().upload(&bytes)?)
    }

    /// Rows of the rank's experts times the weights of their slots, on the host: rows of `x`, or its tokens.
    fn weighed(
        &self,
        out: &DeviceTensor,
        [x, ids, weights]: [ValueId; 3],
        of_tokens: bool,
    ) -> Result<()> {
        let (rows, columns) = (out.shape()[0] as usize, columns(out) as usize);
        let packed = Packed::new(self.s, ids, rows as u64)?;
        let x = match of_tokens {
            true => self.floats(x)?,
            false => self.on(x, self.rank)?.download_f32()?,
        };
        let weights = self.floats(weights)?;
        let mut made = vec![0.0f32; rows * columns];
        let own = packed.rows.iter().skip(self.rank * rows);
        for (row, (to, of)) in made.chunks_mut(columns.max(1)).zip(own).enumerate() {
            let Some((expert, token)) = *of else { continue };
            let Some(slot) = packed.slot(token, expert) else { continue };
            let weight = weights[token * packed.slots + slot];
            let from = if of_tokens { token } else { row };
            to.iter_mut().zip(&x[from * columns..]).for_each(|(to, x)| *to = weight * x);
        }
        Ok(out.upload_f32(&made)?)
    }

    /// Factors of tokens of all ranks, `[blocks, tokens]`, where experts of the rank have them as rows.
    fn factors_dispatched(&self, out: &DeviceTensor, x: ValueId, ids: ValueId) -> Result<()> {
        let [blocks, rows] = [out.shape()[0], out.shape()[1]].map(|n| n as usize);
        let packed = Packed::new(self.s, ids, rows as u64)?;
        let all = (0..self.s.case.ranks).map(|rank| self.on(x, rank));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let most = all[0].shape()[1].max(1) as usize;
        let from = all.iter().map(|x| x.download_f32()).collect::<Result<Vec<_>, _>>()?;
        let mut made = vec![0.0f32; blocks * rows];
        for (row, of) in packed.rows.iter().skip(self.rank * rows).take(rows).enumerate() {
            let Some((_, token)) = *of else { continue };
            let (home, token) = (token / most, token % most);
            let tokens = all[home].shape()[1] as usize;
            for block in 0..blocks {
                made[block * rows + row] = from[home][block * tokens + token];
            }
        }
        Ok(out.upload_f32(&made)?)
    }

    /// Tokens of the rank as weighted sums of rows of all ranks, summed on the host.
    fn combined(
        &self,
        out: &DeviceTensor,
        y: ValueId,
        ids: ValueId,
        weights: ValueId,
    ) -> Result<()> {
        let packed = Packed::new(self.s, ids, self.on(y, self.rank)?.shape()[0])?;
        let (y, weights) = (self.floats(y)?, self.on(weights, self.rank)?.download_f32()?);
        let (columns, first) = (columns(out) as usize, self.first_token(ids));
        let mut sums = vec![0.0f32; out.shape()[0] as usize * columns];
        for (i, sum) in sums.chunks_mut(columns.max(1)).enumerate() {
            for slot in 0..packed.slots {
                let Some(row) = packed.row(first + i, slot) else { continue };
                let weight = weights[i * packed.slots + slot];
                let from = &y[row * columns..][..columns];
                sum.iter_mut().zip(from).for_each(|(x, y)| *x += weight * y);
            }
        }
        Ok(out.upload_f32(&sums)?)
    }

    /// Of each slot of the rank's tokens the product of its row and the token's, or of its two rows, on the host.
    fn products(
        &self,
        out: &DeviceTensor,
        (node, y): (&Node, ValueId),
        ids: ValueId,
        other: ValueId,
    ) -> Result<()> {
        let of_rows = node.op == Op::WeighGrad;
        let rank = self.on(y, self.rank)?;
        let (packed, columns) =
            (Packed::new(self.s, ids, rank.shape()[0])?, columns(rank) as usize);
        let y = self.floats(y)?;
        let other = match of_rows {
            true => self.floats(other)?,
            false => self.on(other, self.rank)?.download_f32()?,
        };
        let (tokens, first) = (out.shape()[0] as usize, self.first_token(ids));
        let mut made = vec![0.0f32; tokens * packed.slots];
        for (i, product) in made.iter_mut().enumerate() {
            let (at, slot) = (i / packed.slots, i % packed.slots);
            let Some(row) = packed.row(first + at, slot) else { continue };
            let beside = if of_rows { row } else { at };
            let both =
                y[row * columns..][..columns].iter().zip(&other[beside * columns..][..columns]);
            *product = both.map(|(x, y)| x * y).sum();
        }
        Ok(out.upload_f32(&made)?)
    }
}

/// The rows that experts have, and 0 in all others.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn masked(
    s: &Setting<'_>,
    rank: usize,
    counts: ValueId,
    t: &DeviceTensor,
) -> Result<DeviceTensor> {
    let out = DeviceTensor::zeros(s.world, rank as u32, t.dtype(), t.shape())?;
    let row = columns(t) * t.dtype().size_bytes();
    for Stretch { first, rows, .. } in stretches(s, rank, counts)? {
        out.buffer().copy_range(first * row, t.buffer(), first * row, rows * row)?;
    }
    Ok(out)
}

/// How many rows of each block an expert has.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn own_rows(s: &Setting<'_>, rank: usize, counts: ValueId) -> Result<Vec<u64>> {
    let block = mk_syntax::RAGGED_BLOCK;
    let of = |s: Stretch| (0..s.rows.div_ceil(block)).map(move |b| (s.rows - b * block).min(block));
    Ok(stretches(s, rank, counts)?.into_iter().flat_map(of).collect())
}
