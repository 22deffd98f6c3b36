//! A collective that is the whole pipeline.

use crate::passes::{
    draft::{Draft, TileRows, read},
    error::{LowerError, internal},
    shape::{
        kernel::{Kernel, Op, Operand as Given, Sum},
        ranks::block_rows,
        rows::Rows,
    },
    strategies::{
        destination::Destination,
        gather,
        sum::{Summands, Summed},
        two_level, two_shot,
    },
};
use crate::settings::{Config, Reduction};
use mk_plan::target::Target;
use mk_plan::{CopyVia, Leaf, Operand, RoleKind, Space};

/// The families of a kernel without products.
///
/// # Errors
/// [`LowerError::Internal`] for one that is neither a gather nor a sum of an operand.
pub(super) fn families(
    kernel: &Kernel,
    config: &Config,
    target: &'static Target,
) -> Result<Draft, LowerError> {
    let draft = Draft::new(&kernel.name, &kernel.axis, config, target);
    let operand = |op: usize| match &kernel.ops[op] {
        Op::Operand(operand) => Ok(operand),
        _ => Err(internal("a collective alone is not of an operand")),
    };
    if let Some((_, sum)) = kernel.sums().next() {
        return Ok(reduce(draft, kernel, sum, operand(sum.of)?, config));
    }
    match kernel.results.first().and_then(|r| r.of) {
        Some(of) => Ok(collect(draft, kernel, operand(of)?, config)),
        None => Err(internal("a kernel without products has no result")),
    }
}

/// A gather: rows that arrive are copied on to the caller's tensor.
fn collect(mut draft: Draft, kernel: &Kernel, operand: &Given, config: &Config) -> Draft {
    let x = &kernel.params[operand.param];
    let world = draft.world();
    let shard = draft.tensor(x, Space::In);
    let out = draft.tensor(&kernel.results[0].out, Space::Out);
    let rows = Rows::new(&mut draft.extents, x, world > 1, 128);
    let g = (world > 1).then(|| gather::push(&mut draft, x, shard, &rows, None, config));
    let leaf = gather::copy_leaf(x.in_bulk(), config);
    gather::collect(&mut draft, x, shard, g.as_ref(), out, &rows, &leaf);
    draft
}

/// A sum: each rank copies its summands to their owners.
fn reduce(mut draft: Draft, kernel: &Kernel, sum: &Sum, operand: &Given, config: &Config) -> Draft {
    const BLOCK: [i32; 2] = [128, 256];
    let params: Vec<_> = kernel.params.iter().map(|t| draft.tensor(t, Space::In)).collect();
    let result = draft.tensor(&kernel.results[0].out, Space::Out);
    let of = Summed::new(kernel, sum, &params, &[result]);
    let (x, from) = (&kernel.params[operand.param], params[operand.param]);
    let rows = Rows::new(&mut draft.extents, x, true, BLOCK[0]).peers_first();
    let col_blocks = (x.shape[1].value + BLOCK[1] - 1) / BLOCK[1];
    let nodes = draft.nodes();
    let to = match nodes.count() {
        1 => Destination::Slots(two_shot::slots(&mut draft, &of.summand, &rows)),
        _ => Destination::NodeSlots(two_level::slots(&mut draft, &of.summand, &rows), nodes),
    };
    let n = draft.dim(&x.shape[1]);
    let r = rows.block(&mut draft.extents);
    let j = rows.column();
    let columns = (j.clone() * BLOCK[1], block_rows(n, j, BLOCK[1]));
    let src = read(Operand::Src, from, vec![(rows.global(&r), r.len.clone()), columns.clone()]);
    let mut touched = vec![src];
    touched.extend(to.writes(Operand::Dst, &rows, &r, columns));
    let leaf = Leaf::CopyTile { via: CopyVia::Ldst, stages: 1 };
    let domain = rows.domain(col_blocks);
    let push = draft.family("scatter", RoleKind::Compute, leaf, domain, vec![], touched);
    let by = vec![TileRows { family: push, shard: r.shard, block: r.block }];
    let from = Summands { rows, block: BLOCK, together: 1, by, operand: Operand::Dst };
    let beside = Config { reduction: Reduction::DedicatedSms, ..config.clone() };
    match to {
        Destination::NodeSlots(slots, _) => {
            two_level::sum(&mut draft, &beside, sum.how, &of, slots, from);
        }
        Destination::Slots(slots) => two_shot::sum(&mut draft, &beside, sum.how, &of, slots, from),
        // Made above.
        _ => {}
    }
    draft
}
