//! Why there is no prediction, or no model.

use mk_plan::PointError;
use thiserror::Error;

/// Why a plan has no prediction.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CostError {
    /// An expression of the plan has no value.
    #[error(transparent)]
    Point(#[from] PointError),
    /// A leaf that the model has no figures for.
    #[error("the cost model has no figures for `{leaf}` ({family})")]
    Unsupported {
        /// The leaf.
        leaf: &'static str,
        /// The family.
        family: String,
    },
    /// More tasks than a prediction takes on.
    #[error("the plan has more than {limit} tasks: use smaller sizes")]
    TooLarge {
        /// The most.
        limit: usize,
    },
    /// Lanes that wait for posts which never come: the plan does not end.
    #[error("the plan does not end: {waiting} tasks wait for posts that never come")]
    Stuck {
        /// Tasks at the head of their lanes.
        waiting: usize,
    },
}

/// Why a file is no model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// It does not read.
    #[error("not a device model: {0}")]
    Syntax(#[from] serde_json::Error),
    /// A figure that cannot be.
    #[error("not a device model: {what}")]
    Value {
        /// Which.
        what: String,
    },
}

/// A result of this crate.
pub(crate) type Result<T, E = CostError> = std::result::Result<T, E>;
