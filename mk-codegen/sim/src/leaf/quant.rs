//! Rows in eight bits, with factors.

use super::{Compute, Regions, Values, Write, broadcast};
use crate::context::{Context, Phase, misfit};
use crate::error::Result;
use crate::math::Tile;
use mk_abi::DType;
use mk_plan::{Operand, QuantTile};

impl Compute for QuantTile {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        let [rows, factors] = match self.back {
            true => [restored(context, to.phase)?, Vec::new()],
            false => match context.latest(Operand::Src, to.phase) {
                Some(x) => quantised(self.narrow, x),
                None => [Vec::new(), Vec::new()],
            },
        };
        let values = if to.operand == Operand::E0 { factors } else { rows };
        broadcast(regions, |_| Ok(values.clone()))
    }
}

/// Rows over the factors of their blocks, not yet rounded, and the factors, `[blocks, rows]`.
pub(super) fn quantised(to: DType, x: &Tile) -> [Vec<f32>; 2] {
    let (columns, block) = (x.cols.max(1), QuantTile::BLOCK as usize);
    let mut rows = Vec::with_capacity(x.data.len());
    let mut factors = vec![0.0; x.rows * columns.div_ceil(block)];
    for (i, row) in x.data.chunks(columns).enumerate() {
        for (j, part) in row.chunks(block).enumerate() {
            let magnitude = part.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
            let factor = to.factor(magnitude);
            factors[j * x.rows + i] = factor;
            rows.extend(part.iter().map(|x| x / factor));
        }
    }
    [rows, factors]
}

/// A task's rows times their factors.
fn restored(context: &Context, phase: Phase) -> Result<Vec<f32>> {
    let [Some(x), Some(f)] = [Operand::Src, Operand::E0].map(|o| context.latest(o, phase)) else {
        return Ok(Vec::new());
    };
    let (columns, block) = (x.cols.max(1), QuantTile::BLOCK as usize);
    if f.data.len() != x.rows * columns.div_ceil(block) {
        return Err(misfit("each block of a row has a factor"));
    }
    let at = |i: usize| f.data[i % columns / block * x.rows + i / columns];
    Ok(x.data.iter().enumerate().map(|(i, x)| x * at(i)).collect())
}
