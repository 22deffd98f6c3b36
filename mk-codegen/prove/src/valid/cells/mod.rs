//! Cells: values of the run-time dimension that one proof is about.

mod regions;

pub(super) use regions::{Regions, spans_of};

use super::{
    report::Violation,
    spans::{
        LiveId,
        domain::{Line, Places},
        function::{Functions, Piece, Stop},
    },
};
use mk_plan::Points;

/// Extents of a buffer, by buffer, rank and dimension.
pub(super) type Shapes = Vec<Vec<Vec<Vec<Piece>>>>;

/// Values of the run-time dimension for which tasks, waits and posts are the same.
pub(super) struct Cell<'c> {
    /// For one of its values: good for all that does not depend on it.
    pub points: &'c Points<'c>,
    pub functions: Functions<'c>,
    /// All its values.
    pub places: Vec<Places>,
    pub whole: LiveId,
    /// Extents of each buffer, by buffer, rank and dimension.
    pub shapes: Shapes,
    /// After how many epochs the plan repeats.
    pub period: u32,
}

impl Cell<'_> {
    /// A function that is one line wherever the cell has values.
    pub fn pieces(&self, line: Line) -> Vec<Piece> {
        let piece = |p: &Places| Piece { run: p.run, lo: p.lo, hi: p.hi, line };
        self.places.iter().map(piece).collect()
    }
}

/// Why values cannot be looked at together.
pub(super) enum Halt {
    /// They break a rule, or are too much.
    Broken(Vec<Violation>),
    /// An expression is not a function in pieces, or has no value somewhere.
    Stop { stop: Stop, place: String, text: String },
    /// An expression must be the same for all of them, and is for those of each part; halves, if there are none.
    Split { parts: Vec<Vec<Places>>, place: String, text: String },
}

impl Halt {
    /// As violations, where there is one value only.
    pub fn violations(self) -> Vec<Violation> {
        match self {
            Halt::Broken(list) => list,
            Halt::Stop { place, text, .. } | Halt::Split { place, text, .. } => {
                vec![undecided(place, format!("`{text}` is not decided"))]
            }
        }
    }
}

pub(super) fn undecided(place: String, message: String) -> Violation {
    Violation::RunTime { place, message }
}
