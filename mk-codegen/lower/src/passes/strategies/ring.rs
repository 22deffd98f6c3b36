//! A `reduce_scatter` in a ring: a sum goes from rank to rank, each adds its tile in the epilogue and passes it on, and
//! the owner of the rows is the last.
//!
//! Leaves: `passed`, a symmetric buffer `[hops, rows, n]` that the next rank goes on with, and a flow per tile. No
//! separate reduction.

use crate::passes::{
    draft::{Draft, Flow, Reader, TileRows, Writer, read, write},
    shape::{
        ranks::RankGroup,
        rows::{RowBlock, Rows},
        tensor::Tensor,
    },
};
use mk_plan::{Access, BinOp, BufId, Expr, Operand, Point, Space, Var};

/// Sums that tiles go on with.
#[derive(Clone, Copy)]
pub(in crate::passes) struct Ring {
    /// `[hops, rows, n]`: the sums so far, with which the rank before goes on.
    pub passed: BufId,
    /// `[rows, n]` of this rank: the finished sums, the caller's.
    pub last: BufId,
}

impl Ring {
    /// The rank that adds next to a tile.
    pub fn next(&self, group: RankGroup) -> Expr {
        group.rank_after((group.size - 1).into())
    }

    /// The writes of a tile: to the next rank, or where the hop is the last, to the caller.
    pub fn writes(
        &self,
        operand: Operand,
        rows: &Rows,
        r: &RowBlock,
        columns: (Expr, Expr),
    ) -> Vec<Access> {
        let (hop, world, here) = (rows.hop(), rows.shards, (r.at.clone(), r.len.clone()));
        let region = vec![(hop.clone(), 1.into()), here.clone(), columns.clone()];
        let passed = Access {
            rank: self.next(rows.group),
            when: Some(hop.clone().lt(world - 1)),
            ..write(operand, self.passed, region)
        };
        let last = Access {
            when: Some(hop.equals(world - 1)),
            ..write(operand, self.last, vec![here, columns])
        };
        vec![passed, last]
    }

    /// The sum so far with which a tile goes on: none at the first hop. It comes at the start, before iteration `late`
    /// of the inner loop, or at the end, behind elementwise operations.
    pub fn carried(
        &self,
        rows: &Rows,
        r: &RowBlock,
        columns: (Expr, Expr),
        late: Option<i32>,
        behind_epilogue: bool,
    ) -> Access {
        let hop = rows.hop();
        let (at, when) = match late {
            _ if behind_epilogue => (Point::End, None),
            Some(q) => (Point::Inner, Some(Expr::from(Var::INNER).equals(q))),
            None => (Point::Start, None),
        };
        let len = hop.clone().equals(0).select(0, r.len.clone());
        let region = vec![((hop - 1).max(0), 1.into()), (r.at.clone(), len), columns];
        Access { at, when, ..read(Operand::AccIn, self.passed, region) }
    }
}

/// Where sums are on their way from rank to rank.
pub(in crate::passes) fn ring(draft: &mut Draft, out: &Tensor, rows: &Rows, result: BufId) -> Ring {
    let hops = rows.group.size - 1;
    let shape = vec![hops.into(), rows.capacity.into(), draft.own(out, 1)];
    let passed = draft.buffer("passed", Space::Workspace, out.dtype, shape, out.padded_pitch());
    Ring { passed, last: result }
}

/// Hands sums on to the rank before. A tile waits for the sum so far at its start, or before iteration `late` of its
/// inner loop. The last loop variable of the family `adding` is the column block, of which there are `across`.
pub(in crate::passes) fn hand_on(
    draft: &mut Draft,
    ring: Ring,
    rows: &Rows,
    adding: &TileRows,
    across: i32,
    late: Option<i32>,
) {
    let world = rows.group.size;
    let (hop, j) = (rows.hop(), rows.column());
    let word = |hop: Expr| vec![hop, adding.block.clone(), j.clone()];
    let passed = Expr::Const(0).lt(hop.clone());
    let when = match late {
        Some(q) => Expr::bin(BinOp::And, passed, Expr::from(Var::INNER).equals(q)),
        None => passed,
    };
    let shape = vec![(world - 1).into(), rows.blocks.into(), across.into()];
    let added = Writer::new(adding.family, Operand::C, word(hop.clone()))
        .on(ring.next(rows.group))
        .when(Some(hop.clone().lt(world - 1)));
    let passed = draft.flow(Flow::new("passed", shape, 1.into(), vec![added]));
    let next = Reader::new(adding.family, Operand::AccIn, word((hop - 1).max(0)));
    draft.read(passed, next.when(Some(when)));
}
