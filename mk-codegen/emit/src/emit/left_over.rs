//! Tasks without rows. A plan has a task for every block that some routing fills; a launch fills fewer, the first ones.
//!
//! On N ranks there are N times as many blocks as a launch fills in the mean. If tasks come in the order of their
//! blocks, or of groups of blocks, the last tasks have no rows. No CTA takes these: they move nothing. Lanes of an
//! idle warp make their waits and posts, 32 tasks side by side. A lane then posts after its neighbours' waits. So a
//! family that waits for its own posts, by way of others, could wait for ever: its tasks are taken one by one.

use super::{Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Expr, FamId, Leaf, Operand, Schedule, SigId, TabId, TableSource, Var};
use std::collections::BTreeSet;

/// How a family's tasks lie over the blocks of a table: so many tasks of so many blocks behind those of as many before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Groups {
    tasks: usize,
    blocks: i64,
    groups: usize,
}

impl Emitter<'_> {
    /// The values of the templates for a loop of one family with such tasks.
    ///
    /// # Errors
    /// Where a task's coordinates have no value.
    pub(super) fn left_over(&self, slices: &[Slice]) -> Result<Option<Value>> {
        let [s] = slices else { return Ok(None) };
        let f = &self.plan.families[s.id];
        if f.schedule != Schedule::Dynamic || !matches!(f.leaf, Leaf::MmaTile(_)) {
            return Ok(None);
        }
        let Some((table, block)) = self.blocks_of(s.id) else { return Ok(None) };
        // Nobody looks before the table is there.
        if self.waits_for_itself(s.id) || self.table_waits(s.id)?.is_empty() {
            return Ok(None);
        }
        let mut found = None;
        let rotated = f.order.iter().any(|e| e.mentions(Var::RANK));
        for rank in 0..if rotated { self.plan.mesh.size() as usize } else { 1 } {
            let tasks = self.points.tasks(s.id, rank, 1)?;
            let blocks: Vec<i64> = tasks.iter().map(|t| t.domain()[block]).collect();
            let groups = groups(&blocks);
            if groups.is_none() || *found.get_or_insert(groups) != groups {
                return Ok(None);
            }
        }
        let table = table.to_string();
        Ok(found
            .flatten()
            .map(|Groups { tasks, blocks, groups }| context! { table, tasks, blocks, groups }))
    }

    /// The table that says how many rows a tile of a family has, and which of the family's loops goes over its blocks.
    fn blocks_of(&self, id: FamId) -> Option<(TabId, usize)> {
        let f = &self.plan.families[id];
        let mut found = None;
        for c in f.accesses.iter().filter(|a| a.operand == Operand::C) {
            let rows = c.region.len().checked_sub(2).map(|d| &c.region[d].1);
            let Some(Expr::Table(table, index)) = rows else { return None };
            let [Expr::Var(block), Expr::Const(1)] = index[..] else { return None };
            let block = (0..f.domain.len()).find(|d| Var::domain(*d) == block)?;
            let of_blocks = matches!(self.plan.tables[*table].source, TableSource::Blocks { .. });
            if !of_blocks
                || !self.plan.is_stored(*table)
                || *found.get_or_insert((*table, block)) != (*table, block)
            {
                return None;
            }
        }
        found
    }

    /// Whether a family waits, in the same launch, for its own posts, by way of other families.
    fn waits_for_itself(&self, id: FamId) -> bool {
        let families = &self.plan.families;
        let posts = |id: FamId| families[id].posts.iter().map(|p| p.signal);
        let mut open: Vec<SigId> = posts(id).collect();
        let mut seen: BTreeSet<SigId> = open.iter().copied().collect();
        while let Some(signal) = open.pop() {
            for (waiting, f) in families.iter() {
                if !f.waits.iter().any(|w| w.signal == signal && w.lag == 0) {
                    continue;
                }
                if waiting == id {
                    return true;
                }
                open.extend(posts(waiting).filter(|s| seen.insert(*s)));
            }
        }
        false
    }
}

/// The groups of tasks that have the blocks of `blocks`, task by task; none if all are one group, or differ.
fn groups(blocks: &[i64]) -> Option<Groups> {
    // The least of the blocks from a task on.
    let mut least = blocks.to_vec();
    for t in (1..least.len()).rev() {
        least[t - 1] = least[t - 1].min(least[t]);
    }
    let mut most = -1;
    let mut begins = Vec::new();
    for (t, block) in blocks.iter().enumerate() {
        if least[t] > most {
            begins.push(t);
        }
        most = most.max(*block);
    }
    let (tasks, step) = (*begins.get(1)?, least[begins[1]]);
    let even = |(g, t): (usize, &usize)| *t == g * tasks && least[*t] == g as i64 * step;
    let all = begins.iter().enumerate().all(even);
    all.then_some(Groups { tasks, blocks: step, groups: begins.len() })
}

#[cfg(test)]
mod tests {
    use super::{Groups, groups};

    #[test]
    fn tasks_lie_over_blocks_in_groups() {
        // Three columns of eight blocks, the last group of five.
        let rastered: Vec<i64> = (0..63)
            .map(|t| {
                let first = t / 24 * 8;
                first + t % 24 % (21 - first).min(8)
            })
            .collect();
        assert_eq!(groups(&rastered), Some(Groups { tasks: 24, blocks: 8, groups: 3 }));
        let nested: Vec<i64> = (0..12).map(|t| t / 4).collect();
        assert_eq!(groups(&nested), Some(Groups { tasks: 4, blocks: 1, groups: 3 }));
        // Columns before blocks: the last block's tasks are everywhere.
        let columns: Vec<i64> = (0..12).map(|t| t % 4).collect();
        assert_eq!(groups(&columns), None);
        assert_eq!(groups(&[0, 0, 1, 2, 2]), None, "a block of one task");
        assert_eq!(groups(&[1, 1, 2, 2]), None, "block 0 has no task");
        assert_eq!(groups(&[0, 0]), None);
        assert_eq!(groups(&[]), None);
    }
}
