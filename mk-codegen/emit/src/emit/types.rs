//! Words that several files of the emitter share.

use super::error::{EmitError, Result};
use mk_abi::DType;
use mk_plan::{FamId, Plan};

/// What decides a kernel beside its plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether the kernel records what its agents do, for [`crate::trace`]. Without it the text has no trace of it.
    /// Ranks with and without are different kernels, and do not run together. Default: false.
    pub trace: bool,
}

impl Options {
    /// Whether launches are counted: not where nothing stays of one. A trace says which launch it is of.
    pub(super) fn counts(self, plan: &Plan) -> bool {
        self.trace || !plan.keeps_nothing()
    }
}

/// A family with its tasks' numbers in the role.
#[derive(Clone, Copy)]
pub(super) struct Slice {
    pub id: FamId,
    pub first: u32,
    pub tasks: u32,
}

/// An element type as the library names it.
///
/// # Errors
/// [`EmitError::Refused`] for types that no tile computes with.
pub(super) fn dtype_name(place: &str, dtype: DType) -> Result<&'static str> {
    let unknown = || EmitError::unsupported(place, format!("no tile computes {dtype}"));
    dtype.format().cuda.ok_or_else(unknown)
}
