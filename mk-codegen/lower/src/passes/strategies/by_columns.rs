//! An all-reduce whose columns have owners: every rank writes its contributions of a block of columns into the owner's
//! slot, the owner adds the slots in the order of ranks, and pushes the sums to every other rank. As
//! [`two_shot`](super::two_shot), which cuts rows; but the GEMM's rows stay whole, so that few of them are not cut
//! into many blocks that read operand B again each.
//!
//! Assumes tiles of a block's columns. Leaves: `slots`, a symmetric buffer `[world, rows of all shards, n]` of one slot
//! per source rank, of which the owner uses its own columns; `sums`, as large as one slot, which the other owners
//! write; the ordered sum; and the copy from `sums` to the caller's tensor.

use super::deliver;
use super::sum::{Contributions, ReductionTiles, Share, Summed, reduction_tiles, tiles_across};
use crate::passes::{
    draft::{Arrival, Draft, Flow, FlowId, Source, TileRows, Writer, read, write},
    shape::{
        ranks::{RankGroup, block_rows},
        rows::{RowBlock, Rows},
        tensor::Tensor,
    },
};
use crate::settings::Config;
use mk_plan::{Access, BufId, CopyVia, Each, Expr, FamId, Operand, RoleKind, Space, Var};

/// Rows that are copied at once, at most: where more are left, CTAs have several copies.
const MOST_ROWS: i32 = 256;

/// Column block `j` of a result belongs to place `j % ranks` of a group, as its block `j / ranks`.
#[derive(Clone, Copy)]
pub(in crate::passes) struct Columns {
    slots: BufId,
    group: RankGroup,
    /// Columns of a block.
    width: i32,
    /// Blocks.
    across: i32,
}

impl Columns {
    /// Shares out the columns of a result, in blocks of `width`. Slots are as wide as the result: rows are few, and the
    /// last block ends where the buffer does, as a tile that TMA clips must.
    pub fn new(
        draft: &mut Draft,
        out: &Tensor,
        rows: &Rows,
        group: RankGroup,
        width: i32,
    ) -> Columns {
        let across = tiles_across(out, width);
        let shape = vec![group.size.into(), all(rows), draft.own(out, 1)];
        let slots = draft.buffer("slots", Space::Workspace, out.dtype, shape, out.padded_pitch());
        Columns { slots, group, width, across }
    }

    /// Blocks that a rank has, at most.
    fn mine(&self) -> i32 {
        (self.across + self.group.size - 1) / self.group.size
    }

    /// Whether there is a block of this number: ranks have one less than others where their blocks are not as many.
    fn exists(&self, block: &Expr) -> Option<Expr> {
        (self.across % self.group.size != 0).then(|| block.clone().lt(self.across))
    }

    /// What a task of the GEMM, or of its fold, writes: its tile, to the owner of the columns.
    pub fn write(
        &self,
        operand: Operand,
        rows: &Rows,
        r: &RowBlock,
        columns: (Expr, Expr),
    ) -> Access {
        let here =
            vec![(self.group.place(), 1.into()), (rows.in_covered(r), r.len.clone()), columns];
        Access {
            rank: self.group.rank_of(rows.column() % self.group.size),
            ..write(operand, self.slots, here)
        }
    }

    /// Adds up the slots, and brings every rank the others' sums.
    pub fn sum(&self, draft: &mut Draft, config: &Config, of: &Summed<'_>, from: Contributions) {
        let (out, result) = (of.out, of.result);
        let Contributions { rows, block, by, operand, .. } = from;
        debug_assert_eq!(block[1], self.width, "a block of columns is a tile's");
        let ReductionTiles { kind, tile, per_block, .. } =
            reduction_tiles(draft, config.reduction, Share::One, self.mine(), &rows, block, 1);
        let blocks = rows.blocks;
        let rows = rows.in_blocks(tile[0]);
        let r = rows.block(&mut draft.extents);
        let n = draft.own(out, 1);
        // Block `c` of the own ones.
        let c = rows.column();
        let j = c.clone() * self.group.size + self.group.place();
        let columns = (j.clone() * self.width, block_rows(n.clone(), j.clone(), self.width));
        let here = (rows.in_covered(&r), r.len.clone());
        let each = Each { var: "q".into(), extent: self.group.size.into() };
        let source = vec![(Var::EACH.into(), 1.into()), here.clone(), columns.clone()];
        let src = Access { each: Some(each), ..read(Operand::Src, self.slots, source) };
        let region = vec![(rows.global(&r), r.len.clone()), columns.clone()];
        let shape = vec![all(&rows), n];
        let finished = draft.buffer("sums", Space::Workspace, out.dtype, shape, out.padded_pitch());
        let post = |x: TileRows| {
            let j = Expr::from(Var::domain(draft.plan.families[x.family].domain.len() - 1));
            Writer::new(
                x.family,
                operand,
                vec![self.group.place(), x.shard, x.block, j.clone() / self.group.size],
            )
            .on(self.group.rank_of(j % self.group.size))
        };
        let from = by.into_iter().map(post).collect();
        let shape =
            vec![self.group.size.into(), rows.shards.into(), blocks.into(), self.mine().into()];
        let partial = draft.flow(Flow::new("partial", shape, 1.into(), from));
        let word = vec![Var::EACH.into(), r.shard, r.block / per_block, c];
        let mut touched = vec![self.source(src, partial, word, &j)];
        touched.extend(of.makes(region).into_iter().map(Source::from));
        let sums = write(Operand::Dst, finished, vec![here, columns]);
        touched.push(deliver::to_peers(sums, self.group).into());
        let domain = rows.domain(self.mine());
        let family = draft.family("reduce", kind, of.leaf(), domain, vec![], touched);
        self.collect(draft, out, result, (finished, family), &rows, kind);
    }

    /// Every rank copies the sums of its peers, after the GEMMs in tiles as flat as they are summed in, or as one
    /// wave of CTAs takes; beside them in tall ones.
    fn collect(
        &self,
        draft: &mut Draft,
        out: &Tensor,
        result: BufId,
        (finished, reduce): (BufId, FamId),
        summed: &Rows,
        kind: RoleKind,
    ) {
        // CTAs that do nothing else are few.
        let sms = match kind {
            RoleKind::Compute => draft.sms(),
            _ => 1,
        };
        let side_by_side = i64::from(summed.count * (self.group.size - 1)) * i64::from(self.mine());
        let copies = |height| i64::from(summed.in_blocks(height).walked) * side_by_side;
        let mut height = summed.height;
        while copies(height) > sms && height < summed.capacity.min(MOST_ROWS) {
            height *= 2;
        }
        let per_copy = height / summed.height;
        let rows = summed.in_blocks(height);
        let r = rows.block(&mut draft.extents);
        let n = draft.own(out, 1);
        let peer = self.group.place_after(Expr::from(Var::domain(r.loops)) + 1);
        let c = Expr::from(Var::domain(r.loops + 1));
        let j = c.clone() * self.group.size + peer.clone();
        let columns = (j.clone() * self.width, block_rows(n, j.clone(), self.width));
        let here = vec![(rows.in_covered(&r), r.len.clone()), columns.clone()];
        let src = read(Operand::Src, finished, here);
        let to = vec![(rows.global(&r), r.len.clone()), columns];
        let mut domain = rows.domain(self.mine());
        domain.insert(r.loops, ("p", (self.group.size - 1).into()));
        let leaf = CopyVia::Ldst.leaf(1);
        let own = summed.block(&mut draft.extents);
        let mine = summed.column();
        let tiles = match per_copy {
            1 => 1.into(),
            n => Expr::Const(n).min(Expr::Const(summed.walked) - r.block.clone() * n),
        };
        let word = vec![self.group.place(), own.shard, own.block / per_copy, mine.clone()];
        let added = Writer::new(reduce, Operand::Dst, word)
            .on_each(self.group.every_peer())
            .when(self.exists(&(mine * self.group.size + self.group.place())));
        let shape = vec![
            self.group.size.into(),
            rows.shards.into(),
            rows.blocks.into(),
            self.mine().into(),
        ];
        let summed = draft.flow(Flow::new("summed", shape, tiles, vec![added]));
        let src = self.source(src, summed, vec![peer, r.shard, r.block, c], &j);
        let touched = vec![src, write(Operand::Dst, result, to).into()];
        draft.family("collect", kind, leaf, domain, vec![], touched);
    }

    /// What is read of column block `j`, if it exists.
    fn source(&self, access: Access, flow: FlowId, word: Vec<Expr>, j: &Expr) -> Source {
        let arrival = Arrival { when: self.exists(j), ..Arrival::new(flow, word) };
        Source { access, arrivals: vec![arrival] }
    }
}

/// Rows of all shards.
fn all(rows: &Rows) -> Expr {
    (rows.shards * rows.covered()).into()
}
