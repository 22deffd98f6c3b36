//! What all ways to sum have in common: the tiles that are added, the CTAs that add them, and the epilogue of a sum.

use crate::passes::{
    draft::{Draft, TileRows, read, write},
    shape::{
        kernel::{Kernel, Sum},
        ranks::block_rows,
        rows::{RowBlock, Rows},
        tensor::Tensor,
    },
};
use crate::settings::Reduction;
use mk_plan::{
    Access, BufId, EpilogueOp, Expr, Leaf, Operand, ReduceTile, RoleKind, named_operands,
};

/// Rows of the flattest tile of a sum: fewer would not cover the latency of their loads.
const LEAST_ROWS: i32 = 8;

/// Rows of the flattest tile of a sum that shares a CTA with others: a task of fewer would mostly wait.
const SHARED_ROWS: i32 = 32;

/// A result that is summed: before and after, and the epilogue in between.
pub(in crate::passes) struct Summed<'a> {
    /// Of one rank.
    pub contribution: Tensor,
    pub out: &'a Tensor,
    /// The axis summed over.
    pub axis: usize,
    pub result: BufId,
    /// Before sums are rounded.
    pub epilogue: &'a [EpilogueOp],
    /// Operands of that, which lie as the result does.
    pub extras: Vec<BufId>,
}

impl<'a> Summed<'a> {
    /// A sum of a kernel whose parameters and results are these.
    pub fn new(
        kernel: &'a Kernel,
        sum: &'a Sum,
        params: &[BufId],
        results: &[BufId],
    ) -> Summed<'a> {
        Summed {
            contribution: kernel.contribution(sum),
            out: &kernel.results[sum.result].out,
            axis: sum.axis,
            result: results[sum.result],
            epilogue: &sum.epilogue,
            extras: sum.extras.iter().map(|p| params[*p]).collect(),
        }
    }

    pub fn leaf(&self) -> Leaf {
        Leaf::ReduceTile(ReduceTile { epilogue: self.epilogue.to_vec() })
    }

    /// The accesses of a task that makes these rows and columns of the result.
    pub fn makes(&self, region: Vec<(Expr, Expr)>) -> Vec<Access> {
        let mut all = Vec::new();
        for ((op, operand), buffer) in named_operands(self.epilogue).zip(&self.extras) {
            let of = if op == EpilogueOp::Bias { &region[1..] } else { &region[..] };
            all.push(read(operand, *buffer, of.to_vec()));
        }
        all.push(write(Operand::Dst, self.result, region));
        all
    }
}

/// Tiles of contributions, and the families that write them.
pub(in crate::passes) struct Contributions {
    pub rows: Rows,
    /// Rows and columns of a tile.
    pub block: [i32; 2],
    /// Blocks of a shard that are written side by side, column by column.
    pub together: i32,
    pub by: Vec<TileRows>,
    /// The operand that they are written through.
    pub operand: Operand,
}

/// The CTAs that add, and their tiles.
#[derive(Clone, Copy)]
pub(in crate::passes) struct ReductionTiles {
    pub kind: RoleKind,
    /// Rows and columns of a tile.
    pub tile: [i32; 2],
    /// Tiles in a row of tiles.
    pub across: i32,
    /// Tiles in a block of rows of the tiles of contributions.
    pub per_block: i32,
    /// Rows of tiles of a shard that are added up side by side, column by column, as their contributions come.
    pub together: i32,
}

impl ReductionTiles {
    /// The order of tasks over these rows, of `across` in a row.
    pub fn order(&self, rows: &Rows, across: i32) -> Vec<Expr> {
        if self.together == 1 {
            return Vec::new();
        }
        rows.order(self.together * rows.count, across, 1)
    }
}

/// How many sums a CTA that has multiplied should have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::passes) enum Share {
    /// One: what follows, or comes over a link, is best in large pieces.
    One,
    /// Four, two for each of its teams, which are then done at about the same time: in tiles of [`SHARED_ROWS`] or
    /// more.
    Four,
}

/// Sums over tiles of `block`, `across` in a row: beside the GEMMs as they are; after them in flatter ones, until
/// every CTA has its share.
pub(in crate::passes) fn reduction_tiles(
    draft: &Draft,
    reduction: Reduction,
    share: Share,
    across: i32,
    rows: &Rows,
    block: [i32; 2],
    together: i32,
) -> ReductionTiles {
    let mut tile = block;
    let kind = match reduction {
        Reduction::DedicatedSms => RoleKind::IntraComm,
        // A ring needs no separate reduction.
        Reduction::AfterLastWave | Reduction::Ring => {
            let sms = draft.sms();
            // Three quarters of its share will do.
            let wanted = |height| match share {
                Share::Four if height > SHARED_ROWS => 4 * sms * 3 / 4,
                Share::Four | Share::One => sms * 3 / 4,
            };
            let tiles = |height| {
                let blocks = i64::from(rows.in_blocks(height).walked);
                blocks * i64::from(rows.count) * i64::from(across)
            };
            while tile[0] > LEAST_ROWS && tile[0] % 2 == 0 && tiles(tile[0]) < wanted(tile[0]) {
                tile[0] /= 2;
            }
            RoleKind::Compute
        }
    };
    let per_block = block[0] / tile[0];
    let together = match reduction {
        Reduction::DedicatedSms | Reduction::AfterLastWave => together * per_block,
        Reduction::Ring => 1,
    };
    ReductionTiles { kind, tile, across, per_block, together }
}

/// Tiles of so many columns in a row of tiles.
pub(in crate::passes) fn tiles_across(out: &Tensor, width: i32) -> i32 {
    (out.widest(1) + width - 1) / width
}

/// The tile of a task that adds up.
pub(in crate::passes) struct Place {
    pub r: RowBlock,
    /// Column block.
    pub j: Expr,
    pub columns: (Expr, Expr),
}

pub(in crate::passes) fn place(draft: &mut Draft, out: &Tensor, rows: &Rows, width: i32) -> Place {
    let n = draft.own(out, 1);
    let (r, j) = (rows.block(&mut draft.extents), rows.column());
    let columns = (j.clone() * width, block_rows(n, j.clone(), width));
    Place { r, j, columns }
}
