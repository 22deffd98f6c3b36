//! Random inputs.

use super::{
    Case, Layout, Result, documents,
    local::Sizes,
    math::round,
    routing::{self, Routing},
};
use mk_runtime::reference::random_value;
use mk_syntax::{Tensor, ValueId};

/// The inputs of every launch: uniform in [-1, 1), rounded to the tensor's type. Shards and contributions differ from
/// rank to rank, replicas do not.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    case: Case<'a>,
    sizes: Sizes,
    seed: u64,
    routing: Routing,
}

impl<'a> Inputs<'a> {
    /// Inputs that follow from a seed.
    pub fn new(case: Case<'a>, seed: u64) -> Inputs<'a> {
        let sizes = Sizes::along_one(case.ranks);
        Inputs { case, sizes, seed, routing: Routing::default() }
    }

    /// The same, of a pipeline over axes of so many ranks each, all of the case's.
    pub(crate) fn over(self, sizes: Sizes) -> Inputs<'a> {
        Inputs { sizes, ..self }
    }

    /// Ranks along each axis.
    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The same, with rows of experts of this form.
    pub fn routed(self, routing: Routing) -> Inputs<'a> {
        Inputs { routing, ..self }
    }

    /// How many rows a rank has in a launch of a tensor of which each has its own number: none, all that it has room
    /// for, or any number; `None` for other tensors.
    pub fn own_rows(&self, launch: u64, value: ValueId, rank: usize) -> Option<usize> {
        let (program, ty) = (self.case.program, self.case.program.ty(value)?);
        let own = ty.dims.first().is_some_and(|dim| program.is_own(*dim));
        let shape = self.case.bound.shape(value).filter(|_| own)?;
        let most = self.sizes.layout(shape, &ty.placement, rank).ok()?.rows().len();
        let seed = self.seed.wrapping_add(launch.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let chance = |i: u64| f64::from(random_value(seed, 2 * rank as u64 + i, 0.5)) + 0.5;
        Some(match chance(0) {
            few if few < 0.2 => 0,
            all if all > 0.8 => most,
            _ => (chance(1) * (most + 1) as f64) as usize,
        })
    }

    /// Rows of each expert of a rank, from a tensor of them.
    pub fn counts(&self, launch: u64, tensor: &Tensor, rank: usize) -> Vec<i32> {
        let experts = self.layout(tensor, rank).map_or(0, |layout| layout.rows().len());
        let blocks = routing::blocks(self.case, self.sizes, tensor, rank);
        self.routing.counts(experts, blocks, self.seed(launch, tensor, rank))
    }

    /// The experts of a rank's tokens, from a tensor of them.
    pub fn ids(&self, launch: u64, tensor: &Tensor, rank: usize) -> Vec<i32> {
        let shape = self.layout(tensor, rank).map_or(Vec::new(), |layout| layout.shape());
        let [tokens, slots] = shape[..] else { return Vec::new() };
        let experts = routing::experts_of(self.case, tensor.id).unwrap_or(1);
        let seeds = [0, rank].map(|rank| self.seed(launch, tensor, rank));
        let (tokens, slots) = (tokens as usize, slots as usize);
        let mut ids = self.routing.route(tokens, slots, experts, seeds[0], seeds[1]);
        let own = self.own_rows(launch, tensor.id, rank).unwrap_or(tokens);
        ids.iter_mut().skip(own * slots).for_each(|id| *id = -1);
        if let (Routing::Wrong, true, Some(id)) =
            (self.routing, launch > 1 && rank == 0, ids.first_mut())
        {
            *id = experts as i32;
        }
        ids
    }

    /// The places that share experts, by a tensor of them or of their rows.
    pub(crate) fn sharing(&self, tensor: ValueId) -> Vec<usize> {
        let ty = self.case.program.ty(tensor);
        routing::sharing(self.sizes, ty.map_or(&[], |ty| &ty.placement))
    }

    /// Where documents begin, from a tensor of that.
    pub fn documents(&self, launch: u64, tensor: &Tensor) -> Option<Vec<i32>> {
        let tokens = documents::tokens(self.case, tensor.id)?;
        let entries = *self.case.bound.shape(tensor.id)?.first()?;
        Some(self.routing.documents(entries as usize, tokens, self.seed(launch, tensor, 0)))
    }

    /// What a rank is given of a tensor of integers: experts of tokens, rows of experts, or where documents begin.
    pub fn integers(&self, launch: u64, tensor: &Tensor, rank: usize) -> Vec<i32> {
        if let Some(begins) = self.documents(launch, tensor) {
            return begins;
        }
        match tensor.ty.dims.len() {
            2 => self.ids(launch, tensor, rank),
            _ => self.counts(launch, tensor, rank),
        }
    }

    /// The case that they are for.
    pub fn case(&self) -> Case<'a> {
        self.case
    }

    /// The seed of one rank's tensor, for [`random_value`].
    pub fn seed(&self, launch: u64, tensor: &Tensor, rank: usize) -> u64 {
        let rank = self.sizes.giver(&tensor.ty.placement, rank) as u64;
        // An odd multiplier for each, so that no two of them meet at small numbers.
        self.seed
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(launch.wrapping_mul(0xBF58_476D_1CE4_E5B9))
            .wrapping_add((tensor.id.index() as u64).wrapping_mul(0x94D0_49BB_1331_11EB))
            .wrapping_add(rank.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// What a rank holds of a tensor.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`](crate::HarnessError::Unsupported) for a pipeline over other axes.
    pub fn layout(&self, tensor: &Tensor, rank: usize) -> Result<Layout> {
        let shape = self.case.bound.shape(tensor.id).unwrap_or(&[]);
        self.sizes.layout(shape, &tensor.ty.placement, rank)
    }

    /// The local elements, by their place in row-major order.
    pub fn elements(
        &self,
        launch: u64,
        tensor: &Tensor,
        rank: usize,
    ) -> impl Fn(usize) -> f64 + use<> {
        let (seed, dtype) = (self.seed(launch, tensor, rank), tensor.ty.dtype);
        let integers = match dtype.is_integer() {
            true => self.integers(launch, tensor, rank),
            false => Vec::new(),
        };
        let own = self.own_rows(launch, tensor.id, rank);
        let shape = self.layout(tensor, rank).map_or(Vec::new(), |layout| layout.shape());
        let behind = own.map(|own| own as u64 * shape.iter().skip(1).product::<u64>());
        move |i| match integers.get(i) {
            Some(n) => f64::from(*n),
            None if behind.is_some_and(|behind| i as u64 >= behind) => 0.0,
            None => round(dtype, f64::from(random_value(seed, i as u64, 1.0))),
        }
    }
}
