//! Which workspace may be memory of other kernels between launches.
//!
//! Kernels of one stream can have their workspace in the same memory if each reaches that of a rank, from whichever
//! rank, only between the begin and the end of its own kernel there: what another kernel does to it is then before or
//! after, by the boundaries of that rank's kernels. What a plan reads it has written in the same epoch (rule 5), so
//! that nothing of it is missed. A buffer of which that is not shown is exclusive; that is no violation.

use super::Races;
use mk_plan::Space;

impl Races<'_, '_, '_> {
    /// Looks at the accesses to workspace in an epoch.
    pub(super) fn strangers(&mut self, e: u32) {
        let world = self.paths.world;
        let (searched, used) = (self.searched, self.paths.used.clone());
        for (id, a) in world.class(e).accs.iter().enumerate() {
            let boxed = &world.boxes.all[a.boxed as usize];
            let shared =
                matches!(world.plan.buffers[boxed.buffer].space, Space::Workspace | Space::Scratch);
            if !shared || self.exclusive.contains(&boxed.buffer) {
                continue;
            }
            let home = boxed.rank as u32;
            if self.rank(e, a) == home && !self.host(e, a) {
                continue;
            }
            let key = self.paths.key(e, id as u32);
            let seen = self.seen_from(home, a.turn);
            if self.paths.started(e, key, seen) < e || !self.ends_after(id as u32, e, seen) {
                self.exclusive.insert(boxed.buffer);
            }
        }
        // The figures of a proof are of its rules.
        self.searched = searched;
        self.paths.use_only(used);
    }
}
