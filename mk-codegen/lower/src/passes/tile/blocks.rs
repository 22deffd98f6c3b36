//! The table of blocks of ragged rows: whose rows each has, and how many. One task makes it from the rows of each
//! expert, in the launch.

use crate::passes::{
    draft::{Draft, FlowId, Source, read, write},
    shape::grouped::Ragged,
};
use mk_plan::{BufId, Expr, FamId, Leaf, Operand, Space, TabId, TableSource, Tabulate, Tabulation};
use mk_syntax::RAGGED_BLOCK;

/// Rows of a block.
pub(in crate::passes) const BLOCK: i32 = RAGGED_BLOCK as i32;

/// A table of blocks in memory, and the flow that says that it is there.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub table: TabId,
    pub memory: BufId,
    pub count: i32,
    pub built: FlowId,
    /// Rows of each expert: their table, and its memory.
    pub counts: (TabId, BufId),
}

/// Where the rows of each expert begin: a table in memory.
#[derive(Clone, Copy)]
pub(super) struct Begins {
    pub table: TabId,
    pub memory: BufId,
    pub built: FlowId,
}

/// Has a task fill in where the rows of each expert begin, behind all blocks.
pub(super) fn begins(draft: &mut Draft, blocks: Blocks) -> Begins {
    let (counts, given) = blocks.counts;
    let experts = draft.plan.tables[counts].shape[0] as i32;
    let source = TableSource::Prefix { of: counts, align: BLOCK };
    let (table, memory) = draft.table("begins", &[experts + 1], source, None);
    let whole = |n: i32| vec![(Expr::Const(0), Expr::Const(n))];
    let src = read(Operand::Src, given, whole(experts));
    // More rows than there is room for end the launch where blocks are made.
    let src = match draft.plan.buffers[given].space {
        Space::In => src.into(),
        _ => Source::behind(src, blocks.built, vec![0.into()]),
    };
    let touched = vec![src, write(Operand::Dst, memory, whole(experts + 1)).into()];
    let leaf = Leaf::Tabulate(Tabulate { of: Tabulation::Begins { rows: BLOCK as u32 } });
    let one = vec![("i", 1.into())];
    let built = draft.filled(("begins", "begun"), leaf, one, 1.into(), touched);
    Begins { table, memory, built }
}

/// The table of blocks, from the rows of each expert that the caller gives.
pub(super) fn blocks(
    draft: &mut Draft,
    ragged: &Ragged,
    (given, counts): (TabId, BufId),
) -> Blocks {
    let rows = ragged.rows.widest(0);
    let experts = draft.plan.tables[given].shape[0] as i32;
    let count = rows / BLOCK;
    let source = TableSource::Blocks { of: given, rows: BLOCK };
    let (table, memory) = draft.table("blocks", &[count, 2], source, None);
    let whole = |n: i32| (Expr::Const(0), Expr::Const(n));
    let touched = vec![
        read(Operand::Src, counts, vec![whole(experts)]),
        write(Operand::Dst, memory, vec![whole(count), whole(2)]),
    ];
    let leaf = Leaf::Tabulate(Tabulate { of: Tabulation::Blocks { rows: BLOCK as u32 } });
    let one = vec![("i", 1.into())];
    let built = draft.filled(("blocks", "built"), leaf, one, 1.into(), touched);
    Blocks { table, memory, count, built, counts: (given, counts) }
}

/// Blocks of rows that a grouped GEMM writes.
#[derive(Clone, Copy)]
pub(super) struct MadeBlocks {
    pub buffer: BufId,
    /// Factors of these, if they are quantised for the next GEMM.
    pub factors: Option<BufId>,
    /// The words of blocks.
    pub done: FlowId,
    pub family: FamId,
    /// Tiles of a block.
    pub tiles: i32,
    /// What was made of each row for its weight.
    pub slots: Option<Slots>,
}

/// A number `[rows, 1]` of each row, which a family writes.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    pub of_rows: BufId,
    pub family: FamId,
}
