//! How long the tasks of a leaf take. A file for each leaf.

mod attend;
mod attend_grad;
mod copy;
mod host_copy;
pub(super) mod mma;
mod nic_send;
mod signal;
mod sums;

use super::{error::CostError, unroller::Unroller};
use mk_plan::{Leaf, Task, of_leaf};

/// Whether jobs were added.
type Done = Result<(), CostError>;

/// The cost of a leaf.
pub(super) trait Cost {
    /// Adds the jobs of a task. `missed` are bytes of its operands that are not in the cache.
    fn jobs(&self, u: &mut Unroller<'_>, task: &Task, missed: f64) -> Done;

    /// How long a task is, beside others of its family; `None` where they are as long as each other.
    fn length(&self, _: &Unroller<'_>, _: &Task) -> Result<Option<i64>, CostError> {
        Ok(None)
    }

    /// Whether two lanes of a warpgroup make it that does nothing else, beside what the other warps of the CTA do.
    fn is_bulk(&self) -> bool {
        false
    }
}

/// The cost of a leaf.
pub(super) fn of(leaf: &Leaf) -> &dyn Cost {
    of_leaf!(leaf, x => x)
}
