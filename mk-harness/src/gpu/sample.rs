//! Some rows of a result, in f64 on the host: a check of the fp32 reference, too.

use super::Session;
use crate::{Dense, HarnessError, Layout, Value, inputs::placement};
use mk_runtime::{DeviceTensor, reference::random_value};
use mk_syntax::ValueId;

/// The relative error of `count` rows of each result, by rank.
pub(super) fn rows(s: &Session<'_>, launch: u64, count: usize) -> Result<Vec<f64>, HarnessError> {
    let mut worst = vec![0.0f64; s.case.ranks];
    for (result, held) in s.outputs() {
        let rows = choose(s, result, launch, count);
        let value = Dense::new(s.inputs(), launch).rows(result, &rows)?;
        for (rank, out) in held.into_iter().enumerate() {
            let error = of_rank(s, result, &rows, &value, rank, out)?;
            if let Some(w) = worst.get_mut(rank) {
                *w = w.max(error);
            }
        }
    }
    Ok(worst)
}

/// Rows spread over the result, the first and the last among them.
fn choose(s: &Session<'_>, result: ValueId, launch: u64, count: usize) -> Vec<usize> {
    let shape = s.case.bound.shape(result).unwrap_or(&[]);
    let n = shape.first().map_or(0, |n| *n as usize);
    let mut rows = vec![0, n.saturating_sub(1)];
    for i in 2..count as u64 {
        let unit = f64::from(random_value(s.seed ^ launch, i, 0.5)) + 0.5;
        rows.push((unit * n as f64) as usize);
    }
    rows.retain(|row| *row < n);
    rows.sort_unstable();
    rows.dedup();
    rows
}

fn of_rank(
    s: &Session<'_>,
    result: ValueId,
    rows: &[usize],
    value: &Value,
    rank: usize,
    out: &DeviceTensor,
) -> Result<f64, HarnessError> {
    let placements = s.case.program.ty(result).map_or(&[][..], |t| &t.placement);
    let shape = s.case.bound.shape(result).unwrap_or(&[]);
    let layout = Layout::new(shape, placement(placements)?, s.case.ranks, rank);
    let (columns, held) = (layout.columns(), layout.rows());
    let width = match value {
        Value::Whole(m) => m.cols,
        Value::Summands(all) => all.first().map_or(0, |m| m.cols),
    };
    let bytes = columns.len() as u64 * out.dtype().size_bytes();
    let row_of = DeviceTensor::new(&s.world, rank as u32, out.dtype(), &[columns.len() as u64])?;
    let (mut error, mut norm) = (0.0, 0.0);
    for (i, row) in rows.iter().enumerate().filter(|(_, row)| held.contains(row)) {
        let from = (row - held.start) as u64 * bytes;
        row_of.buffer().copy_range(0, out.buffer(), from, bytes)?;
        let want = &value.on(rank)[i * width..(i + 1) * width];
        for (got, column) in row_of.download_f32()?.into_iter().zip(&columns) {
            error += (f64::from(got) - want[*column]).powi(2);
            norm += want[*column].powi(2);
        }
    }
    Ok(if error == 0.0 { 0.0 } else { (error / norm).sqrt() })
}
