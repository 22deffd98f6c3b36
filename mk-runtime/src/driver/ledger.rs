//! What this process has launched on its GPUs, and which instances may overlap.
//!
//! Two plans that together want more SMs than there are would deadlock if one rank started the first and another the
//! second. So launches are ordered by events on the device: each waits for what was launched on its GPU before it.
//! Instances that were bound to overlap hold a part of the SMs for as long as they live, and do not wait for each
//! other: their CTAs are resident together in whatever order the ranks start them.
//!
//! One ledger for the whole process, not one per world: its SMs are shared by all worlds.

use super::Event;
use crate::{Error, Result};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// Names an instance within this process.
pub(crate) type Launcher = u64;

static LEDGER: Mutex<Ledger> = Mutex::new(Ledger { gpus: BTreeMap::new() });

/// The launches and claims of every GPU, by ordinal. Holding it is what orders launches of several threads.
#[derive(Debug)]
pub(crate) struct Ledger {
    gpus: BTreeMap<i32, Gpu>,
}

#[derive(Debug, Default)]
struct Gpu {
    /// Completions of the last launch that runs alone, one per rank on this GPU.
    alone: Vec<Weak<Event>>,
    /// Completions of the last launch of each overlapping instance since then.
    beside: BTreeMap<Launcher, Vec<Weak<Event>>>,
    /// SMs that overlapping instances hold and want to stay free.
    claims: BTreeMap<Launcher, (u32, u32)>,
}

thread_local! {
    /// Whether this thread has locked the ledger.
    static LOCKED: Cell<bool> = const { Cell::new(false) };
}

/// The process whose ledger it is.
static HOME: OnceLock<u32> = OnceLock::new();

/// Whether this process is a fork of one that has a ledger. Its copy may stay locked for ever, because another thread
/// had locked it, and its GPU handles belong to the parent.
pub fn forked() -> bool {
    let here = std::process::id();
    *HOME.get_or_init(|| here) != here
}

/// The locked ledger, until it is dropped.
pub(crate) struct LockedLedger {
    ledger: MutexGuard<'static, Ledger>,
}

/// Locks the ledger. Once at a time in a thread, and not in a fork.
pub(crate) fn lock() -> LockedLedger {
    HOME.get_or_init(std::process::id);
    // A panic elsewhere leaves lists that are still true.
    let ledger = LEDGER.lock().unwrap_or_else(|e| e.into_inner());
    LOCKED.set(true);
    LockedLedger { ledger }
}

/// For a driver call that may wait for a GPU (an allocation, a module, a graph): while another thread has launched some
/// ranks and not others, such a call can keep the driver from launching the rest, for which that GPU waits. Nothing
/// where this thread has locked the ledger already, and in a fork.
pub(crate) fn between_launches() -> Option<LockedLedger> {
    (!LOCKED.get() && !forked()).then(lock)
}

impl Drop for LockedLedger {
    fn drop(&mut self) {
        LOCKED.set(false);
    }
}

impl Deref for LockedLedger {
    type Target = Ledger;
    fn deref(&self) -> &Ledger {
        &self.ledger
    }
}

impl DerefMut for LockedLedger {
    fn deref_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }
}

/// Waits for what was launched on a GPU, but for captured launches. Not with the ledger locked: another thread's launch
/// may be what is missing.
pub(crate) fn wait_for_launches(device: i32) -> Result<()> {
    let ledger = between_launches();
    let all = ledger.as_ref().map(|ledger| ledger.before(device, 0, false)).unwrap_or_default();
    drop(ledger);
    let mut waited = Ok(());
    for event in all {
        waited = waited.and(event.synchronize());
    }
    waited
}

/// A name that no other instance of this process has.
pub(crate) fn new_launcher() -> Launcher {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Ledger {
    /// The launches on a GPU that one of `launcher` must come after, those that are not forgotten yet.
    pub(crate) fn before(&self, device: i32, launcher: Launcher, overlap: bool) -> Vec<Arc<Event>> {
        let Some(gpu) = self.gpus.get(&device) else { return Vec::new() };
        let beside = gpu.beside.iter().filter(|(id, _)| !overlap || **id == launcher);
        let all = gpu.alone.iter().chain(beside.flat_map(|(_, events)| events));
        all.filter_map(Weak::upgrade).collect()
    }

    /// Notes a launch, with the completion of every rank on that GPU.
    pub(crate) fn launched(
        &mut self,
        device: i32,
        launcher: Launcher,
        overlap: bool,
        done: &[Arc<Event>],
    ) {
        let done = done.iter().map(Arc::downgrade).collect();
        let gpu = self.gpus.entry(device).or_default();
        if overlap {
            gpu.beside.insert(launcher, done);
        } else {
            gpu.alone = done;
            gpu.beside.clear();
        }
    }

    /// Holds `wants` of a GPU's SMs for an overlapping instance until [`Ledger::release`].
    ///
    /// # Errors
    /// [`Error::SmBudget`] when they do not fit beside those that are held and the largest `reserve` of all.
    pub(crate) fn claim(
        &mut self,
        device: i32,
        launcher: Launcher,
        kernel: &str,
        wants: u32,
        reserve: u32,
        sms: u32,
    ) -> Result<()> {
        let claims = &mut self.gpus.entry(device).or_default().claims;
        let held: u32 = claims.values().map(|(held, _)| held).sum();
        let reserved = claims.values().map(|(_, keep)| *keep).max().unwrap_or(0).max(reserve);
        if u64::from(held) + u64::from(wants) + u64::from(reserved) > u64::from(sms) {
            let kernel = kernel.to_string();
            return Err(Error::SmBudget { kernel, device, wants, held, reserved, sms });
        }
        let mine = claims.entry(launcher).or_default();
        *mine = (mine.0 + wants, reserve);
        Ok(())
    }

    /// Gives back what an instance holds, and forgets its launches.
    pub(crate) fn release(&mut self, launcher: Launcher) {
        for gpu in self.gpus.values_mut() {
            gpu.claims.remove(&launcher);
            gpu.beside.remove(&launcher);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(ledger: &mut Ledger, launcher: Launcher, wants: u32, reserve: u32) -> Result<()> {
        ledger.claim(0, launcher, "k", wants, reserve, 132)
    }

    #[test]
    fn claims_add_up_and_come_back() {
        let mut ledger = Ledger { gpus: BTreeMap::new() };
        claim(&mut ledger, 1, 60, 0).unwrap();
        claim(&mut ledger, 2, 60, 0).unwrap();
        let refused = claim(&mut ledger, 3, 13, 0).unwrap_err();
        assert!(
            matches!(refused, Error::SmBudget { wants: 13, held: 120, reserved: 0, sms: 132, .. }),
            "{refused}"
        );
        claim(&mut ledger, 3, 12, 0).unwrap();
        ledger.release(2);
        claim(&mut ledger, 4, 60, 0).unwrap();
        // Another GPU has SMs of its own.
        ledger.claim(1, 5, "k", 132, 0, 132).unwrap();
        assert!(claim(&mut ledger, 6, u32::MAX, u32::MAX).is_err());
    }

    #[test]
    fn what_one_keeps_free_nobody_takes() {
        let mut ledger = Ledger { gpus: BTreeMap::new() };
        claim(&mut ledger, 1, 60, 32).unwrap();
        assert!(claim(&mut ledger, 2, 41, 0).is_err());
        // The reserves are one reserve, not a sum.
        claim(&mut ledger, 2, 40, 32).unwrap();
        ledger.release(1);
        assert!(claim(&mut ledger, 3, 60, 33).is_err());
        claim(&mut ledger, 3, 60, 0).unwrap();
    }

    /// Its parent had locked the ledger when it was forked.
    #[test]
    fn a_fork_locks_no_ledger() {
        use nix::sys::wait::{WaitStatus, waitpid};
        use nix::unistd::{ForkResult, fork};
        let locked = super::lock();
        // SAFETY: the child takes no lock but the one that it is about, and ends.
        match unsafe { fork() }.expect("forks") {
            ForkResult::Child => {
                // SAFETY: a signal that ends the process, should it wait.
                unsafe { nix::libc::alarm(10) };
                LOCKED.set(false);
                let taken = between_launches().is_some();
                // SAFETY: ends the process.
                unsafe { nix::libc::_exit(if forked() && !taken { 7 } else { 1 }) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).expect("waits"), WaitStatus::Exited(child, 7));
            }
        }
        drop(locked);
        assert!(!forked() && between_launches().is_some());
    }

    #[test]
    fn two_ranks_on_a_gpu_claim_twice() {
        let mut ledger = Ledger { gpus: BTreeMap::new() };
        claim(&mut ledger, 1, 66, 0).unwrap();
        claim(&mut ledger, 1, 66, 0).unwrap();
        assert!(claim(&mut ledger, 2, 1, 0).is_err());
        ledger.release(1);
        claim(&mut ledger, 2, 132, 0).unwrap();
    }
}
