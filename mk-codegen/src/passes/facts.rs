//! A selected kernel as the facts that its settings depend on.

use super::shape::{
    attention::Attention,
    kernel::{Extra, Kernel, Op, Reduce},
    tensor::Tensor,
};
use crate::ir::EpilogueOp;
use crate::settings::{Facts, GatheredRows, Product, Sum};
use mk_abi::DType;

/// Global rows and columns; one column where a tensor has none.
fn extents(t: &Tensor) -> [u64; 2] {
    let value = |i: usize| t.shape.get(i).map(|e| e.value.max(0) as u64);
    let columns = if t.shape.len() > 1 { value(t.shape.len() - 1) } else { None };
    [value(0).unwrap_or(0), columns.unwrap_or(1)]
}

/// The facts of an attention on so many ranks: no setting of products, gathers or sums has a use for it.
pub(super) fn of_attention(a: &Attention, ranks: u32) -> Facts {
    Facts { ranks, first: a.results.first().map_or([0, 1], extents), ..Facts::default() }
}

/// The facts of a kernel on so many ranks.
pub(super) fn of(kernel: &Kernel, ranks: u32) -> Facts {
    let world = ranks as i32;
    let gathers = kernel.operands().filter(|(_, o)| o.gathered).map(|(_, operand)| {
        let x = &kernel.params[operand.param];
        let fixed = x.shape.iter().all(|e| e.runtime_max.is_none());
        GatheredRows { name: x.name.clone(), bulk: x.in_bulk(), fixed }
    });
    let products = kernel.products().map(|(id, p)| {
        let saved = p.extras.iter().filter_map(|x| match x {
            Extra::Result(r) => Some(&kernel.results[*r].out),
            Extra::Param(_) => None,
        });
        Product {
            extents: extents(&p.out),
            gathered: kernel.is_gathered(p.left),
            read: kernel.is_read(id),
            result: kernel.result_of(id).is_some(),
            gated: p.gated(),
            plain: p.epilogue.iter().all(|op| *op == EpilogueOp::Widen),
            divisible: kernel.is_divisible(p, world),
            f32: saved.chain([&p.out]).any(|t| t.dtype == DType::F32),
        }
    });
    let sums = kernel.sums().map(|(_, sum)| {
        let out = &kernel.results[sum.result].out;
        let product = match kernel.ops[sum.of] {
            Op::Product(_) => kernel.products().position(|(id, _)| id == sum.of),
            Op::Operand(_) | Op::Sum(_) => None,
        };
        Sum {
            product,
            all: sum.how == Reduce::All,
            epilogue: !sum.epilogue.is_empty(),
            tma_rows: out.tma_rows(world),
            extents: extents(out),
        }
    });
    Facts {
        ranks,
        gathers: gathers.collect(),
        products: products.collect(),
        sums: sums.collect(),
        first: kernel.results.first().map_or([0, 1], |r| extents(&r.out)),
    }
}
