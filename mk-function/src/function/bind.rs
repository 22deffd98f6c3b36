//! What a function holds for a set of sizes: one kernel, or several.

use super::{kernel::Kernel, sequence::Sequence};
use crate::build::Composition;
use mk_abi::RuntimeDim;
use mk_runtime::{Error, Instance};
use mk_syntax::Bound;
use std::{slice, sync::Arc};

/// One set of sizes, compiled and bound.
pub(super) struct Bind {
    pub(super) sizes: Bound,
    pub(super) made: Arc<Composition>,
    pub(super) run: Run,
}

impl Bind {
    /// Run-time dimensions of its kernel; parts have none.
    pub(super) fn runtime_dims(&self) -> &[RuntimeDim] {
        match (&self.run, self.made.kernels.as_slice()) {
            (Run::One(_), [planned]) => &planned.source.runtime_dims,
            _ => &[],
        }
    }
}

/// What a call launches.
pub(super) enum Run {
    One(Kernel),
    Apart(Sequence),
}

impl Run {
    pub(super) fn kernels(&mut self) -> &mut [Kernel] {
        match self {
            Run::One(kernel) => slice::from_mut(kernel),
            Run::Apart(sequence) => &mut sequence.kernels,
        }
    }

    pub(super) fn instances(&self) -> impl Iterator<Item = &Instance> {
        let kernels = match self {
            Run::One(kernel) => slice::from_ref(kernel),
            Run::Apart(sequence) => &sequence.kernels,
        };
        kernels.iter().map(Kernel::bound)
    }

    /// Looks at every kernel, in order.
    pub(super) fn each(
        &mut self,
        look: impl Fn(&mut Instance) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self {
            Run::One(kernel) => look(kernel.instance()),
            Run::Apart(sequence) => sequence.each(look),
        }
    }
}
