//! Normalised rows.

use super::{Compute, Regions, Values, Write, broadcast};
use crate::context::{Context, Phase, misfit};
use crate::error::Result;
use mk_plan::{NormTile, Operand};

impl Compute for NormTile {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        let rows = normalised(self, context, to.phase)?;
        broadcast(regions, |_| Ok(rows.clone()))
    }
}

/// A task's rows, in f32.
fn normalised(leaf: &NormTile, context: &Context, phase: Phase) -> Result<Vec<f32>> {
    let Some(x) = context.latest(Operand::Src, phase) else { return Ok(Vec::new()) };
    let weight = context.latest(Operand::E0, phase).map(|g| &g.data[..]);
    let gradients = if leaf.grad { context.latest(Operand::Do, phase) } else { None };
    let of_rows = gradients.is_none_or(|d| (d.rows, d.cols) == (x.rows, x.cols));
    if !of_rows || weight.is_some_and(|g| g.len() != x.cols) {
        return Err(misfit("rows, their gradients and the weight have as many columns"));
    }
    let mean = |list: &mut dyn Iterator<Item = f32>| list.sum::<f32>() / x.cols.max(1) as f32;
    let weight = |j: usize| weight.map_or(1.0, |g| g[j]);
    let mut out = Vec::with_capacity(x.data.len());
    for (i, row) in x.data.chunks(x.cols.max(1)).enumerate() {
        let r = 1.0 / (mean(&mut row.iter().map(|x| x * x)) + leaf.eps()).sqrt();
        match gradients {
            None => out.extend(row.iter().enumerate().map(|(j, x)| x * r * weight(j))),
            Some(d) => {
                let d = &d.data[i * x.cols..];
                let g = |j: usize| d[j] * weight(j);
                let along = mean(&mut row.iter().enumerate().map(|(j, x)| g(j) * x));
                let back = r * r * r * along;
                out.extend(row.iter().enumerate().map(|(j, x)| r * g(j) - x * back));
            }
        }
    }
    Ok(out)
}
