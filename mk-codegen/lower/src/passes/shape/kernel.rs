//! The operations of one kernel, as a DAG.

use super::{
    attention::Attention,
    grouped::{Combine, Combined, Grads, Grouped, Ragged, Wgrad},
    ids::{Extra, OpId, Param, Reduce},
    map::Map,
    tensor::Tensor,
};
use mk_plan::{self, EpilogueOp};

/// What the kernel computes.
pub(in crate::passes) struct Kernel {
    pub name: String,
    /// Tensors of the caller, in the order of the program; then what operations on rows make of them.
    pub params: Vec<Tensor>,
    /// How many are the caller's.
    pub given: usize,
    /// Each after its operands.
    pub ops: Vec<Op>,
    /// Results, in the order of the program.
    pub results: Vec<Outcome>,
}

/// An operation.
pub(in crate::passes) enum Op {
    /// A caller's tensor, as it lies on this rank or gathered.
    Operand(Operand),
    /// Rows of one of the parameters, made of others.
    Map(Map),
    /// A GEMM with its elementwise epilogue.
    Product(Product),
    /// A sum over ranks with its elementwise epilogue.
    Sum(Sum),
    /// A caller's tensor, exchanged.
    AllToAll(AllToAll),
    /// Attention, or a part of its backward.
    Attention(Attention),
    /// Gradients of an attention's sinks.
    Dsinks(Dsinks),
    /// Rows of experts.
    Ragged(Ragged),
    /// A GEMM of such rows with its elementwise epilogue.
    Grouped(Grouped),
    /// What follows from gradients of rows of an activation that have weights.
    Grads(Grads),
    /// Gradients of the matrices that such rows meet.
    Wgrad(Wgrad),
    /// Weighted sums of such rows.
    Combine(Combine),
}

/// A caller's tensor as an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::passes) struct Operand {
    pub param: Param,
    /// Sharded by rows, and gathered along this axis.
    pub gathered: Option<usize>,
    pub transposed: bool,
    /// Factors of its rows that are gathered with it.
    pub factors: Option<Param>,
}

/// One matrix product.
pub(in crate::passes) struct Product {
    /// Its operand A: an operand, or another product.
    pub left: OpId,
    pub b: Param,
    pub b_transposed: bool,
    /// After the epilogue; of a result `[m, 2, n]`, `[m, n]`.
    pub out: Tensor,
    pub epilogue: Vec<EpilogueOp>,
    /// Operands of the epilogue, in order.
    pub extras: Vec<Extra>,
}

impl Product {
    /// Whether columns of `b` come in pairs of gate and up.
    pub fn gated(&self) -> bool {
        mk_plan::gated(&self.epilogue)
    }

    /// Whether its result is `[m, 2, n]`, the gradient of what `swiglu` takes.
    pub fn halves(&self) -> bool {
        mk_plan::halves(&self.epilogue)
    }
}

/// A sum over ranks.
pub(in crate::passes) struct Sum {
    /// The contributions: a GEMM, or an operand.
    pub of: OpId,
    pub how: Reduce,
    /// The axis whose ranks contribute.
    pub axis: usize,
    /// Before sums are rounded.
    pub epilogue: Vec<EpilogueOp>,
    /// Operands of that, in order.
    pub extras: Vec<Param>,
    /// An index into [`Kernel::results`].
    pub result: usize,
}

/// A caller's `[B, S, H, D]` of which ranks have parts of the sequence, and then heads; or the other way.
pub(in crate::passes) struct AllToAll {
    pub param: Param,
    /// As the ranks along the axis have it, by parts of the sequence.
    pub shared: Tensor,
    /// The axis whose ranks exchange.
    pub axis: usize,
    /// Whether heads become parts of the sequence.
    pub back: bool,
    /// An index into [`Kernel::results`].
    pub result: usize,
}

/// Gradients of sinks, of statistics of queries.
pub(in crate::passes) struct Dsinks {
    pub stats: Param,
    pub sinks: Param,
    /// An index into [`Kernel::results`].
    pub result: usize,
}

/// One result.
pub(in crate::passes) struct Outcome {
    /// None for a value that an epilogue saves, which names it as an [`Extra`].
    pub of: Option<OpId>,
    pub out: Tensor,
}

/// A kernel's operations of one kind, in order.
macro_rules! each {
    ($kernel:ident, $kind:ident) => {
        $kernel.ops.iter().enumerate().filter_map(|(id, op)| match op {
            Op::$kind(x) => Some((id, x)),
            _ => None,
        })
    };
}

impl Kernel {
    /// The operands, in order.
    pub fn operands(&self) -> impl Iterator<Item = (OpId, &Operand)> {
        each!(self, Operand)
    }

    /// The operations on rows, in order.
    pub fn maps(&self) -> impl Iterator<Item = &Map> {
        each!(self, Map).map(|(_, x)| x)
    }

    /// The GEMMs, in order.
    pub fn products(&self) -> impl Iterator<Item = (OpId, &Product)> {
        each!(self, Product)
    }

    /// The sums, in order.
    pub fn sums(&self) -> impl Iterator<Item = (OpId, &Sum)> {
        each!(self, Sum)
    }

    /// Whether it exchanges tensors of the caller.
    pub fn exchanges(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::AllToAll(_)))
    }

    /// The attention, or the part of its backward, that it is.
    pub fn attention(&self) -> Option<&Attention> {
        each!(self, Attention).map(|(_, x)| x).next()
    }

    /// The GEMMs of ragged rows, in order.
    pub fn grouped(&self) -> impl Iterator<Item = &Grouped> {
        each!(self, Grouped).map(|(_, x)| x)
    }

    /// The gradients of matrices of experts, in order.
    pub fn wgrads(&self) -> impl Iterator<Item = &Wgrad> {
        each!(self, Wgrad).map(|(_, x)| x)
    }

    /// What becomes of rows that go back to their tokens.
    pub fn combined(&self) -> Option<&Combine> {
        each!(self, Combine).map(|(_, x)| x).find(|x| x.how != Combined::Elements)
    }

    /// Whether it moves tensors of the caller, and computes nothing but their sums.
    pub fn is_collective(&self) -> bool {
        self.ops.iter().all(|op| matches!(op, Op::Operand(_) | Op::Map(_) | Op::Sum(_)))
    }

    /// The operand at the head of the chain of GEMMs that an operation ends.
    pub fn root(&self, mut op: OpId) -> OpId {
        while let Op::Product(Product { left, .. }) = &self.ops[op] {
            op = *left;
        }
        op
    }

    /// The sum over ranks that an operation ends in.
    pub fn sum_of(&self, op: OpId) -> Option<&Sum> {
        self.sums().map(|(_, sum)| sum).find(|sum| sum.of == op)
    }

    /// The value of an operation on this rank: a sum's is that of the caller, and an attention's its first.
    pub fn value(&self, op: OpId) -> &Tensor {
        match &self.ops[op] {
            Op::Operand(operand) => &self.params[operand.param],
            Op::Map(map) => &self.params[map.out],
            Op::Product(product) => &product.out,
            Op::Sum(Sum { result, .. })
            | Op::Combine(Combine { result, .. })
            | Op::Dsinks(Dsinks { result, .. })
            | Op::AllToAll(AllToAll { result, .. }) => &self.results[*result].out,
            Op::Attention(attention) => {
                &self.results[attention.made.first().map_or(0, |(_, result)| *result)].out
            }
            Op::Ragged(ragged) => &ragged.rows,
            Op::Grouped(grouped) => &grouped.out,
            Op::Grads(grads) => &grads.out,
            Op::Wgrad(wgrad) => &self.results[wgrad.result].out,
        }
    }

    /// What every rank has of a result before it is summed.
    pub fn contribution(&self, sum: &Sum) -> Tensor {
        Tensor { dtype: self.value(sum.of).dtype, ..self.results[sum.result].out.clone() }
    }

    /// The result that an operation's value is.
    pub fn result_of(&self, op: OpId) -> Option<usize> {
        self.results.iter().position(|r| r.of == Some(op))
    }

    /// Whether another GEMM reads an operation.
    pub fn is_read(&self, op: OpId) -> bool {
        self.products().any(|(_, product)| product.left == op)
    }

    /// Whether an operation is a gathered operand.
    pub fn is_gathered(&self, op: OpId) -> bool {
        matches!(self.ops[op], Op::Operand(Operand { gathered: Some(_), .. }))
    }

    /// Whether tiles may hold rows of several ranks: every rank has as many rows of a gathered operand, in bulk, which
    /// only GEMMs read whose results the caller gets as they are.
    pub fn spans(&self, op: OpId) -> bool {
        let Op::Operand(Operand { param, gathered: Some(_), transposed: false, .. }) = self.ops[op]
        else {
            return false;
        };
        let x = &self.params[param];
        let fixed = x.shape.iter().all(|e| e.runtime_max.is_none());
        let plain = |(id, p): (OpId, &Product)| {
            let own = self.sum_of(id).is_none() && !self.is_read(id) && p.left == op;
            self.root(id) != op || own
        };
        fixed
            && x.even(0)
            && x.in_bulk()
            && self.result_of(op).is_none()
            && self.products().all(plain)
    }

    /// Whether a GEMM's K may be cut and the parts be added up: nothing else is done to the whole, and
    /// all ranks have equally many steps.
    pub fn is_divisible(&self, product: &Product) -> bool {
        let even = match &self.ops[product.left] {
            Op::Operand(Operand { param, transposed, .. }) => {
                self.params[*param].even(usize::from(!transposed))
            }
            Op::Product(left) => left.out.even(1),
            _ => false,
        };
        even && product.epilogue.iter().all(|op| *op == EpilogueOp::Widen)
    }
}
