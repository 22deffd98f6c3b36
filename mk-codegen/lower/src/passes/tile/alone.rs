//! Collectives of what no GEMM multiplies, or makes.

use super::tiler::{Tiler, Value};
use crate::passes::{
    draft::read,
    shape::{
        ids::OpId,
        kernel::{Op, Operand as Given, Sum},
        ranks::block_rows,
        rows::Rows,
    },
    strategies::{
        destination::Destination,
        gather,
        sum::{Contributions, Summed, tiles_across},
    },
};
use crate::settings::{Config, Reduction};
use mk_plan::{CopyVia, Operand, RoleKind};

/// A gather that is a result: rows that arrive are copied on to the caller's tensor.
pub(super) fn gather<'k>(t: &mut Tiler<'k>, id: OpId, operand: Given) -> Value<'k> {
    let Some(result) = t.kernel.result_of(id) else { return Value::Result };
    let (x, shard) = (&t.kernel.params[operand.param], t.params[operand.param]);
    let (out, config, draft) = (t.results[result], t.config, &mut t.draft);
    let axis = operand.gathered.filter(|axis| draft.along(*axis).group.size > 1);
    let rows = Rows::new(&mut draft.extents, x, axis, 128);
    let g = axis.is_some().then(|| gather::push(draft, x, shard, &rows, (None, None), config));
    let leaf = gather::copy_leaf(x.in_bulk(), config);
    gather::collect(draft, x, shard, g.as_ref(), out, &rows, &leaf);
    Value::Result
}

/// A sum of an operand: each rank copies its contributions to their owners. That of a GEMM is made where it is added
/// up.
pub(super) fn reduce<'k>(t: &mut Tiler<'k>, sum: &Sum) -> Value<'k> {
    const BLOCK: [i32; 2] = [128, 256];
    let Op::Operand(operand) = &t.kernel.ops[sum.of] else { return Value::Result };
    let of = Summed::new(t.kernel, sum, &t.params, &t.results);
    let (x, from) = (&t.kernel.params[operand.param], t.params[operand.param]);
    let (draft, config) = (&mut t.draft, t.config);
    let own = x.on_own_rows(sum.axis);
    let rows = Rows::new(&mut draft.extents, &own, Some(sum.axis), BLOCK[0]).peers_first();
    let col_blocks = tiles_across(x, BLOCK[1]);
    let to = Destination::slots(draft, &of.contribution, &rows);
    let n = draft.own(x, 1);
    let r = rows.block(&mut draft.extents);
    let j = rows.column();
    let columns = (j.clone() * BLOCK[1], block_rows(n, j, BLOCK[1]));
    let src = read(Operand::Src, from, vec![(rows.global(&r), r.len.clone()), columns.clone()]);
    let mut touched = vec![src];
    touched.extend(to.writes(Operand::Dst, &rows, &r, columns));
    let leaf = CopyVia::Ldst.leaf(1);
    let domain = rows.domain(col_blocks);
    let push = draft.family("scatter", RoleKind::Compute, leaf, domain, vec![], touched);
    let by = vec![to.made(push, &rows, &r)];
    let from = Contributions { rows, block: BLOCK, together: 1, by, operand: Operand::Dst };
    let beside = Config { reduction: Reduction::DedicatedSms, ..config.clone() };
    to.add_up(draft, &beside, sum.how, &of, from);
    Value::Result
}
