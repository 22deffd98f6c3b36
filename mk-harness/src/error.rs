//! Why a run could not be made or judged.

use mk_codegen::sim::SimError;
use mk_function::FunctionError;
use thiserror::Error;

/// A failure of the harness; a wrong result is not one, but a [`Norms`](super::Norms) that no tolerance accepts.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HarnessError {
    /// More than a run on the CPU should take on.
    #[error("the run needs {wanted} {what}, and on the CPU {limit} are the limit")]
    TooLarge {
        /// Of what there is too much.
        what: &'static str,
        /// How much.
        wanted: u64,
        /// The limit.
        limit: u64,
    },
    /// Something that the reference does not compute.
    #[error("the harness has no way to run {what}")]
    Unsupported {
        /// What.
        what: String,
    },
    /// Plan or kernel and program are not of the same pipeline.
    #[error("{what}")]
    Mismatch {
        /// What does not fit.
        what: String,
    },
    /// The CPU executor stopped.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// The kernel could not be bound or launched.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// A transport could not be opened, or has failed.
    #[error(transparent)]
    Transport(#[from] mk_runtime::TransportError),
    /// The runtime stopped.
    #[error(transparent)]
    Runtime(#[from] mk_runtime::Error),
}

/// What may fail in the harness.
pub(crate) type Result<T, E = HarnessError> = std::result::Result<T, E>;

impl HarnessError {
    pub(super) fn mismatch(what: impl Into<String>) -> HarnessError {
        HarnessError::Mismatch { what: what.into() }
    }

    pub(super) fn unsupported(what: impl Into<String>) -> HarnessError {
        HarnessError::Unsupported { what: what.into() }
    }
}
