//! Sums.

use super::{Rules, epilogue::tails};
use crate::valid::touched::{Touched, area, of, plain, text};
use mk_plan::{EpilogueOp, Factors, Family, Operand, ReduceTile, Var, of_epilogue};
use std::collections::BTreeSet;

impl Rules for ReduceTile {
    fn misfit(&self, family: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let mut src = family.accesses.iter().filter(|a| a.operand == Operand::Src);
        // Of contributions that may each not be there, there may be none.
        let may_lack = src.any(|a| a.when.as_ref().is_some_and(|w| w.mentions(Var::EACH)));
        sum(&self.epilogue, (family.factors(), may_lack), touched).map_or(Ok(()), Err)
    }

    fn contributions(&self) -> &'static [Operand] {
        &[Operand::Src]
    }
}

/// Contributions, sums and matrices of the epilogue have the same extents; a bias has one row of as many columns.
fn sum(
    epilogue: &[EpilogueOp],
    (weighted, may_lack): (Factors, bool),
    touched: &[Touched<'_>],
) -> Option<String> {
    let made = of(touched, Operand::Dst).filter(|t| t.extents.is_some());
    // In an inner loop, sums of what is read in it.
    let inner = of(touched, Operand::Dst).map(|t| t.step).collect::<BTreeSet<_>>().len() > 1;
    let there = |d: &Touched<'_>| {
        of(touched, Operand::Src).any(|s| if inner { s.step == d.step } else { s.step <= d.step })
    };
    if !may_lack && made.into_iter().any(|d| !there(d)) {
        return Some("`dst` is a sum of nothing: no `src` comes before it".into());
    }
    let mut all = touched.iter().filter(|t| matches!(t.operand, Operand::Src | Operand::Dst));
    let first = all.next()?;
    if let Some(what) = factors(weighted, touched).or_else(|| tails(epilogue, touched).err()) {
        return Some(what);
    }
    let columns = |t: &Touched<'_>| t.extents.and_then(|d| d.last()).map(|d| d.1);
    let other = touched.iter().find(|t| {
        if t.operand == Operand::W {
            return false;
        }
        if of_epilogue(epilogue, t.operand) == Some(EpilogueOp::Bias) {
            let row = columns(t).is_none_or(|n| area(t) == n);
            return !row || first.extents.is_some() && columns(t) != columns(first);
        }
        t.extents.is_some() != first.extents.is_some() || plain(t) != plain(first)
    })?;
    let [a, b] = [first, other].map(|t| text(t.extents.unwrap_or(&[(0, 0)])));
    Some(format!("a contribution is {a}, and `{}` {b}", other.operand))
}

/// Each contribution has a factor of one element, or at most one, or none has.
fn factors(weighted: Factors, touched: &[Touched<'_>]) -> Option<String> {
    let least = match weighted {
        Factors::None => return None,
        Factors::Some => 0,
        Factors::All => 1,
    };
    let lacking = of(touched, Operand::Src).find(|s| {
        let same = |w: &Touched<'_>| (w.step, w.each) == (s.step, s.each) && area(w) == 1;
        !(least..=1).contains(&of(touched, Operand::W).filter(|w| same(w)).count())
    })?;
    let which = lacking.each.map_or(String::new(), |n| format!(" number {n}"));
    Some(format!("contribution{which} has no factor `w` of one element"))
}
