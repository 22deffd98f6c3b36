//! Errors in words, and what they come to.

use crate::{
    failure::{Failure, Kind, Result},
    output::{self, detail},
};
use mk::{abi::count, plan::Places};
use mk_harness::{Case, Dropped, Judgement, Layout, Norms, Tolerance};
use serde_json::{Value, json};

/// Prints each launch, and remembers the worst.
pub struct Verdict<'a> {
    case: Case<'a>,
    /// The places along the pipeline's axes, and all ranks.
    places: Places,
    ranks: usize,
    launches: usize,
    global: f64,
    tile: f64,
    /// Elements of which nothing can be said.
    unknown: u64,
    /// What norms passed, where elements were not judged one by one.
    tolerance: Option<Tolerance>,
    /// The first result that does not pass.
    wrong: Option<String>,
    /// Each launch on each rank, for `--json`.
    rows: Vec<Value>,
    /// Rows of tokens that launches dropped, where the pipeline drops.
    dropped: Option<Dropped>,
}

impl<'a> Verdict<'a> {
    /// Before the first launch.
    pub fn new(case: Case<'a>, places: Places, ranks: usize) -> Verdict<'a> {
        Verdict {
            case,
            places,
            ranks,
            launches: 0,
            global: 0.0,
            tile: 0.0,
            unknown: 0,
            tolerance: None,
            wrong: None,
            rows: Vec::new(),
            dropped: None,
        }
    }

    /// Takes what a launch (from 1) dropped of each rank's tokens.
    pub fn dropped(&mut self, launch: u32, of_ranks: &[Dropped]) -> Result<()> {
        let sum = self.dropped.get_or_insert_default();
        for (rank, Dropped { dropped, of }) in of_ranks.iter().enumerate() {
            sum.dropped += dropped;
            sum.of += of;
            detail!("launch {launch}, rank {rank}: {dropped} of {} dropped", count(*of, "row"))?;
        }
        Ok(())
    }

    /// Takes what a launch left, by rank, of which every element was judged.
    pub fn launch(&mut self, judged: &[Judgement]) -> Result<()> {
        self.launches += 1;
        for (rank, judged) in judged.iter().enumerate() {
            self.unknown += judged.unknown;
            self.rank(rank, &judged.norms, &judged.to_string(), judged.passes())?;
        }
        Ok(())
    }

    /// Takes the errors of a launch as a whole, by rank, and what passes.
    pub fn norms(&mut self, norms: &[Norms], tolerance: &Tolerance) -> Result<()> {
        self.launches += 1;
        self.tolerance = Some(*tolerance);
        for (rank, norm) in norms.iter().enumerate() {
            let (row, col) = norm.worst_at;
            let bad = match norm.nonfinite {
                0 => String::new(),
                1 => ", 1 element is not finite".into(),
                n => format!(", {n} elements are not finite"),
            };
            let text = format!(
                "error {:.2e}, worst tile {:.2e} (row {}, column {}), worst element {:.2e} (at most {:.1e}){bad}",
                norm.global,
                norm.worst_tile,
                128 * row,
                128 * col,
                norm.worst_element,
                tolerance.element
            );
            self.rank(rank, norm, &text, tolerance.accepts(norm))?;
        }
        Ok(())
    }

    fn rank(&mut self, rank: usize, norms: &Norms, text: &str, right: bool) -> Result<()> {
        let place = format!("launch {}, rank {rank}", self.launches);
        if !self.owns(rank) {
            return detail!("{place}: holds no part of the result");
        }
        self.rows.push(json!({
            "launch": self.launches,
            "rank": rank,
            "error": norms.global,
            "worst_tile": norms.worst_tile,
            "passes": right,
        }));
        self.global = self.global.max(norms.global);
        self.tile = self.tile.max(norms.worst_tile);
        if !right {
            self.wrong.get_or_insert(format!("{place}: {text}"));
        }
        detail!("{place}: {text}")
    }

    /// Takes some rows of the launch, by rank, of which every element was judged.
    pub fn rows(&mut self, judged: Vec<Judgement>) -> Result<()> {
        let all = judged.into_iter().fold(Judgement::default(), Judgement::and);
        let place = format!("launch {}, sampled rows against f64", self.launches);
        self.unknown += all.unknown;
        detail!("{place}: {all}")?;
        if !all.passes() {
            self.wrong.get_or_insert(format!("{place}: {all}"));
        }
        Ok(())
    }

    /// PASS or FAIL, with a report of what ran.
    pub fn finish(self, mut report: Value) -> Result<()> {
        let below = |of: fn(&Tolerance) -> f64| {
            self.tolerance.map_or(String::new(), |t| format!(" (at most {:.0e})", of(&t)))
        };
        let mut figures = format!(
            "{}, worst error {:.2e}{}, worst tile {:.2e}{}",
            launches(self.launches, self.ranks),
            self.global,
            below(|t| t.global),
            self.tile,
            below(|t| t.tile),
        );
        if self.unknown > 0 {
            figures += &format!(", {} not judged", count(self.unknown, "element"));
        }
        if let Some(Dropped { dropped, of }) = self.dropped {
            figures += &format!(", {dropped} of {} dropped", count(of, "row"));
            report["dropped"] = json!({ "rows": dropped, "of": of });
        }
        let nothing_left = self.dropped.is_some_and(|d| d.of > 0 && d.dropped == d.of);
        report["verdict"] = match (&self.wrong, nothing_left) {
            (Some(_), _) => "FAIL",
            (None, true) => "RAN",
            (None, false) => "PASS",
        }
        .into();
        report["worst_error"] = self.global.into();
        report["worst_tile"] = self.tile.into();
        report["not_judged"] = self.unknown.into();
        report["launches"] = self.rows.into();
        let within = match self.tolerance {
            None => "every element within its bound",
            Some(_) => "sampled rows within their bounds",
        };
        match self.wrong {
            None if nothing_left => {
                output::report(|| report)?;
                output::verdict(
                    true,
                    format_args!(
                        "RAN (all rows dropped): {figures}; no product was compared: a greater `capacity` keeps rows"
                    ),
                )
            }
            None => {
                output::report(|| report)?;
                output::verdict(true, format_args!("PASS: {figures}, {within}"))
            }
            Some(first) => {
                output::verdict(false, format_args!("FAIL: {figures}"))?;
                let what = format!("the result is wrong: {first}");
                Err(Failure::new(Kind::Wrong, what).with_report(report))
            }
        }
    }

    fn owns(&self, rank: usize) -> bool {
        let Case { program, bound, .. } = self.case;
        program.results().iter().any(|id| {
            let placement = program.ty(*id).map_or(&[][..], |ty| &ty.placement);
            let (shape, sizes) = (bound.shape(*id).unwrap_or(&[]), self.places.sizes());
            Layout::over(shape, placement, &sizes, self.places.of(rank)).elements() > 0
        })
    }
}

/// `3 launches on 4 ranks`.
pub fn launches(launches: usize, ranks: usize) -> String {
    format!("{} on {}", count(launches, "launch"), count(ranks, "rank"))
}
