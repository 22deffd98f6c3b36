//! What ranks hold of a tensor.

use super::HarnessError;
use mk_syntax::Placement;

/// The placement on the one axis.
pub(crate) fn placement(placements: &[Placement]) -> Result<Placement, HarnessError> {
    match placements {
        [one] => Ok(*one),
        _ => Err(HarnessError::unsupported("a mesh of several axes")),
    }
}
