//! Some rows of a result, judged by the bounds of the host's reference: a check of the fp32 reference, too.

use super::Session;
use crate::{Dense, Judgement, Result, judge, work::SAMPLED_WORK};
use mk_runtime::{DeviceTensor, reference::random_value};
use mk_syntax::ValueId;

impl Session<'_> {
    /// Some rows of each result, every element judged by its bound from f64 on the host, by rank; nothing of a rank
    /// that owns none of them.
    ///
    /// # Errors
    /// As [`Dense::expected_rows`]; [`HarnessError::Runtime`](crate::HarnessError::Runtime).
    pub fn sampled_rows(&self, launch: u64, count: usize) -> Result<Vec<Judgement>> {
        let mut judged = vec![Judgement::default(); self.grid.world];
        for (result, held) in self.outputs() {
            let rows = choose(self, result, launch, count);
            for group in 0..self.grid.groups() {
                let expected = Dense::new(self.inputs(group), launch)
                    .within(SAMPLED_WORK)
                    .expected_rows(result, &rows)?;
                for (place, (rows, expected)) in expected.into_iter().enumerate() {
                    let rank = self.grid.rank(group, place);
                    let Some((rank, out)) = rank.and_then(|r| Some((r, *held.get(r)?))) else {
                        continue;
                    };
                    let got = download(self, result, &rows, rank, out)?;
                    if let Some(all) = judged.get_mut(rank) {
                        *all = std::mem::take(all).and(judge(&got, &expected));
                    }
                }
            }
        }
        // A rank of whose rows only padding was drawn is not asked, if another one is.
        if judged.iter().any(|all| all.judged > 0) {
            judged.iter_mut().filter(|all| all.judged == 0).for_each(|all| all.unknown = 0);
        }
        Ok(judged)
    }
}

/// Rows spread over the result, the first of each rank and the last among them.
fn choose(s: &Session<'_>, result: ValueId, launch: u64, count: usize) -> Vec<usize> {
    let shape = s.case.bound.shape(result).unwrap_or(&[]);
    let n = shape.first().map_or(0, |n| *n as usize);
    let placements = s.case.program.ty(result).map_or(&[][..], |t| &t.placement);
    let first = |rank| {
        let layout = s.grid.sizes.layout(shape, placements, s.grid.of(rank).1);
        layout.map_or(0, |l| l.rows().start)
    };
    let mut rows: Vec<usize> = (0..s.grid.world).map(first).collect();
    rows.push(n.saturating_sub(1));
    for i in 2..count as u64 {
        let unit = f64::from(random_value(s.seed ^ launch, i, 0.5)) + 0.5;
        rows.push((unit * n as f64) as usize);
    }
    rows.retain(|row| *row < n);
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Global rows of a result from the rank that holds them.
fn download(
    s: &Session<'_>,
    result: ValueId,
    rows: &[usize],
    rank: usize,
    out: &DeviceTensor,
) -> Result<Vec<f32>> {
    let placements = s.case.program.ty(result).map_or(&[][..], |t| &t.placement);
    let shape = s.case.bound.shape(result).unwrap_or(&[]);
    let layout = s.grid.sizes.layout(shape, placements, s.grid.of(rank).1)?;
    let (columns, first) = (layout.columns().len() as u64, layout.rows().start);
    let bytes = columns * out.dtype().size_bytes();
    let row_of = DeviceTensor::new(&s.world, rank as u32, out.dtype(), &[columns])?;
    let mut all = Vec::new();
    for row in rows {
        row_of.buffer().copy_range(0, out.buffer(), (row - first) as u64 * bytes, bytes)?;
        match out.dtype().is_integer() {
            true => all.extend(row_of.download_integers()?.into_iter().map(|n| n as f32)),
            false => all.extend(row_of.download_f32()?),
        }
    }
    Ok(all)
}
