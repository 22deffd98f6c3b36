//! Ragged rows on a GPU: each expert's rows are a product of their own, and rows that no expert has are not compared.

use super::setting::Setting;
use crate::{HarnessError, routing};
use mk_abi::DType;
use mk_runtime::{DeviceTensor, MapOp, Operand};
use mk_syntax::{Node, ValueId};

/// Consecutive rows of an expert on a rank.
struct Stretch {
    expert: u64,
    first: u64,
    rows: u64,
}

/// What ranks were given of a tensor of integers: by rank.
fn integers(s: &Setting<'_>, id: ValueId) -> Result<Vec<Vec<i32>>, HarnessError> {
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

/// Expert and token of each row of all ranks, by the experts of their tokens.
fn packed(s: &Setting<'_>, ids: ValueId, rows: u64) -> Result<Packed, HarnessError> {
    let slots = s.case.bound.shape(ids).and_then(|d| d.get(1)).map_or(1, |n| *n as usize);
    let experts = routing::experts_of(s.case, ids).unwrap_or(1);
    let all = integers(s, ids)?.concat();
    let of = (s.case.ranks, routing::keep(s.case, ids, s.case.ranks));
    let rows = routing::packed(&all, slots, experts, rows as usize * s.case.ranks, of);
    Ok(Packed { ids: all, slots, rows })
}

/// A routing of all ranks.
struct Packed {
    ids: Vec<i32>,
    slots: usize,
    rows: Vec<Option<(usize, usize)>>,
}

/// The rows of each of a rank's experts, by the counts that it was given, or by the experts of all tokens.
fn stretches(s: &Setting<'_>, rank: usize, id: ValueId) -> Result<Vec<Stretch>, HarnessError> {
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
    [x, w]: [&DeviceTensor; 2],
    counts: ValueId,
    shape: &[u64],
    transposed: bool,
) -> Result<DeviceTensor, HarnessError> {
    let make = |dtype, shape: &[u64]| DeviceTensor::new(s.world, rank as u32, dtype, shape);
    let out = DeviceTensor::zeros(s.world, rank as u32, DType::F32, shape)?;
    let behind = if transposed { w.shape().len() + 1 - x.shape().len() } else { 2 };
    let [first_dim, others] =
        [&w.shape()[1..behind], &w.shape()[behind..]].map(|s| s.iter().product::<u64>());
    let (depth, columns) = if transposed { (others, first_dim) } else { (first_dim, others) };
    for Stretch { expert, first, rows } in stretches(s, rank, counts)? {
        let a = make(x.dtype(), &[rows, depth])?;
        copy_rows((&a, 0), (x, first), rows, depth)?;
        let b = make(w.dtype(), &[first_dim, others])?;
        copy_rows((&b, 0), (w, expert * first_dim), first_dim, others)?;
        let right = if transposed { Operand::t(&b) } else { Operand::new(&b) };
        let c = make(DType::F32, &[rows, columns])?;
        s.reference.gemm(&c, Operand::new(&a), right, false)?;
        copy_rows((&out, first), (&c, 0), rows, columns)?;
    }
    Ok(out)
}

/// Rows with their expert's vector added, in f32; rows of none are 0. `shape` is the result's on the rank.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn biased(
    s: &Setting<'_>,
    rank: usize,
    [x, b]: [&DeviceTensor; 2],
    counts: ValueId,
    shape: &[u64],
) -> Result<DeviceTensor, HarnessError> {
    let make = |dtype, shape: &[u64]| DeviceTensor::new(s.world, rank as u32, dtype, shape);
    let out = DeviceTensor::zeros(s.world, rank as u32, DType::F32, shape)?;
    let n = shape.iter().skip(1).product::<u64>();
    for Stretch { expert, first, rows } in stretches(s, rank, counts)? {
        let a = make(x.dtype(), &[rows, n])?;
        copy_rows((&a, 0), (x, first), rows, n)?;
        let c = make(b.dtype(), &[n])?;
        copy_rows((&c, 0), (b, expert), 1, n)?;
        let sum = make(DType::F32, &[rows, n])?;
        s.reference.map(MapOp::Bias, &sum, &a, Some(&c))?;
        copy_rows((&out, first), (&sum, 0), rows, n)?;
    }
    Ok(out)
}

/// Of each expert its rows, the other way round, times those of `dy`, in f32. `shape` is the result's on the rank.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn wgrad(
    s: &Setting<'_>,
    rank: usize,
    [x, dy]: [&DeviceTensor; 2],
    counts: ValueId,
    shape: &[u64],
) -> Result<DeviceTensor, HarnessError> {
    let make = |dtype, shape: &[u64]| DeviceTensor::new(s.world, rank as u32, dtype, shape);
    let out = DeviceTensor::zeros(s.world, rank as u32, DType::F32, shape)?;
    let [k, n] = [x, dy].map(|t| t.shape()[1..].iter().product::<u64>());
    for Stretch { expert, first, rows } in stretches(s, rank, counts)? {
        let a = make(x.dtype(), &[rows, k])?;
        copy_rows((&a, 0), (x, first), rows, k)?;
        let b = make(dy.dtype(), &[rows, n])?;
        copy_rows((&b, 0), (dy, first), rows, n)?;
        let c = make(DType::F32, &[k, n])?;
        s.reference.gemm(&c, Operand::t(&a), Operand::new(&b), false)?;
        copy_rows((&out, expert * k), (&c, 0), k, n)?;
    }
    Ok(out)
}

/// Tokens of all ranks where experts of a rank have them as rows; all others are 0.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn dispatched(
    s: &Setting<'_>,
    rank: usize,
    x: &[&DeviceTensor],
    ids: ValueId,
    shape: &[u64],
) -> Result<DeviceTensor, HarnessError> {
    let dtype = x.first().map_or(DType::F32, |x| x.dtype());
    let out = DeviceTensor::zeros(s.world, rank as u32, dtype, shape)?;
    let (rows, columns) = (shape[0], shape[1..].iter().product::<u64>());
    if out.elements() == 0 {
        return Ok(out);
    }
    let packed = packed(s, ids, rows)?;
    let tokens = x.first().map_or(1, |x| x.shape()[0] as usize).max(1);
    // By way of the host: a copy for each row would be tens of thousands of calls.
    let from = x.iter().map(|x| x.buffer().download()).collect::<Result<Vec<_>, _>>()?;
    let row_bytes = (columns * dtype.size_bytes()) as usize;
    let mut bytes = vec![0; rows as usize * row_bytes];
    let own = packed.rows.iter().skip(rank * rows as usize);
    for (to, of) in bytes.chunks_exact_mut(row_bytes).zip(own) {
        let Some((_, token)) = of else { continue };
        let first = token % tokens * row_bytes;
        let row = from.get(token / tokens).and_then(|all| all.get(first..first + row_bytes));
        row.into_iter().for_each(|row| to.copy_from_slice(row));
    }
    out.buffer().upload(&bytes)?;
    Ok(out)
}

/// Factors of tokens of all ranks, `[blocks, tokens]`, where experts of a rank have them as rows; all others are 0.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn factors_dispatched(
    s: &Setting<'_>,
    rank: usize,
    x: &[&DeviceTensor],
    ids: ValueId,
    shape: &[u64],
) -> Result<DeviceTensor, HarnessError> {
    let out = DeviceTensor::zeros(s.world, rank as u32, DType::F32, shape)?;
    if out.elements() == 0 {
        return Ok(out);
    }
    let [blocks, rows] = [shape[0], shape[1]].map(|n| n as usize);
    let packed = packed(s, ids, shape[1])?;
    let most = x.first().map_or(1, |x| x.shape()[1] as usize).max(1);
    let all = x.iter().map(|x| x.download_f32()).collect::<Result<Vec<_>, _>>()?;
    let mut made = vec![0.0f32; blocks * rows];
    for (row, of) in packed.rows.iter().skip(rank * rows).take(rows).enumerate() {
        let Some((_, token)) = *of else { continue };
        let (home, token) = (token / most, token % most);
        let tokens = x.get(home).map_or(1, |x| x.shape()[1] as usize);
        for block in 0..blocks {
            made[block * rows + row] = all[home][block * tokens + token];
        }
    }
    out.upload_f32(&made)?;
    Ok(out)
}

/// Tokens of a rank as weighted sums of rows of all ranks, summed on the host.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn combined(
    s: &Setting<'_>,
    rank: usize,
    y: &[&DeviceTensor],
    (ids, weights): (ValueId, &DeviceTensor),
    shape: &[u64],
) -> Result<DeviceTensor, HarnessError> {
    let out = DeviceTensor::zeros(s.world, rank as u32, DType::F32, shape)?;
    if out.elements() == 0 {
        return Ok(out);
    }
    let rows = y.first().map_or(0, |y| y.shape()[0]);
    let packed = packed(s, ids, rows)?;
    let all = y.iter().map(|y| y.download_f32()).collect::<Result<Vec<_>, _>>()?;
    let weights = weights.download_f32()?;
    let (tokens, columns) = (shape[0] as usize, shape[1..].iter().product::<u64>() as usize);
    let most = s.case.bound.shape(ids).map_or(0, |d| d[0] as usize).div_ceil(s.case.ranks.max(1));
    let places: std::collections::BTreeMap<(usize, usize), usize> =
        packed.rows.iter().enumerate().filter_map(|(row, of)| Some(((*of)?, row))).collect();
    let mut sums = vec![0.0f32; tokens * columns];
    for (i, sum) in sums.chunks_mut(columns.max(1)).enumerate() {
        let token = rank * most + i;
        for slot in 0..packed.slots {
            let id = packed.ids.get(token * packed.slots + slot).copied().unwrap_or(-1);
            let Ok(expert) = usize::try_from(id) else { continue };
            let Some(row) = places.get(&(expert, token)) else { continue };
            let (home, row) = (row / rows as usize, row % rows as usize);
            let weight = weights[i * packed.slots + slot];
            let from = &all[home][row * columns..(row + 1) * columns];
            sum.iter_mut().zip(from).for_each(|(x, y)| *x += weight * y);
        }
    }
    out.upload_f32(&sums)?;
    Ok(out)
}

/// Rows of a rank's experts, which are tokens times the weights of their slots, multiplied on the host.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn weighted(
    s: &Setting<'_>,
    rank: usize,
    [x, weights]: [&[&DeviceTensor]; 2],
    ids: ValueId,
    shape: &[u64],
) -> Result<DeviceTensor, HarnessError> {
    let out = DeviceTensor::zeros(s.world, rank as u32, DType::F32, shape)?;
    if out.elements() == 0 {
        return Ok(out);
    }
    let (rows, columns) = (shape[0] as usize, shape[1..].iter().product::<u64>() as usize);
    let packed = packed(s, ids, shape[0])?;
    let all =
        |of: &[&DeviceTensor]| of.iter().map(|t| t.download_f32()).collect::<Result<Vec<_>, _>>();
    let (x, weights) = (all(x)?.concat(), all(weights)?.concat());
    let mut made = vec![0.0f32; rows * columns];
    for (to, of) in made.chunks_mut(columns.max(1)).zip(packed.rows.iter().skip(rank * rows)) {
        let Some((expert, token)) = *of else { continue };
        let named = packed.ids.iter().skip(token * packed.slots).take(packed.slots);
        let Some(slot) = named.map(|id| usize::try_from(*id)).position(|id| id == Ok(expert))
        else {
            continue;
        };
        let weight = weights[token * packed.slots + slot];
        let from = &x[token * columns..(token + 1) * columns];
        to.iter_mut().zip(from).for_each(|(to, x)| *to = weight * x);
    }
    out.upload_f32(&made)?;
    Ok(out)
}

/// Of each slot of a rank's tokens the product of its row and the token's, on the host.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn products(
    s: &Setting<'_>,
    rank: usize,
    y: &[&DeviceTensor],
    (ids, dy): (ValueId, &DeviceTensor),
    shape: &[u64],
) -> Result<DeviceTensor, HarnessError> {
    let out = DeviceTensor::zeros(s.world, rank as u32, DType::F32, shape)?;
    if out.elements() == 0 {
        return Ok(out);
    }
    let rows = y.first().map_or(0, |y| y.shape()[0]);
    let packed = packed(s, ids, rows)?;
    let all = y.iter().map(|y| y.download_f32()).collect::<Result<Vec<_>, _>>()?;
    let dy = dy.download_f32()?;
    let (tokens, slots) = (shape[0] as usize, packed.slots);
    let columns = dy.len() / tokens.max(1);
    let most = s.case.bound.shape(ids).map_or(0, |d| d[0] as usize).div_ceil(s.case.ranks.max(1));
    let places: std::collections::BTreeMap<(usize, usize), usize> =
        packed.rows.iter().enumerate().filter_map(|(row, of)| Some(((*of)?, row))).collect();
    let mut made = vec![0.0f32; tokens * slots];
    for (i, product) in made.iter_mut().enumerate() {
        let (at, slot) = (i / slots, i % slots);
        let token = rank * most + at;
        let id = packed.ids.get(token * slots + slot).copied().unwrap_or(-1);
        let Ok(expert) = usize::try_from(id) else { continue };
        let Some(row) = places.get(&(expert, token)) else { continue };
        let (home, row) = (row / rows as usize, row % rows as usize);
        let row = &all[home][row * columns..(row + 1) * columns];
        let of_token = &dy[at * columns..(at + 1) * columns];
        *product = row.iter().zip(of_token).map(|(x, y)| x * y).sum();
    }
    out.upload_f32(&made)?;
    Ok(out)
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
) -> Result<DeviceTensor, HarnessError> {
    let out = DeviceTensor::zeros(s.world, rank as u32, t.dtype(), t.shape())?;
    let columns = t.shape()[1..].iter().product();
    for Stretch { first, rows, .. } in stretches(s, rank, counts)? {
        copy_rows((&out, first), (t, first), rows, columns)?;
    }
    Ok(out)
}

/// How many rows of each block an expert has.
///
/// # Errors
/// [`HarnessError::Runtime`].
pub(super) fn own_rows(
    s: &Setting<'_>,
    rank: usize,
    counts: ValueId,
) -> Result<Vec<u64>, HarnessError> {
    let block = mk_syntax::RAGGED_BLOCK;
    let of = |s: Stretch| (0..s.rows.div_ceil(block)).map(move |b| (s.rows - b * block).min(block));
    Ok(stretches(s, rank, counts)?.into_iter().flat_map(of).collect())
}

/// The operands of a product.
pub(super) fn operands(node: &Node) -> [ValueId; 3] {
    [0, 1, 2].map(|i| node.inputs.get(i).copied().unwrap_or(node.result))
}
