//! Error norms in words, and what they come to.

use crate::{failure::Failure, output::say};
use mk::harness::{Case, Layout, Norms, Tolerance};

/// Prints each launch, and remembers the worst.
pub struct Verdict<'a> {
    case: Case<'a>,
    tolerance: Tolerance,
    launches: usize,
    global: f64,
    tile: f64,
    /// The first result that does not pass.
    wrong: Option<String>,
}

impl<'a> Verdict<'a> {
    /// Before the first launch.
    pub fn new(case: Case<'a>) -> Verdict<'a> {
        let tolerance = Tolerance::default();
        Verdict { case, tolerance, launches: 0, global: 0.0, tile: 0.0, wrong: None }
    }

    /// Takes the errors of a launch, by rank.
    pub fn launch(&mut self, norms: &[Norms]) -> Result<(), Failure> {
        self.launches += 1;
        for (rank, norm) in norms.iter().enumerate() {
            let place = format!("launch {}, rank {rank}", self.launches);
            if !self.owns(rank) {
                say!("{place}: holds no part of the result")?;
                continue;
            }
            let (row, col) = norm.worst_at;
            let bad = match norm.nonfinite {
                0 => String::new(),
                n => format!(", {n} elements are not finite"),
            };
            let text = format!(
                "error {:.2e}, worst tile {:.2e} (row {}, column {}){bad}",
                norm.global,
                norm.worst_tile,
                128 * row,
                128 * col
            );
            say!("{place}: {text}")?;
            self.global = self.global.max(norm.global);
            self.tile = self.tile.max(norm.worst_tile);
            if !self.tolerance.accepts(norm) {
                self.wrong.get_or_insert(format!("{place}: {text}"));
            }
        }
        Ok(())
    }

    /// Takes the errors of some rows against f64, by rank.
    pub fn rows(&mut self, errors: &[f64]) -> Result<(), Failure> {
        let worst = errors.iter().copied().fold(0.0, nan_max);
        say!("launch {}: sampled rows against f64: worst error {worst:.2e}", self.launches)?;
        // Not `>=`: a NaN is wrong, too.
        let right = worst < self.tolerance.global;
        if !right {
            let place = format!("launch {}: sampled rows: error {worst:.2e}", self.launches);
            self.wrong.get_or_insert(place);
        }
        Ok(())
    }

    /// PASS or FAIL.
    pub fn finish(self) -> Result<(), Failure> {
        let Tolerance { global, tile } = self.tolerance;
        let figures = format!(
            "{}, worst error {:.2e} (below {global:.0e}), worst tile {:.2e} (below {tile:.0e})",
            launches(self.launches, self.case.ranks),
            self.global,
            self.tile
        );
        match self.wrong {
            None => say!("PASS: {figures}"),
            Some(first) => {
                say!("FAIL: {figures}")?;
                Err(Failure::new(format!("the result is wrong: {first}")))
            }
        }
    }

    fn owns(&self, rank: usize) -> bool {
        let Case { program, bound, ranks } = self.case;
        program.results().iter().any(|id| match program.ty(*id).map(|t| t.placement.as_slice()) {
            Some([placement]) => {
                Layout::new(bound.shape(*id).unwrap_or(&[]), *placement, ranks, rank).elements() > 0
            }
            _ => true,
        })
    }
}

/// The greater one; a NaN wins.
fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b <= a { a } else { b }
}

/// `3 launches on 4 ranks`.
pub fn launches(launches: usize, ranks: usize) -> String {
    let of = |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    format!("{} on {}", of(launches, "launch", "launches"), of(ranks, "rank", "ranks"))
}
