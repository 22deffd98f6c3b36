//! How much an evaluation may take.
//!
//! In a right plan the parts that regions cut a dimension into meet those of what they are made of, and a task has few
//! of them: work is in proportion to what tasks touch. A wrong plan may cut a dimension at every element. Nothing is
//! found out by evaluating that in full: it is refused for what it would take.

use super::unroll::Unrolled;

/// Multiplications that an exponential takes, about.
pub(super) const EXPONENTIAL: u64 = 8;

/// Bounds, by what a launch touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Looks at links, and at cuts in them, until links join cells to cells.
    pub cuts: u64,
    /// Multiplications, scaled: of the plan, and of the pipeline.
    pub work: u64,
}

impl Budget {
    /// For a launch of a plan.
    pub fn of(unrolled: &Unrolled<'_>) -> Budget {
        let (mut cuts, mut work) = (1 << 25, 1 << 28);
        for task in &unrolled.tasks {
            let touches = u64::from(task.touches.end - task.touches.start);
            // In the pipeline each query meets each key, in a ring a block of them at each step.
            let attends = unrolled.plan.families[task.family].leaf.mask().is_some();
            cuts += touches << 6;
            work += touches << if attends { 12 } else { 9 };
        }
        Budget { cuts, work }
    }
}
