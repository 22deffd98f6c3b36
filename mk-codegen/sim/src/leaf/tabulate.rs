//! Tables that a task fills.

use super::{Compute, Regions, Values, Write, broadcast};
use crate::{
    context::{Context, misfit},
    math::Tile,
};
use mk_plan::{Operand, RoutePart, Source, Tabulate, Tabulation};

impl Compute for Tabulate {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        if let Tabulation::Route { part: RoutePart::Kept | RoutePart::Crossing, .. } = self.of {
            return Err(misfit("what is made with other tables"));
        }
        let integers = |t: &Tile| t.data.iter().map(|x| *x as i32).collect::<Vec<_>>();
        let first_row = context.first_row();
        let source = |t| Source { data: integers(t).into(), columns: t.cols, first_row };
        let src: Vec<Source<'_>> = context.all(Operand::Src).map(source).collect();
        broadcast(regions, |r| {
            let dims = r.dims.iter().map(|(at, n)| (*at as i32, (*n).max(0) as i32));
            let mut results = to.family.accesses.iter().filter(|a| a.operand == Operand::Dst);
            let result = results.position(|a| a.buffer == r.buffer);
            let table = self.of.filled(&src, &dims.collect::<Vec<_>>(), r.rank, result);
            let table = table.map_err(|e| misfit(e.to_string()))?;
            Ok(table.into_iter().map(|x| x as f32).collect())
        })
    }
}
