//! Why a pipeline has no plan.

use crate::settings::Refusal;
use mk_plan::StructureError;
use mk_prove::{equivalence::FieldError, valid};

mk_abi::errors! {
    /// Why a checked pipeline has no plan.
    #[derive(Debug)]
    #[non_exhaustive]
    LowerError {
        /// The pipeline is sound, but no pass lowers it.
        Unsupported("`{op}` cannot be lowered here: {why}\n  help: {help}") {
            op: String = "The operation",
            why: String = "What stands in the way",
            help: String = "What works",
        },
        /// A setting that this pipeline, or its other settings, cannot have.
        Setting from Refusal,
        /// A world, a target or a tensor outside what one kernel can have.
        OutOfRange("{what}\n  help: {help}") {
            what: String = "The value",
            help: String = "What would be accepted",
        },
        /// More than a plan can have, or the verifier decides.
        TooLarge("the plan is too large: {what}\n  help: {}", way_out(fits.as_deref())) {
            what: String = "What there is too much of, and the limit",
            fits: Option<String> = "A smaller size with which there is a plan, where that is known",
        },
        /// A pass met something that the passes before it do not leave.
        Internal("internal error: {what}") {
            what: String = "The thing, and its place",
        },
        /// A pass produced a plan that is not well formed.
        Structure("internal error: the lowered plan is not well formed: {0}") = (StructureError),
        /// A pass produced a plan that does not verify.
        Verify("internal error: the lowered plan does not verify:\n{0}") = (valid::Failure),
        /// A pass produced a plan that computes something else than the pipeline.
        Compute("internal error: the lowered plan is not the pipeline's: {0}") = (FieldError),
    }
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
