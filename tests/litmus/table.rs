//! What the run prints: one line per litmus.

use crate::cases::{Expect, Litmus};
use crate::play::Outcome;
use std::time::Duration;

/// A litmus and what came of it; `None` where it did not run.
pub struct Row {
    pub litmus: &'static Litmus,
    pub within: Option<Outcome>,
    pub across: Option<Outcome>,
    /// Whether these GPUs are of the kind that fails across NVLink where [`Expect::FailsAcross`] says so.
    pub fails_across: bool,
}

/// Name of the runs between GPUs.
const ACROSS: &str = "across NVLink";

impl Row {
    /// Where it ran.
    fn outcomes(&self) -> impl Iterator<Item = (&'static str, &Outcome)> {
        [("within a GPU", &self.within), (ACROSS, &self.across)]
            .into_iter()
            .filter_map(|(place, outcome)| outcome.as_ref().map(|o| (place, o)))
    }

    fn verdict(&self) -> &'static str {
        if self.outcomes().next().is_none() {
            return "did not run here";
        }
        let failed = self.outcomes().any(|(_, o)| o.failed());
        match (self.litmus.expect, failed) {
            _ if !self.failures().is_empty() => "WRONG",
            (Expect::Clean, _) => "clean",
            (_, true) => "seen to fail",
            (_, false) => "not seen to fail",
        }
    }

    /// What the test asserts: correct ones have no violation, and the certain ones are seen to fail wherever they run.
    pub fn failures(&self) -> Vec<String> {
        let wrong = |place: &str, o: &Outcome| match self.litmus.expect {
            Expect::Clean => o.failed() || o.turns == 0,
            Expect::Fails => !o.failed(),
            Expect::FailsAcross => self.fails_across && place == ACROSS && !o.failed(),
            Expect::MayFail => false,
        };
        let tell = |(place, o): (&str, &Outcome)| {
            let (name, turns, n) = (self.litmus.name, o.turns, o.violations);
            let detail = o.error.as_ref().or(o.first.as_ref()).map_or("", |d| d);
            format!("{name} {place}: {n} violations in {turns} turns {detail}")
        };
        self.outcomes().filter(|(place, o)| wrong(place, o)).map(tell).collect()
    }
}

/// Turns and violations, or a dash.
fn cells(outcome: &Option<Outcome>) -> String {
    match outcome {
        None => format!("{:>5} {:>10} {:>11}", "-", "-", "-"),
        Some(o) => {
            let violations = match &o.error {
                Some(_) => format!("{} +hang", o.violations),
                None => o.violations.to_string(),
            };
            format!("{:>5} {:>10} {violations:>11}", o.pairs, o.turns)
        }
    }
}

/// Prints the details of what failed, and the table last.
pub fn print(rows: &[Row], gpus: u32, took: Duration) {
    for row in rows {
        for (place, outcome) in row.outcomes() {
            if let Some(error) = &outcome.error {
                println!("{} {place}: {error}", row.litmus.name);
            }
        }
    }
    let turns: u64 = rows.iter().flat_map(Row::outcomes).map(|(_, o)| o.turns).sum();
    println!("{turns} turns in {took:.1?} on {gpus} GPUs; violations are wrong words");
    let head = format!("{:>5} {:>10} {:>11}", "pairs", "turns", "violations");
    println!("{:34} | {:28} | across NVLink", "", "within a GPU");
    println!("{:34} | {head} | {head} | verdict", "litmus");
    for row in rows {
        println!(
            "{:34} | {} | {} | {}",
            row.litmus.name,
            cells(&row.within),
            cells(&row.across),
            row.verdict()
        );
    }
}
