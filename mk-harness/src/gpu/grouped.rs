//! Ragged rows on a GPU: each expert's rows are a product of their own, and rows that no expert has are not compared.

use super::setting::Setting;
use crate::{HarnessError, routing};
use mk_abi::DType;
use mk_runtime::{DeviceTensor, Operand};
use mk_syntax::{Node, ValueId};

/// Consecutive rows of an expert on a rank.
struct Stretch {
    expert: u64,
    first: u64,
    rows: u64,
}

/// The rows of each expert, by the counts that the rank was given.
fn stretches(counts: &DeviceTensor) -> Result<Vec<Stretch>, HarnessError> {
    let mut first = 0;
    let of = |(expert, n): (u64, i32)| {
        let rows = n.max(0) as u64;
        let stretch = Stretch { expert, first, rows };
        first += rows.next_multiple_of(mk_syntax::RAGGED_BLOCK);
        stretch
    };
    let values = counts.download_i32()?;
    // Of the experts of tokens, how often each is named; those behind the last one have no rows.
    let rows = match counts.shape().len() {
        1 => values,
        _ => {
            let last = values.iter().copied().max().unwrap_or(-1);
            routing::rows(&values, usize::try_from(last + 1).unwrap_or(0))
        }
    };
    let all = (0..).zip(rows).map(of).collect::<Vec<_>>();
    Ok(all.into_iter().filter(|s| s.rows > 0).collect())
}

/// Rows from one place of a tensor to another of the same rows.
fn copy_rows(
    to: (&DeviceTensor, u64),
    from: (&DeviceTensor, u64),
    rows: u64,
    columns: u64,
) -> Result<(), HarnessError> {
    let row = columns * from.0.dtype().size_bytes();
    Ok(to.0.buffer().copy_range(to.1 * row, from.0.buffer(), from.1 * row, rows * row)?)
}

/// `x` by the matrices of the experts, in f32; rows of none are 0. `shape` is the result's on the rank.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn product(
    s: &Setting<'_>,
    rank: usize,
    [x, w, counts]: [&DeviceTensor; 3],
    shape: &[u64],
) -> Result<DeviceTensor, HarnessError> {
    let make = |dtype, shape: &[u64]| DeviceTensor::new(s.world, rank as u32, dtype, shape);
    let out = DeviceTensor::zeros(s.world, rank as u32, DType::F32, shape)?;
    let (depth, columns) = (w.shape()[1], w.shape()[2..].iter().product::<u64>());
    for Stretch { expert, first, rows } in stretches(counts)? {
        let a = make(x.dtype(), &[rows, depth])?;
        copy_rows((&a, 0), (x, first), rows, depth)?;
        let b = make(w.dtype(), &[depth, columns])?;
        copy_rows((&b, 0), (w, expert * depth), depth, columns)?;
        let c = make(DType::F32, &[rows, columns])?;
        s.reference.gemm(&c, Operand::new(&a), Operand::new(&b), false)?;
        copy_rows((&out, first), (&c, 0), rows, columns)?;
    }
    Ok(out)
}

/// Tokens, where experts have them as rows: all others are 0.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn dispatched(
    s: &Setting<'_>,
    rank: usize,
    [x, ids]: [&DeviceTensor; 2],
    shape: &[u64],
) -> Result<DeviceTensor, HarnessError> {
    let out = DeviceTensor::zeros(s.world, rank as u32, x.dtype(), shape)?;
    let slots = ids.shape().get(1).map_or(1, |n| *n as usize);
    let width = shape[1..].iter().product();
    for (row, token) in routing::tokens(&ids.download_i32()?, slots) {
        if (row as u64) < shape[0] {
            copy_rows((&out, row as u64), (x, token as u64), 1, width)?;
        }
    }
    Ok(out)
}

/// The counts that say whose rows a value has; `None` for one that is not ragged.
pub(super) fn counts<'t>(s: &Setting<'t>, rank: usize, value: ValueId) -> Option<&'t DeviceTensor> {
    let of = routing::counts_of(s.case.program, value)?;
    s.held(rank, s.case.program.tensors().get(of.index())?)
}

/// The rows that experts have, and 0 in all others.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn masked(
    s: &Setting<'_>,
    rank: usize,
    counts: &DeviceTensor,
    t: &DeviceTensor,
) -> Result<DeviceTensor, HarnessError> {
    let out = DeviceTensor::zeros(s.world, rank as u32, t.dtype(), t.shape())?;
    let columns = t.shape()[1..].iter().product();
    for Stretch { first, rows, .. } in stretches(counts)? {
        copy_rows((&out, first), (t, first), rows, columns)?;
    }
    Ok(out)
}

/// How many rows of each block an expert has.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn own_rows(counts: &DeviceTensor) -> Result<Vec<u64>, HarnessError> {
    let block = mk_syntax::RAGGED_BLOCK;
    let of = |s: Stretch| (0..s.rows.div_ceil(block)).map(move |b| (s.rows - b * block).min(block));
    Ok(stretches(counts)?.into_iter().flat_map(of).collect())
}

/// The operands of a product.
pub(super) fn operands(node: &Node) -> [ValueId; 3] {
    [0, 1, 2].map(|i| node.inputs.get(i).copied().unwrap_or(node.result))
}
