//! Products of rows, and elements alone.

use super::Rules;
use crate::valid::touched::{Touched, area, of, plain, text};
use mk_plan::{Access, DotTile, Expr, Family, Operand};

impl Rules for DotTile {
    /// Each product is one element, of at most one row, and the row that all of a step are multiplied by, as long as
    /// it; or of at most one element.
    fn misfit(&self, family: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let times = |operand: Operand| {
            let access = family.accesses.iter().find(|a| a.operand == operand);
            access.and_then(|a| a.each.as_ref()).map(|each| &each.extent)
        };
        if times(Operand::Src) != times(Operand::Dst) {
            return Err("`src` is not there as often as `dst`".into());
        }
        // 0 is for rows that are not there in some launches.
        let never = |a: &Access| matches!(a.when, Some(Expr::Const(..=0)));
        if family.accesses.iter().any(|a| a.operand == Operand::Src && never(a)) {
            return Err("`src` is never there".into());
        }
        let there = |operand: Operand| of(touched, operand).filter(|t| t.extents.is_some());
        for dst in there(Operand::Dst) {
            let mut src = there(Operand::Src).filter(|s| (s.step, s.each) == (dst.step, dst.each));
            let (src, more) = (src.next(), src.next());
            if area(dst) != 1 || more.is_some() {
                let n = text(dst.extents.unwrap_or_default());
                return Err(format!("`dst` is {n}: a product is one element, of one row"));
            }
            if self.plain {
                if let Some(src) = src.filter(|src| area(src) != 1) {
                    let n = text(src.extents.unwrap_or_default());
                    return Err(format!("`src` is {n}: one element is picked at a time"));
                }
                continue;
            }
            let mut rows = there(Operand::W).filter(|w| w.step == dst.step);
            let (Some(w), None) = (rows.next(), rows.next()) else {
                return Err("a product has not one row `w`".into());
            };
            if let Some(src) = src.filter(|src| plain(src) != plain(w) || plain(w).len() > 1) {
                let [a, b] = [src, w].map(|t| text(t.extents.unwrap_or_default()));
                return Err(format!(
                    "`src` is {a}, and `w` {b}: they are rows of as many elements"
                ));
            }
        }
        let of_product =
            |s: &Touched<'_>| there(Operand::Dst).any(|d| (d.step, d.each) == (s.step, s.each));
        let lost = there(Operand::Src).any(|s| !of_product(s));
        if lost { Err("a row has no product".into()) } else { Ok(()) }
    }
}
