//! Whether an instance may still be launched: its fault records, its first failure, the processes of its world.
//!
//! Shared with the graphs that captured the instance, so that a replay is refused as a launch is.

use crate::error::{Error, Fault, FaultCause};
use crate::gpu::Usable;
use crate::mem::FaultRecords;
use crate::world::{Abort, SharedGroup};
use mk_abi::KernelSource;
use mk_abi::device::FaultKind;
use std::sync::{Arc, Mutex, MutexGuard};

pub(super) struct Health {
    source: Arc<KernelSource>,
    group: Option<SharedGroup>,
    state: Mutex<State>,
}

struct State {
    faults: FaultRecords,
    poisoned: Option<Arc<Error>>,
}

impl Health {
    pub(super) fn new(
        source: Arc<KernelSource>,
        group: Option<SharedGroup>,
        faults: FaultRecords,
    ) -> Health {
        Health { source, group, state: Mutex::new(State { faults, poisoned: None }) }
    }

    /// Remembers the first failure.
    pub(super) fn poison(&self, error: &Error) {
        self.state().poisoned.get_or_insert_with(|| Arc::new(error.clone()));
    }

    /// What kernels wrote; with `finished`, those of this process are done. Poisons.
    pub(super) fn absorb(&self, finished: bool) -> Result<(), Error> {
        let mut state = self.state();
        if !state.faults.any() {
            return Ok(());
        }
        let records = state.faults.read(finished);
        let faults = records.iter().map(|r| self.gone(Fault::from_record(&self.source, r)));
        match Fault::merge(faults.collect()) {
            None => Ok(()),
            Some(fault) => {
                let error = Error::Fault(Box::new(fault));
                state.poisoned.get_or_insert_with(|| Arc::new(error.clone()));
                Err(error)
            }
        }
    }

    /// A rank whose process has died did not raise the abort word itself.
    fn gone(&self, mut fault: Fault) -> Fault {
        let dead = self.group.as_ref().and_then(|g| g.dead());
        if fault.cause == FaultCause::Known(FaultKind::PeerAborted)
            && dead.is_some()
            && fault.peer == dead
        {
            fault.cause = FaultCause::PeerGone;
        }
        fault
    }

    /// Frees the records. No kernel of this process may run any more.
    pub(super) fn release(&self) -> Result<(), Error> {
        self.state().faults.release()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing here is ever half done when it panics.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Abort for Health {
    fn raise(&self, by: u32) {
        self.state().faults.abort(by);
    }
}

impl Usable for Health {
    fn usable(&self) -> Result<(), Error> {
        if self.state().poisoned.is_none() {
            // The fault itself is what this call finds; `Poisoned` carries it.
            let _ = self.absorb(false);
        }
        if let Some(cause) = &self.state().poisoned {
            return Err(Error::Poisoned { cause: cause.clone() });
        }
        match self.group.as_ref().and_then(|g| g.dead()) {
            Some(rank) => Err(Error::PeerGone { rank, during: "launching".into() }),
            None => Ok(()),
        }
    }
}
