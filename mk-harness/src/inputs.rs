//! Random inputs.

use super::{
    Case, HarnessError, Layout,
    math::round,
    routing::{self, Routing},
};
use mk_abi::DType;
use mk_runtime::reference::random_value;
use mk_syntax::{Placement, Tensor};

/// The inputs of every launch: uniform in [-1, 1), rounded to the tensor's type. Shards and summands differ from rank to
/// rank, replicas do not.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    case: Case<'a>,
    seed: u64,
    routing: Routing,
}

impl<'a> Inputs<'a> {
    /// Inputs that follow from a seed.
    pub fn new(case: Case<'a>, seed: u64) -> Inputs<'a> {
        Inputs { case, seed, routing: Routing::default() }
    }

    /// The same, with rows of experts of this form.
    pub fn routed(self, routing: Routing) -> Inputs<'a> {
        Inputs { routing, ..self }
    }

    /// Rows of each expert of a rank, from a tensor of them, or of the experts of its tokens.
    pub fn counts(&self, launch: u64, tensor: &Tensor, rank: usize) -> Vec<i32> {
        let values = self.integers(launch, tensor, rank);
        match tensor.ty.dims.len() {
            1 => values,
            _ => routing::rows(&values, routing::all_experts(self.case, tensor)),
        }
    }

    /// What a rank holds of a tensor of integers: rows of its experts, or the experts of its tokens.
    pub fn integers(&self, launch: u64, tensor: &Tensor, rank: usize) -> Vec<i32> {
        let seed = self.seed(launch, tensor, rank);
        let shape = self.layout(tensor, rank).map(|layout| layout.shape()).unwrap_or_default();
        match shape[..] {
            [tokens, slots] => {
                let experts = routing::all_experts(self.case, tensor);
                self.routing.ids([tokens as usize, slots as usize], experts, seed)
            }
            _ => {
                let experts = shape.first().map_or(0, |n| *n as usize);
                self.routing.counts(experts, routing::blocks(self.case, tensor, rank), seed)
            }
        }
    }

    /// The case that they are for.
    pub fn case(&self) -> Case<'a> {
        self.case
    }

    /// The seed of one rank's tensor, for [`random_value`].
    pub fn seed(&self, launch: u64, tensor: &Tensor, rank: usize) -> u64 {
        let rank = match placement(&tensor.ty.placement) {
            Ok(Placement::Replicate) => 0,
            _ => rank as u64,
        };
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
    /// [`HarnessError::Unsupported`] for a mesh of several axes.
    pub fn layout(&self, tensor: &Tensor, rank: usize) -> Result<Layout, HarnessError> {
        let shape = self.case.bound.shape(tensor.id).unwrap_or(&[]);
        Ok(Layout::new(shape, placement(&tensor.ty.placement)?, self.case.ranks, rank))
    }

    /// The local elements from `from` on, row-major.
    pub fn values(
        &self,
        launch: u64,
        tensor: &Tensor,
        rank: usize,
        from: usize,
    ) -> impl Iterator<Item = f64> + use<> {
        let (seed, dtype) = (self.seed(launch, tensor, rank), dtype(tensor.ty.dtype));
        let integers = match dtype {
            DType::I32 => self.integers(launch, tensor, rank),
            _ => Vec::new(),
        };
        let random = move |i: u64| match integers.get(i as usize) {
            Some(n) => f64::from(*n),
            None => round(dtype, f64::from(random_value(seed, i, 1.0))),
        };
        (from as u64..).map(random)
    }
}

/// The placement on the one axis.
pub(super) fn placement(placements: &[Placement]) -> Result<Placement, HarnessError> {
    match placements {
        [one] => Ok(*one),
        _ => Err(HarnessError::unsupported("a mesh of several axes")),
    }
}

/// The type as the ABI calls it.
pub(super) fn dtype(dtype: mk_syntax::DType) -> DType {
    match dtype {
        mk_syntax::DType::Bf16 => DType::Bf16,
        mk_syntax::DType::F16 => DType::F16,
        mk_syntax::DType::F32 => DType::F32,
        mk_syntax::DType::I32 => DType::I32,
    }
}
