//! Sums.

use super::{Compute, Regions, Values, Write, broadcast, epilogue::apply_to, fits, matrix};
use crate::{
    context::{Context, Phase, Piece, misfit},
    error::Result,
    math::Tile,
};
use mk_plan::{EPILOGUE_OPERANDS, EpilogueOp, Factors, Family, ReduceTile, Region};

impl Compute for ReduceTile {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        let sum = reduce(to.family, context, &context.sources(to.phase, to.last))?;
        broadcast(regions, |r| finished(context, &self.epilogue, sum.clone(), r, to.phase))
    }
}

/// Sum in f32, in order, each source times its factor where there are factors.
fn reduce(family: &Family, context: &Context, sources: &[&Piece]) -> Result<Vec<f32>> {
    let mut sum: Option<Vec<f32>> = None;
    let factors = family.factors();
    for p in sources {
        let mut data = p.tile.data.clone();
        match (context.factor(p)?, factors) {
            (Some(factor), _) => data.iter_mut().for_each(|x| *x *= factor),
            (None, Factors::None) => {}
            (None, Factors::Some) => data.fill(0.0),
            (None, Factors::All) => {
                return Err(misfit("a contribution has no factor of one element"));
            }
        }
        let Some(sum) = &mut sum else {
            sum = Some(data);
            continue;
        };
        if data.len() != sum.len() {
            return Err(misfit("the sources of a sum differ in size"));
        }
        sum.iter_mut().zip(&data).for_each(|(x, y)| *x += y);
    }
    Ok(sum.unwrap_or_default())
}

/// A sum with what is done to it before it is rounded.
fn finished(
    context: &Context,
    epilogue: &[EpilogueOp],
    sum: Vec<f32>,
    region: &Region,
    phase: Phase,
) -> Result<Vec<f32>> {
    let (rows, cols) = matrix(region);
    // Of no contributions.
    let sum = if sum.is_empty() { vec![0.0; rows * cols] } else { sum };
    fits(region, sum.len())?;
    let mut tile = Tile { rows, cols, data: sum };
    let mut tails = EPILOGUE_OPERANDS.iter();
    for op in epilogue {
        apply_to(&mut tile, *op, &mut tails, context, phase)?;
    }
    Ok(tile.data)
}
