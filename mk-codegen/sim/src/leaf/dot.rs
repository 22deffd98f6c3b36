//! Products of rows, and elements alone.

use super::{Compute, Regions, Values, Write, fits};
use crate::context::{Context, misfit};
use mk_plan::{DotTile, Operand};

impl Compute for DotTile {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        let of_step = |operand: Operand, each: Option<i64>| {
            let all = context.pieces.iter().filter(|p| p.operand == operand && p.phase == to.phase);
            all.into_iter().find(|p| p.each == each).map(|p| &p.tile.data)
        };
        let mut list = Vec::with_capacity(regions.len());
        for (each, region) in regions {
            fits(&region, 1)?;
            let src = of_step(Operand::Src, each);
            if self.plain {
                let element = src.map_or(Some(&0.0), |src| src.first());
                let Some(element) = element.filter(|_| src.is_none_or(|src| src.len() == 1)) else {
                    return Err(misfit("one element is picked at a time"));
                };
                list.push((region, vec![*element]));
                continue;
            }
            let Some(w) = of_step(Operand::W, None) else {
                return Err(misfit("a product has no row `w`"));
            };
            let product = match src {
                None => 0.0,
                Some(src) if src.len() == w.len() => {
                    src.iter().zip(w).fold(0.0, |sum, (x, y)| x.mul_add(*y, sum))
                }
                Some(_) => return Err(misfit("the rows of a product differ in size")),
            };
            list.push((region, vec![product]));
        }
        Ok(list)
    }
}
