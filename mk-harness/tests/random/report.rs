//! What became of cases.

use crate::kinds::KINDS;
use std::{collections::BTreeMap, time::Duration};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A right plan is accepted, and its results are right.
    Right,
    /// A right plan whose launch has no room for the routing.
    NoLaunch,
    /// The verifier refuses a mutant, and a run goes wrong.
    Unordered,
    /// The verifier refuses a mutant, and this run is right.
    Strict,
    /// The evaluation refuses a mutant, and a run goes wrong.
    Values,
    /// The evaluation refuses a mutant, and this run is right.
    Near,
    /// A mutant is accepted, and right.
    Equal,
    /// Accepted, and wrong; or right, and refused.
    Missed,
}

use Outcome::*;

const ALL: [Outcome; 8] = [Right, NoLaunch, Unordered, Strict, Values, Near, Equal, Missed];

/// What was said of a case.
pub struct Said {
    pub kind: &'static str,
    pub outcome: Outcome,
    pub text: String,
}

#[derive(Default)]
pub struct Report {
    drawn: u64,
    of: BTreeMap<&'static str, BTreeMap<Outcome, u64>>,
    missed: Vec<String>,
}

impl Report {
    pub fn take(&mut self, said: Option<Said>) {
        self.drawn += 1;
        let Some(Said { kind, outcome, text }) = said else { return };
        *self.of.entry(kind).or_default().entry(outcome).or_default() += 1;
        if outcome == Missed {
            eprintln!("missed: {text}");
            self.missed.push(text);
        } else if std::env::var("MK_RANDOM_SAY").is_ok_and(|o| o == format!("{outcome:?}")) {
            println!("{outcome:?}: {text}");
        }
    }

    /// Those that are cases.
    pub fn cases(&self) -> u64 {
        self.of.values().flat_map(BTreeMap::values).sum()
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.of.values().filter_map(|of| of.get(&outcome)).sum()
    }

    pub fn print(&self, time: Duration) {
        println!("{} cases of {} that were drawn, {time:.0?}", self.cases(), self.drawn);
        println!("| kind | {} |", ALL.map(|o| format!("{o:?}")).join(" | "));
        println!("| --- |{}", " --- |".repeat(ALL.len()));
        for (kind, of) in &self.of {
            let row = ALL.map(|o| of.get(&o).copied().unwrap_or(0).to_string());
            println!("| {kind} | {} |", row.join(" | "));
        }
        println!("| all | {} |", ALL.map(|o| self.count(o).to_string()).join(" | "));
    }

    /// Nothing is missed, and all that can come of a case came of some.
    pub fn judge(&self) {
        assert!(self.missed.is_empty(), "{}:\n{}", self.missed.len(), self.missed.join("\n"));
        let cases = self.cases();
        assert!(cases >= 20, "{cases} cases");
        if cases >= 1000 {
            let kinds = self.of.len();
            assert_eq!(kinds, KINDS.len(), "every kind has a plan");
            for outcome in [Right, Unordered, Values, Equal] {
                assert!(self.count(outcome) > cases / 100, "{outcome:?}: {}", self.count(outcome));
            }
        }
    }
}
