//! Launches of one world run in one order on every rank.
//!
//! Two plans that together want more SMs than there are would deadlock if one rank started the first and another the
//! second. Each launch therefore waits, on the device, for the launch before it.

use crate::gpu::Event;
use std::sync::{Arc, Mutex, MutexGuard};

/// The completion of the last launch of every rank. Holding the lock is what orders launches of several threads.
#[derive(Debug)]
pub(crate) struct LaunchOrder {
    last: Mutex<Vec<Option<Arc<Event>>>>,
}

impl LaunchOrder {
    pub(crate) fn new(ranks: usize) -> LaunchOrder {
        LaunchOrder { last: Mutex::new(vec![None; ranks]) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Option<Arc<Event>>>> {
        // A panic elsewhere leaves a list that is still true.
        self.last.lock().unwrap_or_else(|e| e.into_inner())
    }
}
