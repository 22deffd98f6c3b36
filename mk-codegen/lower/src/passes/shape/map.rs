//! Operations on rows. A result of one is a buffer of the kernel; other operations read it like a tensor of the caller.

use super::ids::Param;
use mk_abi::DType;
use mk_plan::EpilogueOp;

/// An operation on rows that one rank has.
pub(in crate::passes) struct Map {
    pub how: RowWork,
    /// Matrices as large as what is made, then vectors along the rows, in the order of the operation; gates and ups
    /// that lie side by side are there twice.
    pub operands: Vec<Param>,
    /// What it makes.
    pub out: Param,
    /// Its index into the kernel's results, if it is one.
    pub result: Option<usize>,
    /// Factors of blocks that it makes beside that, and their index.
    pub factors: Option<(Param, Option<usize>)>,
}

impl Map {
    /// What it makes, in order, each with its index into the kernel's results.
    pub fn made(&self) -> impl Iterator<Item = (Param, Option<usize>)> {
        [(self.out, self.result)].into_iter().chain(self.factors)
    }
}

/// What is done to rows.
#[derive(Clone, PartialEq)]
pub(in crate::passes) enum RowWork {
    /// Normalised by the root of their mean square, with these bits added to it; or the gradient of that.
    Norm { eps: u32, grad: bool },
    /// Each head turned by the angles of the row, or back.
    Rope { back: bool },
    /// In eight bits of this type with factors, or back.
    Quant { narrow: DType, back: bool },
    /// Element by element. With [`SWIGLU_GRAD`](mk_plan::SWIGLU_GRAD) in it both halves are made, each by itself: its
    /// operands are gates, gates again, and ups, and nothing is saved.
    Chain(Vec<EpilogueOp>),
}
