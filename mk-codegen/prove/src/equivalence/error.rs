//! Why a plan is not known to compute its pipeline.

use mk_plan::PointError;
use std::fmt;
use thiserror::Error;

/// Why a plan is not known to compute its pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FieldError {
    /// It computes something else.
    #[error("the plan computes something else than its pipeline:\n{0}")]
    Wrong(Box<WrongElement>),
    /// Its tensors are not the pipeline's.
    #[error("the plan is none of this pipeline: {what}")]
    Interface {
        /// The tensor, and what does not fit.
        what: String,
    },
    /// A task has operands that do not fit each other.
    #[error("{place}: {message}")]
    Misfit {
        /// The task.
        place: String,
        /// What does not fit.
        message: String,
    },
    /// A table in memory has another entry than follows from the routing.
    #[error(
        "the plan fills {table} with something else than follows from the launch:\n  entry {entry} is {is} on rank \
         {rank}, and {want} follows"
    )]
    Entry {
        /// The table.
        table: String,
        /// The rank.
        rank: usize,
        /// The first wrong entry, row by row.
        entry: usize,
        /// What the plan's tasks make it.
        is: i32,
        /// What it is in this launch.
        want: i32,
    },
    /// Tasks read what no task writes before.
    #[error("{place} reads {region}, which nothing has written by then")]
    Unwritten {
        /// The first of them.
        place: String,
        /// The memory.
        region: String,
    },
    /// No routing of all tokens fits into the blocks that ranks have.
    #[error(
        "the plan has room for no routing: tokens go to their experts as {needed} rows, and blocks, each of one \
         expert, hold {most} at most\n  help: raise the capacity"
    )]
    Room {
        /// Rows of all tokens.
        needed: usize,
        /// The most rows that fit, of any routing.
        most: usize,
    },
    /// Nothing is said of such plans, or pipelines.
    #[error("{what} is not evaluated\n  help: {help}")]
    Unsupported {
        /// What.
        what: String,
        /// What works.
        help: String,
    },
    /// More than is evaluated.
    #[error(
        "the plan has too many {what} to be evaluated\n  help: use smaller sizes, or a smaller world"
    )]
    TooLarge {
        /// Of what there are too many.
        what: String,
    },
    /// An expression has no value.
    #[error(transparent)]
    Point(#[from] PointError),
}

/// A result of evaluation.
pub(super) type Result<T, E = FieldError> = std::result::Result<T, E>;

impl FieldError {
    pub(super) fn misfit(place: impl Into<String>, message: impl Into<String>) -> FieldError {
        FieldError::Misfit { place: place.into(), message: message.into() }
    }

    /// What an element is made of is too much to be listed; nobody is told of it by itself.
    pub(super) fn explanation() -> FieldError {
        FieldError::TooLarge { what: "inputs of an element".into() }
    }

    pub(super) fn multiplications() -> FieldError {
        FieldError::TooLarge { what: "multiplications".into() }
    }

    pub(super) fn unsupported(what: impl Into<String>, help: impl Into<String>) -> FieldError {
        FieldError::Unsupported { what: what.into(), help: help.into() }
    }
}

/// The first element that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongElement {
    /// The launch, from 1, where launches differ; the value of the run-time dimension, if there is one.
    pub launch: String,
    /// The result.
    pub result: String,
    /// The rank that holds it.
    pub rank: usize,
    /// Its place in what the rank holds.
    pub element: Vec<i64>,
    /// Elements that are wrong on this rank, and of how many that were compared; each may stand for a block of others.
    pub wrong: (usize, usize),
    /// The task that wrote it; none if nothing did.
    pub writer: Option<String>,
    /// Whether the following three are known: what an element is made of is not looked for at any price.
    pub listed: bool,
    /// What the pipeline makes it of, and the plan does not.
    pub missing: Vec<String>,
    /// What the plan makes it of, and the pipeline does not.
    pub extra: Vec<String>,
    /// All that the pipeline makes it of.
    pub expected: Vec<String>,
}

impl fmt::Display for WrongElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at: Vec<String> = self.element.iter().map(i64::to_string).collect();
        write!(f, "  rank {}: {}[{}]", self.rank, self.result, at.join(", "))?;
        if !self.launch.is_empty() {
            write!(f, " with {}", self.launch)?;
        }
        match &self.writer {
            Some(writer) => writeln!(f, ", written by {writer}")?,
            None => writeln!(f, ", which nothing writes")?,
        }
        if self.listed {
            writeln!(f, "    the pipeline makes it of {}", listed(&self.expected))?;
        }
        match (self.missing.is_empty(), self.extra.is_empty()) {
            _ if !self.listed => writeln!(
                f,
                "    its inputs are too many to list: of smaller sizes they are listed"
            )?,
            (true, true) => writeln!(f, "    the plan makes it of the same, by other arithmetic")?,
            (false, true) => writeln!(f, "    the plan leaves out {}", listed(&self.missing))?,
            (true, false) => writeln!(f, "    the plan adds {}", listed(&self.extra))?,
            (false, false) => writeln!(
                f,
                "    the plan has {} instead of {}",
                listed(&self.extra),
                listed(&self.missing)
            )?,
        }
        let (wrong, of) = self.wrong;
        write!(f, "    {wrong} of the {of} elements that were compared on this rank are wrong")
    }
}

fn listed(list: &[String]) -> String {
    match list {
        [] => "nothing".into(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
