//! A kernel as the facts that its settings depend on.

use crate::passes::shape::{
    grouped::{Grouped, Wgrad},
    ids::{Extra, Reduce},
    kernel::{self, Kernel, Op},
    tensor::Tensor,
};
use crate::settings::{Facts, GatheredRows, Product, Sum};
use mk_dtype::HALF_BYTES;
use mk_plan::{EpilogueOp, gated, quantized, scales_steps};

/// Global rows and columns; one column where a tensor has none.
fn extents(t: &Tensor) -> [u64; 2] {
    let value = |i: usize| t.shape.get(i).map(|e| e.value.max(0) as u64);
    let columns = if t.shape.len() > 1 { value(t.shape.len() - 1) } else { None };
    [value(0).unwrap_or(0), columns.unwrap_or(1)]
}

/// A GEMM's K, where every launch and every rank has as much of it.
fn depth(kernel: &Kernel, product: &kernel::Product) -> Option<u64> {
    let Op::Operand(operand) = &kernel.ops[product.left] else { return None };
    let (x, dim) = (&kernel.params[operand.param], usize::from(!operand.transposed));
    let fixed = x.shape.get(dim).is_some_and(|e| e.runtime_max.is_none());
    (fixed && x.even(dim)).then(|| x.widest(dim).max(0) as u64)
}

/// Whether TMA takes rows of both operands.
fn whole(kernel: &Kernel, product: &kernel::Product) -> bool {
    let left = match &kernel.ops[product.left] {
        Op::Operand(operand) => kernel.params[operand.param].tma_rows(),
        _ => true,
    };
    left && kernel.params[product.b].tma_rows()
}

/// Whether rows of operand B begin at any element, and tiles can shift them.
fn shifts(kernel: &Kernel, product: &kernel::Product) -> bool {
    kernel.params[product.b].shifts() && !product.b_transposed && !product.gated()
}

/// Whether its operands are the caller's, as the loops of tiles take them, and it saves nothing on the way.
fn alone(kernel: &Kernel, product: &kernel::Product) -> bool {
    let Op::Operand(operand) = &kernel.ops[product.left] else { return false };
    let made = |p: usize| p >= kernel.given;
    if made(operand.param) || made(product.b) {
        return false;
    }
    let [a, b] = [&kernel.params[operand.param], &kernel.params[product.b]];
    // Rows of A that TMA does not take are repacked.
    let rows = |t: &Tensor, otherwise: bool| t.tma_rows() || otherwise;
    if !rows(a, !operand.transposed) || !rows(b, shifts(kernel, product)) {
        return false;
    }
    let saves = product.extras.iter().any(|x| matches!(x, Extra::Result(_) | Extra::OwnHalf));
    let fixed = |t: &&Tensor| t.shape.iter().all(|e| e.runtime_max.is_none());
    [a, b].iter().all(fixed) && !saves
}

/// Whether elements have other than 16 bits.
fn odd(t: &Tensor) -> bool {
    t.dtype.size_bytes() != u64::from(HALF_BYTES)
}

/// A GEMM of ragged rows. Of dispatched rows, all that there is capacity for.
fn grouped(p: &Grouped, ranks: u32) -> Product {
    let rows = p.out.widest(0).max(0) as u64 * u64::from(ranks);
    Product {
        extents: [rows, extents(&p.out)[1]],
        read: p.read,
        result: p.result.is_some(),
        gated: gated(&p.epilogue),
        plain: p.epilogue.iter().all(|op| *op == EpilogueOp::Widen),
        whole: true,
        odd_bits: odd(&p.out),
        narrow: scales_steps(&p.epilogue),
        blocks: scales_steps(&p.epilogue),
        quantized: quantized(&p.epilogue).is_some(),
        ..Product::default()
    }
}

/// Gradients of matrices of experts, one below the other.
fn wgrad(w: &Wgrad, out: &Tensor) -> Product {
    let [experts, columns] = extents(out);
    let rows = out.shape.get(1).map_or(0, |e| e.value.max(0) as u64);
    Product {
        extents: [experts.saturating_mul(rows), columns],
        result: true,
        plain: w.epilogue.iter().all(|op| *op == EpilogueOp::Widen),
        whole: true,
        odd_bits: odd(out),
        ..Product::default()
    }
}

/// The facts of a kernel on so many ranks, of which those along some axes stay inside nodes, where there are several.
pub(in crate::passes) fn facts(
    kernel: &Kernel,
    ranks: u32,
    inside: impl Fn(usize) -> bool,
) -> Facts {
    let gathers = kernel.operands().filter(|(_, o)| o.gathered.is_some()).map(|(id, operand)| {
        let x = &kernel.params[operand.param];
        let fixed = x.shape.iter().all(|e| e.runtime_max.is_none());
        let spans = kernel.spans(id);
        let made = operand.param >= kernel.given;
        let scaled = operand.factors.is_some();
        let (name, bulk) = (x.name.clone(), x.in_bulk());
        let inside = operand.gathered.is_some_and(&inside);
        GatheredRows { name, bulk, fixed, made, spans, scaled, inside }
    });
    let products = kernel.products().map(|(id, p)| {
        let saved = p.extras.iter().filter_map(|x| match x {
            Extra::Result(r) => Some(&kernel.results[*r].out),
            _ => None,
        });
        Product {
            extents: extents(&p.out),
            gathered: kernel.is_gathered(p.left),
            read: kernel.is_read(id),
            result: kernel.result_of(id).is_some(),
            gated: p.gated(),
            plain: p.epilogue.iter().all(|op| *op == EpilogueOp::Widen),
            divisible: kernel.is_divisible(p),
            depth: depth(kernel, p),
            alone: alone(kernel, p),
            whole: whole(kernel, p),
            shifts: shifts(kernel, p),
            odd_bits: saved.chain([&p.out]).any(odd),
            narrow: kernel.params[p.b].dtype.is_narrow(),
            blocks: scales_steps(&p.epilogue),
            quantized: quantized(&p.epilogue).is_some(),
        }
    });
    let sums = kernel.sums().map(|(_, sum)| {
        let out = &kernel.results[sum.result].out;
        let product = match kernel.ops[sum.of] {
            Op::Product(_) => kernel.products().position(|(id, _)| id == sum.of),
            _ => None,
        };
        Sum {
            product,
            all: sum.how == Reduce::All,
            epilogue: !sum.epilogue.is_empty(),
            tma_rows: out.tma_rows(),
            inside: inside(sum.axis),
            extents: extents(out),
        }
    });
    let ragged = kernel.ops.iter().find_map(|op| match op {
        Op::Ragged(ragged) => Some(ragged),
        _ => None,
    });
    let of_wgrads = kernel.wgrads().next().map(|w| extents(&kernel.results[w.result].out)[0]);
    let groups = kernel.grouped().next().map(|p| extents(&kernel.params[p.b])[0]);
    let groups = groups.or(of_wgrads).unwrap_or(0);
    let grouped = kernel.grouped().map(|p| grouped(p, ranks));
    let wgrads = kernel.wgrads().map(|w| wgrad(w, &kernel.results[w.result].out));
    Facts {
        ranks,
        gathers: gathers.collect(),
        products: products.chain(grouped).chain(wgrads).collect(),
        sums: sums.collect(),
        ring: kernel.exchanges()
            || kernel.attention().is_some_and(|a| a.ring.is_some() || a.exchange.is_some()),
        routed: ragged.is_some_and(|r| r.route.is_some()),
        returns: kernel.combined().filter(|c| c.parts(&kernel.params)).map(|c| {
            let slots = ragged.map_or(0, |r| kernel.params[r.counts].widest(1));
            [c.out.widest(0), slots].map(|n| n.max(0) as u64)
        }),
        parts: kernel.params.iter().flat_map(|p| &p.shape).any(|e| e.of_launch),
        ragged: ragged.is_some(),
        groups,
        first: kernel.results.first().map_or([0, 1], |r| extents(&r.out)),
    }
}
