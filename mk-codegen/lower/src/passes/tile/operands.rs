//! Operands of GEMMs from the caller: in place, repacked, or gathered.

use super::tiler::{Given, Left, Tiler, Value};
use crate::passes::{
    error::LowerError,
    roles::DEFAULT_COPY_SMS,
    shape::{
        ids::{OpId, Reduce},
        kernel::{Operand, Product, Sum},
        rows::Rows,
        tensor::Tensor,
    },
    strategies::{factors::OwnFactors, gather, gathered::Slices, pack},
};
use crate::settings::{AllReduce, Gather};
use mk_plan::{self, ALayout, BufId, mma_shifts, scales_steps};

/// Gathers or repacks operand A that operation `op` is.
///
/// # Errors
/// For factors that would go over a network card.
pub(super) fn source<'k>(
    t: &mut Tiler<'k>,
    op: OpId,
    operand: Operand,
) -> Result<Value<'k>, LowerError> {
    let kernel = t.kernel;
    let x = &kernel.params[operand.param];
    let height = t.config.rows_of_task();
    let mine = || kernel.products().filter(|(id, _)| kernel.root(*id) == op);
    let shared = |axis: &usize| t.draft.along(*axis).group.size > 1;
    // A reduction of one rank counts as scattered, whatever the strategy.
    let scattered = |sum: &&Sum| {
        let two_shot = t.config.all_reduce == AllReduce::TwoShot;
        sum.how != Reduce::All || two_shot || !shared(&sum.axis)
    };
    let sums = || mine().filter_map(|(id, _)| kernel.sum_of(id));
    let reduced = sums().find(scattered).map(|sum| sum.axis);
    let gathered = operand.gathered.filter(shared);
    let owner = gathered.or(reduced);
    let first = mine().next();
    // Rows of the GEMM, not of the operand: a transposed one has them along its last dimension.
    let of = match first {
        Some((_, product)) if operand.gathered.is_none() => &product.out,
        _ => x,
    };
    let own = owner.map(|axis| of.on_own_rows(axis));
    let of = own.as_ref().unwrap_or(of);
    let rows = Rows::new(&mut t.draft.extents, of, owner, height).peers_first();
    let buffer = t.params[operand.param];
    let factors = operand.factors.filter(|_| gathered.is_some()).map(|p| {
        let tensor = &kernel.params[p];
        let several = tensor.shape.len() > 1;
        OwnFactors {
            buffer: t.params[p],
            steps: several.then(|| t.draft.own(tensor, 0)),
            n_steps: if several { tensor.widest(0) } else { 1 },
        }
    });
    if gathered.is_some() && spans(t, op, x, &rows) {
        let pushed = gather::push_whole(&mut t.draft, x, buffer, &rows, factors, t.config);
        let rows = Rows::whole(&mut t.draft.extents, x, height);
        let (left, depth) = (Left::Gathered(pushed), t.draft.own(x, 1));
        return Ok(Value::Operand(Box::new(Given { rows, left, packed: None, depth })));
    }
    let (left, packed, depth);
    if gathered.is_some() {
        let slices = slices(t, op, x, &rows, first.map(|(id, _)| id));
        let pushed = gather::push(&mut t.draft, x, buffer, &rows, (slices, factors), t.config);
        (left, packed, depth) = (Left::Gathered(pushed), None, t.draft.own(x, 1));
    } else {
        let draft = &mut t.draft;
        let by_owner = match operand.transposed {
            true => pack::columns_by_owner(draft, x, buffer, &rows),
            false => None,
        };
        let dim = usize::from(!operand.transposed);
        if let Some(p) = by_owner {
            left = Left::ByOwner(p.buffer);
            packed = Some(p);
        } else {
            packed = if first.is_some() {
                pack::matrix(draft, x, buffer, mk_plan::Operand::A, t.config.ctas_of_task())
            } else {
                None
            };
            let from = packed.as_ref().map_or(buffer, |p| p.buffer);
            left = Left::Local(from, if dim == 0 { ALayout::Km } else { ALayout::Mk });
        }
        depth = draft.own(x, dim);
    }
    let rows = match reduced {
        Some(axis) if gathered.is_some_and(|own| own != axis) => {
            rows.shared_with(axis, t.draft.along(axis).group)
        }
        _ => rows,
    };
    Ok(Value::Operand(Box::new(Given { rows, left, packed, depth })))
}

/// Whether tiles of the GEMMs of a gathered operand hold rows of several ranks: if each rank has few, fewer tiles then
/// read operand B, and there is little to begin with before peers' rows arrive.
fn spans(t: &Tiler<'_>, op: OpId, x: &Tensor, rows: &Rows) -> bool {
    let (kernel, world, height) = (t.kernel, rows.group.size, rows.height);
    let in_one_node = t.draft.along(rows.axis).count() == 1;
    let per_rank = x.widest(0);
    let tiles = |rows: i32| (rows + height - 1) / height;
    let fewer = tiles(per_rank * world) < tiles(per_rank) * world && per_rank < 2 * height;
    let by_sms = t.config.gather == Gather::Sms && in_one_node;
    by_sms && fewer && kernel.spans(op)
}

/// The slices of K in which a gathered operand A travels, and how many blocks of a shard travel together: as many as
/// the SMs that are not at local rows multiply at a time, for the first GEMM.
fn slices(
    t: &Tiler<'_>,
    op: OpId,
    x: &Tensor,
    rows: &Rows,
    product: Option<OpId>,
) -> Option<Slices> {
    let fixed = |t: &Tensor| t.shape.iter().all(|e| e.runtime_max.is_none());
    let wanted = t.kernel.result_of(op).is_none() && t.kernel.params.iter().all(fixed);
    let (Some(product), true) = (product, wanted) else { return None };
    let width = i64::from(t.config.block[1]);
    let columns = i64::from(t.kernel.value(product).widest(1));
    let across = (columns + width - 1) / width;
    let copying = t.config.intra_comm_sms.unwrap_or(DEFAULT_COPY_SMS);
    let (free, blocks) = (t.draft.sms() - i64::from(copying), i64::from(rows.blocks));
    let own = blocks * across;
    let free = if own < free { free - own } else { free };
    let together = free / (across * i64::from(rows.shards - 1)).max(1);
    // A rest of less than half a wave fits in where local rows end.
    let together = if blocks * 2 < together * 3 { blocks } else { together };
    let together = i32::try_from(together.clamp(1, blocks.max(1))).unwrap_or(1);
    // Steps with factors are those of a whole task.
    if product_scales(t, product) {
        return None;
    }
    let step = mk_plan::mma_step(x.dtype) as i32;
    Slices::new(x.widest(1), x.dtype.size_bytes(), t.config.k_slices, step, together)
}

fn product_scales(t: &Tiler<'_>, product: OpId) -> bool {
    let found = t.kernel.products().find(|(id, _)| *id == product);
    found.is_some_and(|(_, p)| scales_steps(&p.epilogue))
}

/// Whether tiles of a GEMM shift rows of operand B that TMA cannot take ([`MmaTile::shifted`]).
///
/// [`MmaTile::shifted`]: mk_plan::MmaTile::shifted
pub(super) fn shifts(t: &Tiler<'_>, g: &Product) -> bool {
    let [m, n, _] = t.config.block;
    let alone = t.config.multicast.is_none() && t.kernel.params[g.b].shifts();
    alone && !g.b_transposed && !g.gated() && mma_shifts([m, n])
}

/// Operand B of a GEMM, repacked once if it must be.
pub(super) fn right(t: &mut Tiler<'_>, g: &Product) -> BufId {
    let b = g.b;
    if t.packed[b].is_none() && !shifts(t, g) {
        let (x, each) = (&t.kernel.params[b], t.config.ctas_of_task());
        t.packed[b] = pack::matrix(&mut t.draft, x, t.params[b], mk_plan::Operand::B, each);
    }
    t.packed[b].as_ref().map_or(t.params[b], |p| p.buffer)
}
