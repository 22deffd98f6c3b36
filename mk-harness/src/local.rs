//! What ranks hold of a tensor.

use super::{HarnessError, Result};
use mk_function::Layout;
use mk_syntax::Placement;

/// Most axes of a pipeline.
const MAX_AXES: usize = 4;

/// The placement on the one axis.
pub(crate) fn placement(placements: &[Placement]) -> Result<Placement> {
    match placements {
        [one] => Ok(*one),
        _ => Err(HarnessError::unsupported("a mesh of several axes")),
    }
}

/// Ranks along each axis of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    sizes: [usize; MAX_AXES],
    axes: usize,
}

impl Sizes {
    /// So many along each. `None` of more axes than pipelines have.
    pub fn new(of: &[usize]) -> Option<Sizes> {
        let mut sizes = [1; MAX_AXES];
        sizes.get_mut(..of.len())?.copy_from_slice(of);
        Some(Sizes { sizes, axes: of.len() })
    }

    /// All along one axis.
    pub fn along_one(ranks: usize) -> Sizes {
        Sizes { sizes: [ranks, 1, 1, 1], axes: 1 }
    }

    fn along(&self) -> &[usize] {
        &self.sizes[..self.axes]
    }

    /// How far apart neighbours along an axis are, and how many there are.
    pub fn axis(&self, axis: usize) -> (usize, usize) {
        let behind = self.along().iter().skip(axis + 1);
        (behind.product(), self.along().get(axis).copied().unwrap_or(1))
    }

    /// What a place along the axes holds of a tensor.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`] for a placement over other axes.
    pub fn layout(&self, shape: &[u64], placement: &[Placement], place: usize) -> Result<Layout> {
        if placement.len() != self.axes {
            return Err(HarnessError::unsupported("a mesh of several axes"));
        }
        Ok(Layout::over(shape, placement, self.along(), place))
    }

    /// The first place that is given the same of a tensor: along axes that it is replicated on, the first one's.
    pub fn giver(&self, placement: &[Placement], place: usize) -> usize {
        let axes = placement.iter().enumerate().filter(|(_, p)| **p != Placement::Replicate);
        axes.map(|(axis, _)| self.axis(axis)).map(|(stride, n)| place / stride % n * stride).sum()
    }
}
