//! Heads of rows, turned.

use super::{Compute, Regions, Values, Write, broadcast};
use crate::context::{Context, Phase, misfit};
use crate::error::Result;
use mk_plan::{Operand, RopeTile};

impl Compute for RopeTile {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        let rows = turned(self, context, to.phase)?;
        broadcast(regions, |_| Ok(rows.clone()))
    }
}

/// A task's rows, in f32.
fn turned(leaf: &RopeTile, context: &Context, phase: Phase) -> Result<Vec<f32>> {
    let [Some(x), Some(t)] = [Operand::Src, Operand::E0].map(|o| context.latest(o, phase)) else {
        return Ok(Vec::new());
    };
    let half = t.cols / 2;
    if half == 0 || t.cols % 2 != 0 || x.cols % t.cols != 0 || x.rows != t.rows {
        return Err(misfit("rows are of whole heads, and have angles each"));
    }
    let mut out = Vec::with_capacity(x.data.len());
    for (row, angles) in x.data.chunks(x.cols.max(1)).zip(t.data.chunks(t.cols)) {
        for (head, place) in (0..x.cols).map(|j| (j / t.cols * t.cols, j % t.cols)) {
            let (own, other) = (row[head + place], row[head + (place + half) % t.cols]);
            let (cos, sin) = (angles[place % half], angles[half + place % half]);
            out.push(match (place < half) != leaf.back {
                true => own * cos - other * sin,
                false => own * cos + other * sin,
            });
        }
    }
    Ok(out)
}
