//! Dense GEMMs, each with its destination, and gathered operands that are results.

use super::{
    last_wave, operands,
    product::{Cut, Product},
    tiler::{Given, Hidden, Left, Tiler, Value},
};
use crate::passes::{
    draft::{Draft, Flow, FlowId, Reader, Source, TileRows, Writer, read, write},
    error::{LowerError, internal},
    shape::{
        ids::{Extra, OpId, Reduce},
        kernel::{self, Kernel, Sum},
        rows::Rows,
        tensor::{Tensor, aligned},
    },
    strategies::{
        by_columns::Columns,
        deliver::mapped,
        destination::Destination,
        gather,
        gathered::Gathered,
        one_shot, ring, split_k,
        sum::{Contributions, Summed},
    },
};
use crate::settings::{AllReduce, Reduction};
use mk_plan::{
    ALayout, BLayout, BufId, CopyVia, EpilogueOp, Expr, MmaTile, Operand, RoleKind, Space, Store,
    mma_step, scales_steps,
};

/// Columns of a panel of 16-bit results, which a box of TMA stores.
const PANEL_COLUMNS: i32 = 64;

/// All tiles of one GEMM, and the families that read them.
pub(super) fn product<'k>(
    t: &mut Tiler<'k>,
    id: OpId,
    g: &'k kernel::Product,
) -> Result<Value<'k>, LowerError> {
    let kernel = t.kernel;
    let rows = t.given(id)?.rows.clone();
    let (sum, result, read) = (kernel.sum_of(id), kernel.result_of(id), kernel.is_read(id));
    let b = operands::right(t, g);
    let shared = sum.filter(|sum| t.draft.along(sum.axis).group.size > 1);
    if let (Some(sum), Reduction::Ring) = (shared, t.config.reduction) {
        in_ring(t, g, sum, &rows, b)?;
        return Ok(Value::Result);
    }
    let cut = match sum {
        Some(sum) => t.cut(id, &kernel.results[sum.result].out, &rows, t.config.split_k)?,
        None => None,
    };
    let destination = match (sum, result) {
        (Some(sum), _) => to_sum(t, sum, &rows)?,
        // The next GEMM reads the caller's rows, if TMA can.
        (None, Some(r)) if !read || g.out.tma_rows() => Destination::Out(t.results[r]),
        (None, _) => Destination::Hidden(scratch(t, g, &rows, id)),
    };
    let mut p = new_product(t, id, g, rows.clone(), destination, b)?;
    p.cut = cut;
    let by = match (t.config.last_wave, result) {
        (Some(last), Some(r)) if !read => last_wave::tiles(t, id, r, &mut p, last)?,
        _ => t.tiles(&p)?,
    };
    unpack(t, g, &by);
    if let Some(sum) = sum {
        add_up(t, sum, &p, rows, by);
        return Ok(Value::Result);
    }
    match destination {
        Destination::Hidden(buffer) | Destination::Out(buffer) if read => {
            let in_shards = matches!(destination, Destination::Hidden(_));
            let done = done(&mut t.draft, &p, &rows, by);
            let hidden = Hidden { buffer, in_shards, done, depth: p.n };
            if let (true, Some(r)) = (in_shards, result) {
                copy_out(t, &hidden, &g.out, r, &rows);
            }
            Ok(Value::Hidden(hidden))
        }
        _ => Ok(Value::Result),
    }
}

/// Destination of the tiles of a GEMM that is reduced over ranks, by the strategy of the settings.
///
/// # Errors
/// As [`mapped`].
fn to_sum(t: &mut Tiler<'_>, sum: &Sum, rows: &Rows) -> Result<Destination, LowerError> {
    let nodes = t.draft.along(sum.axis);
    let world = nodes.group.size;
    let out = t.kernel.contribution(sum);
    let width = t.config.block[1] as i32;
    let draft = &mut t.draft;
    Ok(match (sum.how, t.config.all_reduce) {
        // A ring of one rank.
        _ if t.config.reduction == Reduction::Ring => Destination::Out(t.results[sum.result]),
        (Reduce::All, AllReduce::OneShot) if world > 1 => {
            mapped(nodes, "all_reduce=one_shot")?;
            Destination::Parts(one_shot::parts(draft, &out, rows))
        }
        (Reduce::All, AllReduce::ByColumns) if world > 1 => {
            mapped(nodes, "all_reduce=by_columns")?;
            Destination::Columns(Columns::new(draft, &out, rows, nodes.group, width))
        }
        _ => Destination::slots(draft, &out, rows),
    })
}

/// Adds the contributions that the tiles `by` of a GEMM write.
fn add_up(t: &mut Tiler<'_>, sum: &Sum, p: &Product<'_>, rows: Rows, by: Vec<TileRows>) {
    // Shard by shard, a group is of one.
    let together = match t.gathered(p.g) {
        Some(Gathered { slices: Some(s), .. }) => s.together,
        Some(Gathered { by_shard: true, .. }) => p.group,
        _ => (p.group / rows.count).max(1),
    };
    let block = [t.config.rows_of_task(), p.tile.task_columns() as i32];
    let mut tiles = Contributions { rows, block, together, by, operand: Operand::C };
    let (draft, config) = (&mut t.draft, t.config);
    let of = Summed::new(t.kernel, sum, &t.params, &t.results);
    if let Some(Cut { into, parts, .. }) = p.cut {
        let parts = (parts, into);
        tiles = split_k::fold(draft, config.reduction, of.out, parts, p.destination, tiles);
    }
    p.destination.add_up(draft, config, sum.how, &of, tiles);
}

/// A GEMM whose epilogue adds to partial sums that travel in a ring.
fn in_ring<'k>(
    t: &mut Tiler<'k>,
    g: &'k kernel::Product,
    sum: &Sum,
    rows: &Rows,
    b: BufId,
) -> Result<(), LowerError> {
    mapped(t.draft.along(sum.axis), "reduction=ring")?;
    // Settings refuse a ring behind a gather.
    if rows.pieces.is_some() {
        return Err(internal("a ring sums rows that are gathered over another axis"));
    }
    let out = &t.kernel.results[sum.result].out;
    let ring = ring::ring(&mut t.draft, out, rows, t.results[sum.result]);
    let mut p = new_product(t, sum.of, g, rows.clone(), Destination::Ring(ring), b)?;
    p.tile.epilogue.push(EpilogueOp::Carry);
    // Halves of whole steps, the same in all launches.
    let mut extents = t.kernel.params.iter().flat_map(|t| &t.shape);
    let fixed = extents.all(|e| e.runtime_max.is_none());
    let steps = 2 * p.tile.block[2] as i32;
    let depth = t.draft.extents.fixed(&t.depth(g)?);
    let whole = !scales_steps(&g.epilogue);
    p.half = depth.filter(|k| whole && fixed && k % steps == 0).map(|k| k / 2);
    let by = t.tiles(&p)?;
    unpack(t, g, &by);
    for adding in by {
        ring::hand_on(&mut t.draft, ring, rows, &adding, p.col_blocks, p.half.map(|_| 1));
    }
    Ok(())
}

/// The families `by` of a GEMM wait for operands that are repacked.
fn unpack(t: &mut Tiler<'_>, g: &kernel::Product, by: &[TileRows]) {
    let packed = match t.made.get(g.left) {
        Some(Value::Operand(given)) => given.packed,
        _ => None,
    };
    for (p, operand) in [(packed, Operand::A), (t.packed[g.b], Operand::B)] {
        let Some(p) = p else { continue };
        for tiles in by {
            t.draft.read(p.done, Reader::new(tiles.family, operand, vec![0.into()]));
        }
    }
}

/// Scratch between two GEMMs.
fn scratch(t: &mut Tiler<'_>, g: &kernel::Product, rows: &Rows, id: OpId) -> BufId {
    let cols = t.draft.own(&g.out, 1);
    let padded = aligned(g.out.widest(1), g.out.dtype.size_bytes());
    let pitch = (!g.out.tma_rows()).then_some(Expr::Const(padded));
    let shape = vec![rows.shards.into(), rows.capacity.into(), cols];
    let name = format!("hidden{}", number(t.kernel, id));
    t.draft.buffer(&name, Space::Scratch, g.out.dtype, shape, pitch)
}

/// A GEMM's number among the GEMMs.
fn number(kernel: &Kernel, id: OpId) -> usize {
    kernel.products().take_while(|(other, _)| *other != id).count()
}

fn new_product<'k>(
    t: &mut Tiler<'k>,
    id: OpId,
    g: &'k kernel::Product,
    rows: Rows,
    destination: Destination,
    b: BufId,
) -> Result<Product<'k>, LowerError> {
    let n = t.draft.own(&g.out, 1);
    let a_layout = match t.made.get(g.left) {
        Some(Value::Operand(given)) => match given.left {
            Left::Local(_, layout) => layout,
            Left::ByOwner(_) => ALayout::Km,
            Left::Gathered(_) => ALayout::Mk,
        },
        _ => ALayout::Mk,
    };
    // Scratch and slots are padded; the caller's rows are as they are.
    // Boxes of gates end where ups begin.
    let whole = g.out.widest(1) % PANEL_COLUMNS == 0 && g.out.even(1);
    let rows_fit = g.out.tma_rows() && (whole || !g.halves()) && !g.out.dtype.is_storage();
    let direct = matches!(destination, Destination::Out(_)) && !rows_fit;
    let [m, columns, _] = t.config.block;
    let shifted = operands::shifts(t, g);
    let tile = MmaTile {
        block: [m, columns, mma_step(t.kernel.params[g.b].dtype)],
        stages: t.config.stages_on(t.draft.target, shifted),
        a_layout,
        b_layout: if g.b_transposed { BLayout::Nk } else { BLayout::Kn },
        shifted,
        store: if direct || t.config.cluster > 1 { Store::Direct } else { Store::Tma },
        consumers: t.config.consumers,
        cluster: t.config.cluster,
        multicast: t.config.multicast.map_or([1, 1], |m| [m.below, m.beside]),
        epilogue: g.epilogue.clone(),
    };
    let columns = tile.task_columns() as i32;
    // More than there are is all of them.
    let group = t.config.group_blocks().clamp(1, rows.blocks.max(8) as u32) as i32;
    let result = t.kernel.result_of(id);
    let extra = |x: &Extra| match x {
        Extra::Param(p) => Ok(t.params[*p]),
        Extra::Arriving => {
            let factors = match &t.kernel.ops[g.left] {
                kernel::Op::Operand(operand) => operand.factors,
                _ => None,
            };
            let own = factors.map(|p| t.params[p]);
            own.ok_or_else(|| internal(format!("operation {id} has no gathered factors")))
        }
        Extra::Result(r) => Ok(t.results[*r]),
        // Only grouped GEMMs read what others quantise.
        Extra::OwnFactors => Err(internal(format!("operation {id} has factors of its own"))),
        Extra::OwnHalf => {
            let own = result.and_then(|r| t.results.get(r)).copied();
            own.ok_or_else(|| internal(format!("operation {id} is no result, and has halves")))
        }
    };
    let extras = g.extras.iter().map(extra).collect::<Result<_, _>>()?;
    let name = match t.kernel.products().count() {
        1 => "gemm".into(),
        _ => format!("gemm{}", number(t.kernel, id)),
    };
    Ok(Product {
        own: Some(rows.own()),
        g,
        name,
        tile,
        rows,
        group,
        k: t.depth(g)?,
        n,
        col_blocks: (g.out.widest(1) + columns - 1) / columns,
        b,
        extras,
        destination,
        cut: None,
        half: None,
        by_shard: t.gathered(g).is_some_and(|g| g.by_shard),
    })
}

/// The words of a GEMM's blocks of rows, which the tiles `by` raise.
fn done(draft: &mut Draft, p: &Product<'_>, rows: &Rows, by: Vec<TileRows>) -> FlowId {
    let writer = |by: TileRows| Writer::new(by.family, Operand::C, vec![by.shard, by.block]);
    let from = by.into_iter().map(writer).collect();
    let shape = vec![rows.shards.into(), rows.blocks.into()];
    draft.flow(Flow::new("hidden", shape, p.col_blocks.into(), from))
}

/// A GEMM in scratch that the caller wants, too.
fn copy_out(t: &mut Tiler<'_>, h: &Hidden, out: &Tensor, r: usize, rows: &Rows) {
    let result = t.results[r];
    let block = rows.block(&mut t.draft.extents);
    let cols = (Expr::Const(0), t.draft.own(out, 1));
    let here = (block.at.clone(), block.len.clone());
    let from = vec![(block.shard.clone(), 1.into()), here, cols.clone()];
    let src = read(Operand::Src, h.buffer, from);
    let dst = write(Operand::Dst, result, vec![(rows.global(&block), block.len.clone()), cols]);
    let mut domain = rows.domain(1);
    domain.pop();
    let leaf = CopyVia::Ldst.leaf(1);
    let name = format!("save.{}", out.name);
    let src = Source::behind(src, h.done, vec![block.shard, block.block]);
    t.draft.family(&name, RoleKind::Compute, leaf, domain, vec![], vec![src, dst.into()]);
}

/// A gathered operand that is result `r`.
pub(super) fn collect(
    t: &mut Tiler<'_>,
    id: OpId,
    param: usize,
    r: usize,
) -> Result<(), LowerError> {
    let Some(Value::Operand(given)) = t.made.get(id) else {
        return Err(internal(format!("operation {id} is a result, and no operand")));
    };
    let Given { rows, left, .. } = given.as_ref();
    let gathered = match left {
        Left::Gathered(g) => Some(g),
        Left::Local(..) | Left::ByOwner(_) => None,
    };
    // Through registers: the bulk ring would not fit beside that of the GEMMs.
    let leaf = CopyVia::Ldst.leaf(1);
    let (x, shard, out) = (&t.kernel.params[param], t.params[param], t.results[r]);
    let rows = match gathered {
        Some(_) => rows.unshared(),
        // Of one rank, which has them all: tiles may be by owner along another axis.
        None => Rows::new(&mut t.draft.extents, x, None, rows.height),
    };
    gather::collect(&mut t.draft, x, shard, gathered, out, &rows, &leaf);
    Ok(())
}
