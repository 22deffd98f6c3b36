//! Gradients of sinks.

use super::{Compute, Regions, Values, Write, broadcast};
use crate::context::{Context, misfit};
use mk_plan::{Operand, SinkTile};

impl Compute for SinkTile {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        let Some(sink) = context.latest(Operand::Sinks, to.phase).and_then(|t| t.data.first())
        else {
            return Err(misfit("a gradient of no sink"));
        };
        let mut steps: Vec<_> =
            context.pieces.iter().filter(|p| p.operand == Operand::Stats).collect();
        steps.sort_by_key(|p| p.phase);
        let mut sum = 0.0;
        for tile in steps.into_iter().map(|p| &p.tile) {
            for row in (0..tile.rows).map(|i| tile.row(i)) {
                let &[lse, delta, ..] = row else { return Err(misfit("a query has four numbers")) };
                // Rows that see nothing, of a sink without weight.
                if lse != f32::NEG_INFINITY {
                    sum -= (sink - lse).exp() * delta;
                }
            }
        }
        broadcast(regions, |_| Ok(vec![sum]))
    }
}
