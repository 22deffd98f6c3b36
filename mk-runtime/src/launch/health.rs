//! Whether an instance may still be launched: its fault records, its first failure, the processes of its world.
//!
//! Shared with the graphs that captured the instance, so that a replay is refused as a launch is.

use crate::driver::ledger;
use crate::error::{Error, Fault, FaultCause, Result};
use crate::gpu::Usable;
use crate::mem::FaultRecords;
use crate::proxy::{NetFault, Watch};
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
    /// A rank on whose behalf kernels were told to give up, and what happened to it.
    why: Option<(u32, String)>,
    /// Whether other hosts were told.
    spread: bool,
}

impl Health {
    pub(super) fn new(
        source: Arc<KernelSource>,
        group: Option<SharedGroup>,
        number: u32,
        faults: FaultRecords,
    ) -> Health {
        let state = State { faults, poisoned: None, why: None, spread: false };
        Health { source, group, number, state: Mutex::new(state) }
    }

    /// Remembers the first failure. Not in a fork, which shares pages with its parent and peers.
    pub(super) fn poison(&self, error: &Error) {
        if !ledger::forked() {
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
    pub(super) fn absorb(&self, finished: bool) -> Result<()> {
        let mut state = self.state();
        if !state.faults.any() {
            return Ok(());
        }
        let records = state.faults.read(finished);
        let why = state.why.clone();
        let known = |r| self.known(Fault::from_record(&self.source, r), why.as_ref());
        let faults = records.iter().map(known);
        match Fault::merge(faults.collect()) {
            None => Ok(()),
            Some(fault) => {
                let error = Error::Fault(Box::new(fault));
                self.fail(&mut state, &error);
                Err(error)
            }
        }
    }

    /// A rank whose process has died did not set the abort flag itself; one that launched something else had a reason
    /// to, and one of another host, or whose network has failed, has told what it was.
    fn known(&self, mut fault: Fault, why: Option<&(u32, String)>) -> Fault {
        if let (FaultCause::Known(FaultKind::EntryTimeout), Some(peer)) = (fault.cause, fault.peer)
            && self.group.as_ref().is_some_and(|g| g.launched(self.number, fault.rank, peer))
        {
            fault.cause = FaultCause::NotStarted;
        }
        let (FaultCause::Known(FaultKind::PeerAborted), Some(peer)) = (fault.cause, fault.peer)
        else {
            return fault;
        };
        let group = self.group.as_ref();
        if group.is_some_and(|group| group.is_dead(peer)) {
            fault.cause = FaultCause::PeerGone;
        } else if let Some(other) =
            group.and_then(|group| group.other_launch(self.number, fault.rank, peer))
        {
            (fault.cause, fault.instead) = (FaultCause::OtherLaunch, Some(other));
        } else {
            fault.there = why.filter(|(of, _)| *of == peer).map(|(_, what)| what.clone());
        }
        fault
    }

    /// Tells kernels of all ranks to give up, on behalf of `by`: those of this host by their records, others by their
    /// processes.
    pub(super) fn give_up(&self, by: u32, why: Option<String>) {
        // The pages of a fork are its parent's.
        if ledger::forked() {
            return;
        }
        let mut state = self.state();
        state.faults.abort(by);
        if let Some(why) = &why {
            state.why.get_or_insert_with(|| (by, why.clone()));
        }
        let Some(group) = self.group.as_ref().filter(|_| !state.spread) else { return };
        let record = state.faults.read(false).into_iter().find(|r| r.rank == by);
        let record = record.map(|r| Fault::from_record(&self.source, &r));
        let follows = FaultCause::Known(FaultKind::PeerAborted);
        // Who made that kernel give up has told everybody, too, or is missed by everybody.
        if why.is_none() && record.as_ref().is_some_and(|r| r.cause == follows) {
            return;
        }
        state.spread = true;
        drop(state);
        let why = why.or_else(|| record.map(|r| r.to_string()));
        group.give_up(self.number, by, &why.unwrap_or_default());
    }

    /// Frees the records. No kernel of this process may run any more.
    pub(super) fn release(&self) -> Result<()> {
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
        if !ledger::forked() {
            self.state().faults.abort(by);
        }
    }

    fn told(&self, by: u32, why: &str) {
        if !ledger::forked() {
            let mut state = self.state();
            if !why.is_empty() {
                state.why.get_or_insert_with(|| (by, why.into()));
            }
            state.faults.abort(by);
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

    fn give_up(&self, by: u32, why: Option<&NetFault>) {
        Health::give_up(self, by, why.map(NetFault::to_string));
    }
}

impl Usable for Health {
    fn usable(&self) -> Result<()> {
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
