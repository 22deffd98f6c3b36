//! Copies.

use super::{Compute, Regions, Values, Write, fits};
use crate::context::{Context, Piece};
use mk_plan::{CopyTile, leaf::HostCopy};

impl Compute for CopyTile {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        copy(&context.sources(to.phase, to.last), regions)
    }
}

impl Compute for HostCopy {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        copy(&context.sources(to.phase, to.last), regions)
    }
}

fn concatenate<'p>(pieces: impl Iterator<Item = &'p &'p Piece>) -> Vec<f32> {
    pieces.flat_map(|p| p.tile.data.iter().copied()).collect()
}

/// Sources and destinations that both repeat are paired by the value of `each`; otherwise all sources, one after the
/// other, go to every destination.
fn copy(sources: &[&Piece], regions: Regions) -> Values {
    let paired = sources.iter().any(|p| p.each.is_some());
    let mut list = Vec::with_capacity(regions.len());
    for (each, region) in regions {
        let values = match each {
            Some(_) if paired => concatenate(sources.iter().filter(|p| p.each == each)),
            _ => concatenate(sources.iter()),
        };
        fits(&region, values.len())?;
        list.push((region, values));
    }
    Ok(list)
}
