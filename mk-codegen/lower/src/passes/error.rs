//! Why a pipeline has no plan.

use crate::settings::Refusal;
use mk_plan::StructureError;
use mk_prove::{equivalence::FieldError, valid};
use thiserror::Error;

/// Why a checked pipeline has no plan.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LowerError {
    /// The pipeline is sound, but no pass lowers it.
    #[error("`{op}` cannot be lowered here: {why}\n  help: {help}")]
    Unsupported {
        /// The operation.
        op: String,
        /// What stands in the way.
        why: String,
        /// What works.
        help: String,
    },
    /// A setting that this pipeline, or its other settings, cannot have.
    #[error(transparent)]
    Setting(#[from] Refusal),
    /// A world, a target or a tensor outside what one kernel can have.
    #[error("{what}\n  help: {help}")]
    OutOfRange {
        /// The value.
        what: String,
        /// What would be accepted.
        help: String,
    },
    /// More than a plan can have, or the verifier decides.
    #[error("the plan is too large: {what}\n  help: {}", way_out(fits.as_deref()))]
    TooLarge {
        /// What there is too much of, and the limit.
        what: String,
        /// A smaller size with which there is a plan, where that is known.
        fits: Option<String>,
    },
    /// A pass met something that the passes before it do not leave.
    #[error("internal error: {what}")]
    Internal {
        /// The thing, and its place.
        what: String,
    },
    /// A pass produced a plan that is not well formed.
    #[error("internal error: the lowered plan is not well formed: {0}")]
    Structure(StructureError),
    /// A pass produced a plan that does not verify.
    #[error("internal error: the lowered plan does not verify:\n{0}")]
    Verify(valid::Failure),
    /// A pass produced a plan that computes something else than the pipeline.
    #[error("internal error: the lowered plan is not the pipeline's: {0}")]
    Compute(FieldError),
}

pub(super) fn unsupported(op: &str, why: impl Into<String>, help: &str) -> LowerError {
    LowerError::Unsupported { op: op.into(), why: why.into(), help: help.into() }
}

/// A dimension of a tensor of so many that ranks do not share evenly.
pub(super) fn uneven_extent(
    name: &str,
    dims: usize,
    dim: usize,
    extent: i32,
    ranks: i32,
) -> LowerError {
    let of = "on each of";
    let why = match (dims, dim) {
        (2, 0) => format!("{extent} rows are not as many {of} {ranks} ranks that share them"),
        (2, _) => format!("{extent} columns are not as many {of} {ranks} ranks that share them"),
        _ => format!("dimension {dim}, {extent}, is not as long {of} {ranks} ranks that share it"),
    };
    let help = "use a number that these ranks divide, or one axis in a kernel";
    unsupported(name, why, help)
}

pub(super) fn too_large(what: impl Into<String>) -> LowerError {
    LowerError::TooLarge { what: what.into(), fits: None }
}

/// No routing of all tokens fits.
pub(super) fn no_room(error: FieldError) -> LowerError {
    match error {
        FieldError::Room { needed, most } => LowerError::OutOfRange {
            what: format!(
                "there is room for no routing: tokens go to their experts as {needed} rows, and blocks, each of one \
                 expert, hold {most} at most"
            ),
            help: "raise the capacity, or let `dispatch` drop rows (`drop`)".into(),
        },
        error => LowerError::Compute(error),
    }
}

fn way_out(fits: Option<&str>) -> String {
    let several = "several launches of less each";
    match fits {
        Some(fits) => format!("there is a plan with {fits}; use smaller sizes, or {several}"),
        None => format!("use smaller sizes, or {several}"),
    }
}

pub(super) fn internal(what: impl Into<String>) -> LowerError {
    LowerError::Internal { what: what.into() }
}
