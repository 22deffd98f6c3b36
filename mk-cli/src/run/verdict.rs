//! Errors in words, and what they come to.

use crate::{failure::Failure, output::say};
use mk_harness::{Case, Judgement, Layout, Norms, Tolerance};

/// Prints each launch, and remembers the worst.
pub struct Verdict<'a> {
    case: Case<'a>,
    launches: usize,
    global: f64,
    tile: f64,
    /// Elements of which nothing can be said.
    unknown: u64,
    /// What norms passed, where elements were not judged one by one.
    tolerance: Option<Tolerance>,
    /// The first result that does not pass.
    wrong: Option<String>,
}

impl<'a> Verdict<'a> {
    /// Before the first launch.
    pub fn new(case: Case<'a>) -> Verdict<'a> {
        Verdict {
            case,
            launches: 0,
            global: 0.0,
            tile: 0.0,
            unknown: 0,
            tolerance: None,
            wrong: None,
        }
    }

    /// Takes what a launch left, by rank, of which every element was judged.
    pub fn launch(&mut self, judged: &[Judgement]) -> Result<(), Failure> {
        self.launches += 1;
        for (rank, judged) in judged.iter().enumerate() {
            self.unknown += judged.unknown;
            self.rank(rank, &judged.norms, &judged.to_string(), judged.passes())?;
        }
        Ok(())
    }

    /// Takes the errors of a launch as a whole, by rank, and what passes.
    pub fn norms(&mut self, norms: &[Norms], tolerance: &Tolerance) -> Result<(), Failure> {
        self.launches += 1;
        self.tolerance = Some(*tolerance);
        for (rank, norm) in norms.iter().enumerate() {
            let (row, col) = norm.worst_at;
            let bad = match norm.nonfinite {
                0 => String::new(),
                n => format!(", {n} elements are not finite"),
            };
            let text = format!(
                "error {:.2e}, worst tile {:.2e} (row {}, column {}), worst element {:.2e}{bad}",
                norm.global,
                norm.worst_tile,
                128 * row,
                128 * col,
                norm.worst_element
            );
            self.rank(rank, norm, &text, tolerance.accepts(norm))?;
        }
        Ok(())
    }

    fn rank(&mut self, rank: usize, norms: &Norms, text: &str, right: bool) -> Result<(), Failure> {
        let place = format!("launch {}, rank {rank}", self.launches);
        if !self.owns(rank) {
            return say!("{place}: holds no part of the result");
        }
        self.global = self.global.max(norms.global);
        self.tile = self.tile.max(norms.worst_tile);
        if !right {
            self.wrong.get_or_insert(format!("{place}: {text}"));
        }
        say!("{place}: {text}")
    }

    /// Takes some rows of the launch, by rank, of which every element was judged.
    pub fn rows(&mut self, judged: Vec<Judgement>) -> Result<(), Failure> {
        let all = judged.into_iter().fold(Judgement::default(), Judgement::and);
        let place = format!("launch {}, sampled rows against f64", self.launches);
        self.unknown += all.unknown;
        say!("{place}: {all}")?;
        if !all.passes() {
            self.wrong.get_or_insert(format!("{place}: {all}"));
        }
        Ok(())
    }

    /// PASS or FAIL.
    pub fn finish(self) -> Result<(), Failure> {
        let below = |of: fn(&Tolerance) -> f64| {
            self.tolerance.map_or(String::new(), |t| format!(" (at most {:.0e})", of(&t)))
        };
        let mut figures = format!(
            "{} launches on {} ranks, worst error {:.2e}{}, worst tile {:.2e}{}",
            self.launches,
            self.case.ranks,
            self.global,
            below(|t| t.global),
            self.tile,
            below(|t| t.tile),
        );
        if self.unknown > 0 {
            figures += &format!(", {} elements not judged", self.unknown);
        }
        match (self.wrong, self.tolerance) {
            (None, None) => say!("PASS: {figures}, every element within its bound"),
            (None, Some(_)) => say!("PASS: {figures}, sampled rows within their bounds"),
            (Some(first), _) => {
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
