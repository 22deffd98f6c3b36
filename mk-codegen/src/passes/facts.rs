//! A selected kernel as the facts that its settings depend on.

use super::{
    gather,
    gemm::tma_rows,
    select::{Extra, Kernel, Made, Reduce, Tensor},
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

/// The facts of a kernel on so many ranks.
pub(super) fn of(kernel: &Kernel, ranks: u32) -> Facts {
    let world = ranks as i32;
    let gathers = kernel.sources.iter().filter(|s| s.gathered).map(|s| {
        let x = &kernel.params[s.param];
        let fixed = x.shape.iter().all(|e| e.runtime_max.is_none());
        GatheredRows { name: x.name.clone(), bulk: gather::in_bulk(x), fixed }
    });
    let products = kernel.gemms.iter().enumerate().map(|(n, g)| {
        let saved = g.extras.iter().filter_map(|x| match x {
            Extra::Result(r) => Some(&kernel.results[*r].out),
            Extra::Param(_) => None,
        });
        Product {
            extents: extents(&g.out),
            gathered: matches!(g.left, Made::Source(s) if kernel.sources[s].gathered),
            read: kernel.readers(n),
            result: kernel.result_of(Made::Gemm(n)).is_some(),
            gated: g.gated(),
            plain: g.epilogue.iter().all(|op| *op == EpilogueOp::Widen),
            divisible: kernel.can_cut(n, world),
            f32: saved.chain([&g.out]).any(|t| t.dtype == DType::F32),
        }
    });
    let sums = kernel.results.iter().filter_map(|r| {
        let how = r.reduce?;
        let product = match r.of {
            Some(Made::Gemm(n)) => Some(n),
            Some(Made::Source(_)) | None => None,
        };
        Some(Sum {
            product,
            all: how == Reduce::All,
            epilogue: !r.epilogue.is_empty(),
            tma_rows: tma_rows(&r.out, world),
            extents: extents(&r.out),
        })
    });
    let first = kernel.results.first().map_or([0, 1], |r| extents(&r.out));
    Facts {
        ranks,
        gathers: gathers.collect(),
        products: products.collect(),
        sums: sums.collect(),
        first,
    }
}
