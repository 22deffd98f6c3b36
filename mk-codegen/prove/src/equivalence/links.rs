//! Which dimensions of a task's operands are the same index.

use super::{
    FieldError, Result,
    cells::Lines,
    leaf::{self, Task},
    linker::Linker,
    unroll::Unrolled,
};

/// Adds the links of all tasks. `line_of` gives the first line of a slab, `sequence` is the line of places in a
/// sequence.
pub(super) fn tasks(
    lines: &mut Lines,
    unrolled: &Unrolled<'_>,
    line_of: impl Fn(u32) -> u32,
    sequence: u32,
) -> Result<()> {
    for (i, task) in unrolled.tasks.iter().enumerate() {
        let touches = &unrolled.touches[task.touches.start as usize..task.touches.end as usize];
        let mut linker = Linker { lines, unrolled, line_of: &line_of, sequence };
        for t in touches {
            for d in 0..unrolled.region(t).len() {
                let stretch = linker.stretch(t, d);
                linker.lines.stretch(stretch);
            }
        }
        let leaf = &unrolled.plan.families[task.family].leaf;
        leaf::link(leaf, &mut linker, &Task { number: i as u32, run: task, touches })
            .map_err(|message| FieldError::misfit(unrolled.place(i), message))?;
    }
    Ok(())
}
