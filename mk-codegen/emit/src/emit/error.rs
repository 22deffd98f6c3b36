//! Errors between a plan and its kernel.

use mk_plan::{EdgeId, PointError};
use std::fmt;
use thiserror::Error;

/// Something in a plan that no template carries out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
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

mk_abi::errors! {
    /// Why a plan that verifies has no kernel.
    #[derive(Debug)]
    #[non_exhaustive]
    EmitError {
        /// The plan uses something that no template implements.
        Refused("{0}") = (Refusals),
        /// The emitter contradicts itself: a mistake in it, and not in the plan.
        Internal("internal error in {place}: {what}") {
            place: &'static str = "The file or function",
            what: String = "What does not hold",
        },
        /// An expression has no value.
        Point from PointError,
        /// A template is wrong.
        Template("internal error in a template: {0:#}") = (#[from] minijinja::Error),
        /// The emitted text does not carry the plan's edges.
        Audit("internal error: {0}") = (#[from] AuditError),
    }
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
pub(super) struct Refused(Vec<Refusal>);

impl Refused {
    /// A result, or nothing where it is a refusal, which is noted.
    ///
    /// # Errors
    /// Any other error.
    pub fn note<T>(&mut self, result: Result<T, EmitError>) -> Result<Option<T>, EmitError> {
        match result {
            Ok(x) => Ok(Some(x)),
            Err(EmitError::Refused(Refusals(list))) => {
                let new: Vec<_> = list.into_iter().filter(|r| !self.0.contains(r)).collect();
                self.0.extend(new);
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    /// Whether nothing has been refused.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What has been refused, if anything.
    ///
    /// # Errors
    /// [`EmitError::Refused`].
    pub fn settle(self) -> Result<(), EmitError> {
        if self.0.is_empty() { Ok(()) } else { Err(EmitError::Refused(Refusals(self.0))) }
    }
}

mk_abi::errors! {
    /// A kernel that does not synchronise as its plan says.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    AuditError {
        /// The plan's target has no kernels.
        Target("{0}") = (String),
        /// The device library was changed.
        Library("line {line} of the kernel differs from the device library: `{text}`") {
            line: usize = "Line in the kernel, from 1",
            text: String = "The line",
        },
        /// An edge of the plan is not there as often as it should be.
        Edge("edge {edge} ({what}) appears {found} times in the kernel instead of {want}") {
            edge: EdgeId = "The edge",
            what: String = "What it is in the plan",
            found: usize = "How often its primitive appears",
            want: usize = "How often it should: once, or also in the gate of captured launches",
        },
        /// What surrounds the edges (entry, exit, barriers, agents) is not there as often as it should be.
        Frame("`{text}` appears {found} times in the kernel instead of {want}") {
            text: String = "The call",
            found: usize = "How often it appears",
            want: usize = "How often the plan's roles and leaves need it",
        },
        /// A family that runs on CTAs has a leaf that no emission describes.
        Leaf("no emission says which calls the leaf {leaf} of {family} makes") {
            family: String = "The family",
            leaf: &'static str = "Its leaf",
        },
        /// The kernel names an edge that the plan does not have.
        Foreign("line {line} of the kernel synchronises on {edge}, which the plan does not have there: `{text}`") {
            edge: String = "The edge",
            line: usize = "Line in the kernel, from 1",
            text: String = "The line",
        },
    }
}
