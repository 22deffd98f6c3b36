//! What is known of the other processes: deaths, farewells, launches, and the instances that are told.

use super::super::page::Page;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// Between a death and the abort of what is running. A process that ends without a farewell may have done its part of
/// the launches that are in flight, and those end by themselves.
pub(in super::super) const GRACE: Duration = Duration::from_secs(1);

/// An instance, as the other processes are concerned with it.
pub(crate) trait Member: Send + Sync {
    /// Tells its kernels to give up, on behalf of rank `by`: those of this host.
    fn raise(&self, by: u32);
    /// The same, with what a process of another host says of it.
    fn told(&self, by: u32, _why: &str) {
        self.raise(by);
    }
    /// What a rank launches with it, in words.
    fn text(&self, rank: u32) -> String;
}

/// What the thread and the callers share.
#[derive(Default)]
pub(super) struct Shared {
    /// Bit r: the process of rank r has died, or has left and is missed.
    pub(super) dead: AtomicU64,
    count: Mutex<Count>,
    members: Mutex<Members>,
}

/// Instances, and what has been told of some that are not here yet.
#[derive(Default)]
pub(super) struct Members {
    /// By the number that all ranks give them.
    pub(super) here: Vec<(u32, Weak<dyn Member>)>,
    /// Instance, rank, and why: the last ones.
    pub(super) told: VecDeque<(u32, u32, String)>,
}

/// What is told of instances that are not here, at most: ranks bind the same ones, some a little later than others.
const MOST_TOLD: usize = 64;

/// Launches in which ranks meet, of all kernels. Captured ones do not count: nobody knows of their replays.
#[derive(Default)]
pub(super) struct Count {
    /// Of this process.
    pub(super) made: u64,
    /// Those of them that all ranks make in the same order.
    pub(super) ordered: u64,
    /// The last one of those that was not made, because another rank has launched something else.
    pub(super) refused: Option<u64>,
    /// Of the process that made the fewest of those that have left, and its rank.
    pub(super) last: Option<(u64, u32)>,
}

impl Count {
    /// A launch is not made after all.
    pub(super) fn refuse(&mut self, launch: u64) {
        self.made -= 1;
        self.refused = Some(launch);
    }
}

impl Shared {
    pub(super) fn count(&self) -> MutexGuard<'_, Count> {
        // Two numbers, each true after any panic.
        self.count.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes that a rank has left after so many launches. Whether this process has made more.
    pub(super) fn left(&self, rank: u32, made: u64) -> bool {
        let mut count = self.count();
        if count.last.is_none_or(|(fewest, _)| made < fewest) {
            count.last = Some((made, rank));
        }
        count.made > made
    }

    pub(super) fn members(&self) -> MutexGuard<'_, Members> {
        // A list of weak pointers is true after any panic.
        self.members.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn member(&self, instance: u32) -> Option<Arc<dyn Member>> {
        let members = self.members();
        members.here.iter().find(|(i, _)| *i == instance).and_then(|(_, m)| m.upgrade())
    }

    /// Kernels of an instance are to give up, says a process of another host.
    pub(super) fn give_up(&self, instance: u32, by: u32, why: String) {
        if let Some(member) = self.member(instance) {
            return member.told(by, &why);
        }
        let mut members = self.members();
        if members.told.len() == MOST_TOLD {
            members.told.pop_front();
        }
        members.told.push_back((instance, by, why));
    }
}

/// What another process launched in the place of launch `n`, of `instance`, if it has.
pub(super) fn differing(n: u64, instance: u32, page: &Page, other: &Page) -> Option<u32> {
    let counted = page.counts(n) && other.counts(n);
    other.noted(n).filter(|theirs| counted && *theirs != instance)
}
