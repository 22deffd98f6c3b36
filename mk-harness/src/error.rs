//! Why a run could not be made or judged.

use mk_codegen::sim::SimError;
use mk_function::FunctionError;

mk_abi::errors! {
    /// A failure of the harness; a wrong result is not one, but a [`Norms`](super::Norms) that no tolerance accepts.
    #[derive(Debug)]
    #[non_exhaustive]
    HarnessError {
        /// More than a run on the CPU should take on.
        TooLarge("the run needs {wanted} {what}, and on the CPU {limit} are the limit") {
            what: &'static str = "Of what there is too much",
            wanted: u64 = "How much",
            limit: u64 = "The limit",
        },
        /// Something that the reference does not compute.
        Unsupported("the harness has no way to run {what}") {
            what: String = "What",
        },
        /// Plan or kernel and program are not of the same pipeline.
        Mismatch("{what}") {
            what: String = "What does not fit",
        },
        /// The CPU executor stopped.
        Sim from SimError,
        /// The kernel could not be bound or launched.
        Function from FunctionError,
        /// A transport could not be opened, or has failed.
        Transport from mk_runtime::TransportError,
        /// The runtime stopped.
        Runtime from mk_runtime::Error,
    }
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
