//! Time of a leaf's tasks, one file per leaf.

mod attend;
mod attend_grad;
mod copy;
mod host_copy;
pub(super) mod mma;
mod nic_send;
mod signal;
mod sums;

use super::{error::Result, unroller::Unroller};
use mk_plan::{Leaf, Task, of_leaf};

/// Result of adding jobs.
type Done = Result<()>;

/// The cost of a leaf.
pub(super) trait Cost {
    /// Adds the jobs of a task. `missed` are bytes of its operands that are not in the cache.
    fn jobs(&self, u: &mut Unroller<'_>, task: &Task, missed: f64) -> Done;

    /// Relative length of a task within its family; `None` if all tasks are equally long.
    fn length(&self, _: &Unroller<'_>, _: &Task) -> Result<Option<i64>> {
        Ok(None)
    }

    /// Whether two lanes of an otherwise idle warpgroup issue it, concurrently with the other warps of the CTA.
    fn is_bulk(&self) -> bool {
        false
    }
}

/// The cost of a leaf.
pub(super) fn of(leaf: &Leaf) -> &dyn Cost {
    of_leaf!(leaf, x => x)
}
