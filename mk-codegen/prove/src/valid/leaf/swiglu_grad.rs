//! Gradients of gated rows.

use super::Rules;
use crate::valid::touched::{Touched, area, text};
use mk_plan::{Family, SwigluGradTile};
use std::collections::BTreeMap;

impl Rules for SwigluGradTile {
    /// At each step that touches a row, everything is there once: a row of as many elements, twice as many of gates and
    /// ups, or one.
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let ours = Self::READS.iter().chain(&Self::WRITES);
        let mut steps: BTreeMap<u32, Vec<&Touched<'_>>> = BTreeMap::new();
        for t in touched.iter().filter(|t| t.extents.is_some()) {
            if ours.clone().any(|o| *o == t.operand) {
                steps.entry(t.step).or_default().push(t);
            }
        }
        for of_step in steps.values() {
            let mut row = Vec::new();
            for operand in ours.clone() {
                let mut all = of_step.iter().copied().filter(|t| t.operand == *operand);
                let (Some(one), None) = (all.next(), all.next()) else {
                    return Err(format!("a row has not one `{operand}`"));
                };
                row.push(one);
            }
            let &[src, gates, weight, dst, weighted, sum] = &row[..] else { continue };
            let columns = area(src);
            let misfit = |t: &&Touched<'_>, what: &str| {
                let [a, b] = [src, t].map(|t| text(t.extents.unwrap_or_default()));
                Err(format!("`src` is {a}, and `{}` {b}: {what}", t.operand))
            };
            if let Some(t) = [src, weighted].iter().find(|t| shape(t) != [1, 1, columns]) {
                return misfit(t, "they are rows of as many elements");
            }
            if let Some(t) = [gates, dst].iter().find(|t| shape(t) != [1, 2, columns]) {
                return misfit(t, "gates and ups are rows of as many elements");
            }
            if let Some(t) = [weight, sum].iter().find(|t| area(t) != 1) {
                return misfit(t, "a row has one element of it");
            }
        }
        Ok(())
    }
}

/// How much there is before the last two dimensions, and those.
fn shape(t: &Touched<'_>) -> [i64; 3] {
    let mut all = t.extents.unwrap_or_default().iter().rev().map(|d| d.1);
    let [columns, halves] = [all.next(), all.next()].map(|n| n.unwrap_or(1));
    [all.product(), halves, columns]
}
