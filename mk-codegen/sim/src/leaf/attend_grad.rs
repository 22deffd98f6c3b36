//! Gradients of attention.

use super::{Attends, Compute, Regions, Values, Write, bounds, broadcast};
use crate::{
    context::{Context, Phase, misfit},
    error::Result,
    math::{AttentionStep, Block, Gradients, Tile},
    memory::within,
};
use mk_plan::{AttendGradTile, GradOf, Operand};

impl Compute for AttendGradTile {
    fn moving(&self) -> &'static [Operand] {
        self.of.moving()
    }

    fn consume(&self, context: &mut Context, a: Attends, phase: Phase) -> Result<()> {
        let bounds = bounds(context, a, self.mask, self.of.side(), phase)?;
        differentiate(context, self.of, a.step(self.scale, self.mask, self.cap, bounds), phase)
    }

    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        let scale = f32::from_bits(self.scale);
        broadcast(regions, |r| {
            let scaled = |sum: &Tile| sum.data.iter().map(|x| x * scale).collect();
            Ok(match (&context.gradients, to.operand) {
                (Some(Gradients::Queries(sum)), _) => scaled(sum),
                (Some(Gradients::Keys { keys, .. }), Operand::Dk) => scaled(keys),
                (Some(Gradients::Keys { values, .. }), _) => values.data.clone(),
                // Nothing meets it.
                (None, _) => vec![0.0; r.len() as usize],
            })
        })
    }
}

fn differentiate(
    context: &mut Context,
    of: GradOf,
    step: AttentionStep,
    phase: Phase,
) -> Result<()> {
    let mut sums = context.gradients.take();
    let all = [Operand::Q, Operand::Do, Operand::Stats, Operand::K, Operand::V];
    if let [Some(q), Some(d_o), Some(stats), Some(k), Some(v)] =
        all.map(|o| context.latest(o, phase))
    {
        let block = Block { q, d_o, stats, k, v };
        if !block.fits() {
            let shapes = [q, d_o, stats, k, v].map(|t| format!("{}x{}", t.rows, t.cols));
            return Err(misfit(format!(
                "queries, gradients, statistics, keys and values are {}",
                shapes.join(", ")
            )));
        }
        within("elements of one tile", (q.rows.max(k.rows) * k.cols) as u64)?;
        let sums = sums.get_or_insert_with(|| match of {
            GradOf::Queries => Gradients::Queries(Tile::zeros(q.rows, q.cols)),
            _ => Gradients::Keys {
                keys: Tile::zeros(k.rows, k.cols),
                values: Tile::zeros(v.rows, v.cols),
            },
        });
        sums.step(block, &step);
    }
    context.gradients = sums;
    Ok(())
}
