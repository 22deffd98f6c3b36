//! Copies, by whom ever.

use super::Rules;
use crate::valid::touched::{Touched, area, of, plain, text};
use mk_plan::{
    CopyTile, Family, Operand,
    leaf::{HostCopy, NicSend},
};

macro_rules! copies {
    ($($leaf:ty),*) => {$(
        impl Rules for $leaf {
            fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
                copy(touched).map_or(Ok(()), Err)
            }
        }
    )*};
}

copies!(CopyTile, HostCopy, NicSend);

/// Sources and destinations that both repeat are pairs by the value of `each`; otherwise all sources, one after the
/// other, go to every destination. A single source has the extents of its destination, and not only as many elements.
fn copy(touched: &[Touched<'_>]) -> Option<String> {
    let paired = of(touched, Operand::Src).any(|s| s.each.is_some());
    of(touched, Operand::Dst).find_map(|dst| {
        let mine = |s: &&Touched<'_>| !(paired && dst.each.is_some()) || s.each == dst.each;
        let sources: Vec<_> = of(touched, Operand::Src).filter(mine).collect();
        let same = match sources[..] {
            [src] if src.extents.is_some() && dst.extents.is_some() => plain(src) == plain(dst),
            _ => sources.iter().map(|s| area(s)).sum::<i64>() == area(dst),
        };
        let from: Vec<_> = sources.iter().map(|s| text(s.extents.unwrap_or(&[(0, 0)]))).collect();
        let to = text(dst.extents.unwrap_or(&[(0, 0)]));
        (!same).then(|| format!("`src` is {}, and `dst` {to}", from.join(" and ")))
    })
}
