//! The table of blocks of ragged rows: whose rows each has, and how many. One task makes it from the rows of each
//! expert, in the launch.

use crate::passes::{
    draft::{Draft, Flow, FlowId, Source, Writer, read, write},
    shape::grouped::Ragged,
};
use mk_abi::DType;
use mk_plan::{
    BufId, Expr, FamId, Leaf, Operand, RoleKind, Space, TabId, Table, TableSource, Tabulate,
    Tabulation,
};
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
    let shape = vec![(experts + 1).into()];
    let memory = draft.buffer("begins", Space::Scratch, DType::I32, shape, None);
    let table = draft.plan.tables.push(Table {
        name: "begins".into(),
        shape: vec![experts as u32 + 1],
        source: TableSource::Prefix { of: counts, align: BLOCK },
        stored: Some(memory),
        routed: None,
    });
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
    let family = draft.family("begins", RoleKind::Compute, leaf, one, vec![], touched);
    let begun = Writer::new(family, Operand::Dst, vec![0.into()]);
    let built = draft.flow(Flow::new("begun", vec![1.into()], 1.into(), vec![begun]));
    Begins { table, memory, built }
}

/// A table of blocks of the rows of a table of groups, in memory that a task is to fill.
pub(super) fn table(draft: &mut Draft, of: TabId, count: i32) -> (TabId, BufId) {
    let shape = vec![count.into(), 2.into()];
    let memory = draft.buffer("blocks", Space::Scratch, DType::I32, shape, None);
    let table = draft.plan.tables.push(Table {
        name: "blocks".into(),
        shape: vec![count as u32, 2],
        source: TableSource::Blocks { of, rows: BLOCK },
        stored: Some(memory),
        routed: None,
    });
    (table, memory)
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
    let (table, memory) = table(draft, given, count);
    let whole = |n: i32| (Expr::Const(0), Expr::Const(n));
    let touched = vec![
        read(Operand::Src, counts, vec![whole(experts)]),
        write(Operand::Dst, memory, vec![whole(count), whole(2)]),
    ];
    let leaf = Leaf::Tabulate(Tabulate { of: Tabulation::Blocks { rows: BLOCK as u32 } });
    let one = vec![("i", 1.into())];
    let family = draft.family("blocks", RoleKind::Compute, leaf, one, vec![], touched);
    let built = Writer::new(family, Operand::Dst, vec![0.into()]);
    let built = draft.flow(Flow::new("built", vec![1.into()], 1.into(), vec![built]));
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
