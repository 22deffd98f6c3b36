//! Tables in memory: where a kernel has them, and how agents come to look up what is there.
//!
//! The loader of a GEMM waits once, before its first task, for the words that say that tables are filled; then it
//! looks up what a task needs, and tells the others which task it is at (a dynamic schedule), who look up the same
//! entries behind that. Where the wait is given up, it tells them that there is no task: what agents of a CTA look up
//! cannot differ.

use super::{EmitError, Result, context::Emitter};
use mk_plan::{Expr, FamId, Family, Operand, Point, Schedule, Space, Var, Wait};

impl Emitter<'_> {
    /// Declarations of the tables in memory, as C.
    pub(super) fn tables(&self) -> impl Iterator<Item = String> + '_ {
        let stored = self.plan.tables.iter().filter_map(|(id, t)| Some((id, t.stored?)));
        stored.map(|(id, buffer)| {
            let base = self.base(buffer, "params.header.rank");
            format!(
                "[[maybe_unused]] const int* const {id} = reinterpret_cast<const int*>({base});"
            )
        })
    }

    /// The waits behind which a GEMM may look up what it does: the same for every task.
    ///
    /// # Errors
    /// [`EmitError::Refused`] for a table that no such wait stands for, and for a product of which every agent counts
    /// its tasks by itself.
    pub(super) fn table_waits(&self, id: FamId) -> Result<Vec<usize>> {
        let f = &self.plan.families[id];
        if !self.plan.looks_up(f) {
            return Ok(Vec::new());
        }
        if f.schedule != Schedule::Dynamic {
            let what = "who looks tiles up takes them by a dynamic schedule";
            return EmitError::refuse(&f.name, what);
        }
        let moves = |e: &Expr| matches!(e, Expr::Var(v) if *v != Var::RANK && *v != Var::EPOCH);
        let first = f.leaf.contract().agents[0];
        let same = |w: &Wait| {
            let all = w.index.iter().chain([&w.count]);
            (w.by, w.at, w.lag) == (first, Point::Start, 0)
                && w.each.is_none()
                && w.when.is_none()
                && !self.plan.wait_names_stored(w)
                && !all.into_iter().any(|e| e.any(moves))
        };
        let mut waits = Vec::new();
        for tab in f.accesses.iter().filter(|a| a.operand == Operand::Tab) {
            if self.plan.buffers[tab.buffer].space == Space::In {
                continue;
            }
            let fills = |x: &&Family| {
                let mut writes = x.accesses.iter().filter(|a| a.mode != mk_plan::Mode::Read);
                writes.any(|a| a.buffer == tab.buffer)
            };
            for writer in self.plan.families.values().filter(fills) {
                let told = |w: &Wait| writer.posts.iter().any(|p| p.signal == w.signal);
                let Some(at) = f.waits.iter().position(|w| same(w) && told(w)) else {
                    let what = format!(
                        "it looks up what {:?} fills, and no wait that is the same for every task stands for that",
                        writer.name
                    );
                    return EmitError::refuse(&f.name, what);
                };
                if !waits.contains(&at) {
                    waits.push(at);
                }
            }
        }
        Ok(waits)
    }
}
