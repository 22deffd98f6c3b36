//! The ranks of a mesh, in groups along a pipeline's axes.

use super::{Case, HarnessError, Inputs, Result, local::Sizes};
use mk_codegen::plan::{Mesh, Places};

/// By what the seeds of two groups along the pipeline's axes differ.
const GROUP_SEED: u64 = 0x8CB9_2BA7_2F3D_8DD7;

/// The ranks of a world: groups of them run a pipeline, each on tensors of its own.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    /// All ranks.
    pub world: usize,
    /// Ranks along each of the pipeline's axes.
    pub sizes: Sizes,
    places: Places,
    groups: Places,
}

impl Grid {
    /// All along one axis.
    pub fn along_one(ranks: usize) -> Grid {
        let name = ["world".to_string()];
        let [places, groups] = Mesh::world(ranks as u32).places(&name).unwrap_or_default();
        Grid { world: ranks, sizes: Sizes::along_one(ranks), places, groups }
    }

    /// The ranks of a mesh.
    ///
    /// # Errors
    /// [`HarnessError::Mismatch`] if it lacks an axis of the pipeline, or has other ranks along them than the case.
    pub fn new(case: Case<'_>, mesh: &Mesh) -> Result<Grid> {
        let [places, groups] = mesh.places(case.program.mesh_axes()).map_err(|name| {
            HarnessError::mismatch(format!("the plan's mesh has no axis `{name}`"))
        })?;
        let sizes = Sizes::new(&places.sizes()).filter(|_| places.count() == case.ranks);
        let Some(sizes) = sizes else {
            let what = format!(
                "the plan is for {}, not {} along the pipeline's axes",
                mk_abi::count(mesh.size(), "rank"),
                case.ranks
            );
            return Err(HarnessError::mismatch(what));
        };
        Ok(Grid { world: mesh.size() as usize, sizes, places, groups })
    }

    /// How many groups there are.
    pub fn groups(&self) -> usize {
        self.groups.count()
    }

    /// The group of a rank, and its place there.
    pub fn of(&self, rank: usize) -> (usize, usize) {
        (self.groups.of(rank), self.places.of(rank))
    }

    /// The rank at a place of a group.
    pub fn rank(&self, group: usize, place: usize) -> Option<usize> {
        (0..self.world).find(|rank| self.of(*rank) == (group, place))
    }

    /// The ranks along an axis from a rank's first neighbour, in order.
    pub fn along(&self, axis: usize, rank: usize) -> Vec<usize> {
        let (group, place) = self.of(rank);
        let (stride, n) = self.sizes.axis(axis);
        let first = place - place / stride % n * stride;
        (0..n).filter_map(|i| self.rank(group, first + i * stride)).collect()
    }

    /// The inputs of a group.
    pub fn inputs<'a>(&self, case: Case<'a>, seed: u64, group: usize) -> Inputs<'a> {
        let seed = seed.wrapping_add((group as u64).wrapping_mul(GROUP_SEED));
        Inputs::new(case, seed).over(self.sizes)
    }
}
