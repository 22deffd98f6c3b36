//! Where the tiles of a GEMM go.

use super::{
    by_columns::Columns,
    one_shot,
    ring::Ring,
    sum::{Contributions, Summed},
    two_level, two_shot,
};
use crate::passes::{
    draft::{Draft, TileRows, write},
    shape::{
        ids::Reduce,
        ranks::Nodes,
        rows::{RowBlock, Rows},
        tensor::Tensor,
    },
};
use crate::settings::Config;
use mk_plan::{Access, BufId, Expr, FamId, Operand};

/// Where a GEMM goes.
#[derive(Clone, Copy)]
pub(in crate::passes) enum Destination {
    /// `[rows, n]` of the caller.
    Out(BufId),
    /// `[shards, rows, n]` in scratch, for the next product.
    Hidden(BufId),
    /// `[world, rows, n]` on the owner of the rows, which adds the slots: see [`two_shot`](super::two_shot).
    Slots(BufId),
    /// `[nodes, local, rows, n]` on the rank of the owner's place in this node: see [`two_level`](super::two_level).
    NodeSlots(BufId, Nodes),
    /// `[shards, rows, n]` of this rank, for every rank to read: see [`one_shot`](super::one_shot).
    Parts(BufId),
    /// Slots on the owner of the columns: see [`by_columns`](super::by_columns).
    Columns(Columns),
    /// The next rank: see [`ring`](super::ring).
    Ring(Ring),
}

impl Destination {
    /// Slots for contributions of rows that have owners.
    pub fn slots(draft: &mut Draft, out: &Tensor, rows: &Rows) -> Destination {
        let nodes = draft.along(rows.by_others().axis);
        match nodes.count() {
            1 => Destination::Slots(two_shot::slots(draft, out, rows)),
            _ => Destination::NodeSlots(two_level::slots(draft, nodes, out, rows), nodes),
        }
    }

    /// Adds the contributions that lie there.
    pub fn add_up(
        self,
        draft: &mut Draft,
        config: &Config,
        how: Reduce,
        of: &Summed<'_>,
        tiles: Contributions,
    ) {
        match self {
            Destination::Slots(slots) => two_shot::sum(draft, config, how, of, slots, tiles),
            Destination::NodeSlots(slots, _) => {
                two_level::sum(draft, config, how, of, slots, tiles);
            }
            Destination::Parts(parts) => one_shot::pull(draft, config, of, parts, tiles),
            Destination::Columns(columns) => columns.sum(draft, config, of, tiles),
            // Summed in the epilogue, or by one rank.
            Destination::Ring(_) | Destination::Out(_) | Destination::Hidden(_) => {}
        }
    }

    /// The writes of some columns of a block of rows, to this rank's slot where there are slots; of several, one
    /// happens.
    pub fn writes(
        self,
        operand: Operand,
        rows: &Rows,
        r: &RowBlock,
        columns: (Expr, Expr),
    ) -> Vec<Access> {
        let here = (r.at.clone(), r.len.clone());
        match self {
            Destination::Out(out) => {
                vec![write(operand, out, vec![(rows.global(r), r.len.clone()), columns])]
            }
            Destination::Hidden(b) | Destination::Parts(b) => {
                vec![write(operand, b, vec![(r.shard.clone(), 1.into()), here, columns])]
            }
            Destination::Slots(slots) => {
                let group = rows.by_others().group;
                let (owned, _) = rows.owned(r);
                let here = vec![(group.place(), 1.into()), (owned.at, owned.len), columns];
                vec![Access { rank: group.rank_of(owned.shard), ..write(operand, slots, here) }]
            }
            Destination::NodeSlots(slots, nodes) => {
                let (owned, _) = rows.owned(r);
                let of = (nodes.node_of(owned.shard.clone()), 1.into());
                let place = (nodes.near.place(), 1.into());
                let here = vec![of, place, (owned.at, owned.len), columns];
                let rank = nodes.same_place(owned.shard);
                vec![Access { rank, ..write(operand, slots, here) }]
            }
            Destination::Columns(owned) => vec![owned.write(operand, rows, r, columns)],
            Destination::Ring(ring) => ring.writes(operand, rows, r, columns),
        }
    }

    /// A family whose tasks write there, with the rows by which readers address them.
    pub fn made(self, family: FamId, rows: &Rows, r: &RowBlock) -> TileRows {
        let (r, when) = match self {
            Destination::Slots(_) | Destination::NodeSlots(..) => rows.owned(r),
            _ => (r.clone(), None),
        };
        TileRows { family, shard: r.shard, block: r.block, when }
    }

    /// The order of a GEMM's tiles, of `group` row blocks each `times` times, with `across` in a row.
    pub fn order(self, rows: &Rows, group: i32, across: i32, times: i32) -> Vec<Expr> {
        if let Destination::Ring(_) = self {
            return rows.order_by_hop(group, across);
        }
        let mut order = rows.order(group, across, times);
        if let (Destination::Slots(_), [_, hop, column]) = (self, order.as_mut_slice())
            && rows.count == rows.shards
        {
            // Not always the same owner's, as many CTAs are a multiple of ranks: own tiles take less.
            *hop = (hop.clone() + column.clone()) % rows.count;
        }
        order
    }
}
