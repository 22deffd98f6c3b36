//! Errors between a plan and its kernel.

use mk_plan::{EdgeId, PointError};
use std::{collections::HashSet, fmt};
use thiserror::Error;

/// Something in a plan that no template carries out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
#[error("{place}: {what}")]
pub struct Refusal {
    /// The family, role, buffer or signal.
    pub place: String,
    /// What no template does.
    pub what: String,
}

/// All of it, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusals(Vec<Refusal>);

impl Refusals {
    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = &Refusal> {
        self.0.iter()
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, refusal) in self.0.iter().enumerate() {
            let before = if i == 0 { "" } else { "\n  " };
            write!(f, "{before}{refusal}")?;
        }
        Ok(())
    }
}

/// Why a plan that verifies has no kernel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The plan uses something that no template implements.
    #[error("{0}")]
    Refused(Refusals),
    /// The emitter contradicts itself: a mistake in it, and not in the plan.
    #[error("internal error in {place}: {what}")]
    Internal {
        /// The file or function.
        place: &'static str,
        /// What does not hold.
        what: String,
    },
    /// An expression has no value.
    #[error(transparent)]
    Point(#[from] PointError),
    /// A template is wrong.
    #[error("internal error in a template: {0:#}")]
    Template(#[from] minijinja::Error),
    /// The emitted text does not carry the plan's edges.
    #[error("internal error: {0}")]
    Audit(#[from] AuditError),
}

/// A result of emission.
pub(super) type Result<T, E = EmitError> = std::result::Result<T, E>;

impl EmitError {
    pub(super) fn unsupported(place: impl Into<String>, what: impl Into<String>) -> EmitError {
        EmitError::Refused(Refusals(vec![Refusal { place: place.into(), what: what.into() }]))
    }

    /// Nothing, for something that no template carries out.
    pub(super) fn refuse<T>(
        place: impl Into<String>,
        what: impl Into<String>,
    ) -> Result<T, EmitError> {
        Err(EmitError::unsupported(place, what))
    }

    pub(super) fn internal(place: &'static str, what: impl Into<String>) -> EmitError {
        EmitError::Internal { place, what: what.into() }
    }
}

/// What has been refused so far: emission goes on where it can, so that all of it is found.
#[derive(Default)]
pub(super) struct Refused {
    list: Vec<Refusal>,
    known: HashSet<Refusal>,
}

impl Refused {
    /// A result, or nothing where it is a refusal, which is noted.
    ///
    /// # Errors
    /// Any other error.
    pub fn note<T>(&mut self, result: Result<T, EmitError>) -> Result<Option<T>, EmitError> {
        match result {
            Ok(x) => Ok(Some(x)),
            Err(EmitError::Refused(Refusals(list))) => {
                let known = &mut self.known;
                self.list.extend(list.into_iter().filter(|r| known.insert(r.clone())));
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    /// Whether nothing has been refused.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What has been refused, if anything.
    ///
    /// # Errors
    /// [`EmitError::Refused`].
    pub fn settle(self) -> Result<(), EmitError> {
        if self.list.is_empty() { Ok(()) } else { Err(EmitError::Refused(Refusals(self.list))) }
    }
}

/// A kernel that does not synchronise as its plan says.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The plan's target has no kernels.
    #[error("{0}")]
    Target(String),
    /// The device library was changed.
    #[error("line {line} of the kernel differs from the device library: `{text}`")]
    Library {
        /// Line in the kernel, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// An edge of the plan is not there as often as it should be.
    #[error("edge {edge} ({what}) appears {found} times in the kernel instead of {want}")]
    Edge {
        /// The edge.
        edge: EdgeId,
        /// What it is in the plan.
        what: String,
        /// How often its primitive appears.
        found: usize,
        /// How often it should: once, or also in the gate of captured launches.
        want: usize,
    },
    /// What surrounds the edges (entry, exit, barriers, agents) is not there as often as it should be.
    #[error("`{text}` appears {found} times in the kernel instead of {want}")]
    Frame {
        /// The call.
        text: String,
        /// How often it appears.
        found: usize,
        /// How often the plan's roles and leaves need it.
        want: usize,
    },
    /// A family that runs on CTAs has a leaf that no emission describes.
    #[error("no emission says which calls the leaf {leaf} of {family} makes")]
    Leaf {
        /// The family.
        family: String,
        /// Its leaf.
        leaf: &'static str,
    },
    /// The kernel names an edge that the plan does not have.
    #[error(
        "line {line} of the kernel synchronises on {edge}, which the plan does not have there: `{text}`"
    )]
    Foreign {
        /// The edge.
        edge: String,
        /// Line in the kernel, from 1.
        line: usize,
        /// The line.
        text: String,
    },
}
