//! What a reference on a GPU is computed from.

use crate::{Case, grid::Grid};
use mk_runtime::{DeviceTensor, Reference, World};
use mk_syntax::Tensor;

/// What the reference is computed from.
pub(super) struct Setting<'s> {
    pub world: &'s World,
    pub case: Case<'s>,
    pub grid: &'s Grid,
    pub reference: &'s Reference,
    /// The caller's tensors by rank, in the order of the pipeline's parameters.
    pub inputs: Vec<Vec<&'s DeviceTensor>>,
}

impl<'s> Setting<'s> {
    /// What a rank was given of a parameter.
    pub fn held(&self, rank: usize, param: &Tensor) -> Option<&'s DeviceTensor> {
        self.inputs.get(rank)?.get(param.id.index()).copied()
    }
}
