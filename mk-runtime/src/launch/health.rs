//! Whether an instance may still be launched: its fault records, its first failure, the processes of its world.
//!
//! Shared with the graphs that captured the instance, so that a replay is refused as a launch is.

use crate::driver::order;
use crate::error::{Error, Fault, FaultCause};
use crate::gpu::Usable;
use crate::mem::FaultRecords;
use crate::proxy::Watch;
use crate::world::{Member, SharedGroup};
use mk_abi::device::FaultKind;
use mk_abi::{KernelSource, TensorDirection};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

pub(super) struct Health {
    source: Arc<KernelSource>,
    group: Option<SharedGroup>,
    /// The number that all ranks give the instance.
    number: u32,
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
        number: u32,
        faults: FaultRecords,
    ) -> Health {
        Health { source, group, number, state: Mutex::new(State { faults, poisoned: None }) }
    }

    /// Remembers the first failure. Not in a fork, which shares pages with its parent and peers.
    pub(super) fn poison(&self, error: &Error) {
        if !order::forked() {
            self.fail(&mut self.state(), error);
        }
    }

    /// Nothing is launched any more, and nothing has failed.
    pub(super) fn retire(&self) {
        self.state().poisoned.get_or_insert_with(|| Arc::new(Error::Aborted));
    }

    fn fail(&self, state: &mut State, error: &Error) {
        if let Some(group) = &self.group {
            group.lose_count();
        }
        state.poisoned.get_or_insert_with(|| Arc::new(error.clone()));
    }

    /// What kernels wrote; with `finished`, those of this process are done. Poisons.
    pub(super) fn absorb(&self, finished: bool) -> Result<(), Error> {
        let mut state = self.state();
        if !state.faults.any() {
            return Ok(());
        }
        let records = state.faults.read(finished);
        let faults = records.iter().map(|r| self.known(Fault::from_record(&self.source, r)));
        match Fault::merge(faults.collect()) {
            None => Ok(()),
            Some(fault) => {
                let error = Error::Fault(Box::new(fault));
                self.fail(&mut state, &error);
                Err(error)
            }
        }
    }

    /// A rank whose process has died did not raise the abort word itself; one that launched something else had a reason to.
    fn known(&self, mut fault: Fault) -> Fault {
        let Some(group) = &self.group else { return fault };
        let (FaultCause::Known(FaultKind::PeerAborted), Some(peer)) = (fault.cause, fault.peer)
        else {
            return fault;
        };
        if group.is_dead(peer) {
            fault.cause = FaultCause::PeerGone;
        } else if let Some(other) = group.other_launch(self.number, fault.rank, peer) {
            (fault.cause, fault.instead) = (FaultCause::OtherLaunch, Some(other));
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

impl Member for Health {
    fn raise(&self, by: u32) {
        // The pages of a fork are its parent's.
        if !order::forked() {
            self.state().faults.abort(by);
        }
    }

    fn text(&self, rank: u32) -> String {
        let shapes = self.source.ranks.get(rank as usize).map(|r| &r.tensor_shapes);
        let inputs = self.source.tensors.iter().zip(shapes.into_iter().flatten());
        let inputs: Vec<String> = inputs
            .filter(|(arg, _)| arg.direction == TensorDirection::In)
            .map(|(arg, shape)| format!("{} {shape:?}", arg.name))
            .collect();
        format!("{} of {}", self.source.name, inputs.join(", "))
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Watch for Health {
    fn gave_up(&self, rank: u32) -> bool {
        self.state().faults.begun(rank)
    }

    fn give_up(&self, by: u32) {
        self.raise(by);
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
