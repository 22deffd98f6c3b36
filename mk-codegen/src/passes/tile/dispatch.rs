//! Tokens are copied to rows of their experts, by tables that the launch makes of the experts that each token names.
//!
//! Tasks count the rows of experts, list the tokens of each block, and copy these. Every write is where the block is: tables only decide which
//! tokens are read, and how many rows there are.

use super::grouped::{BLOCK, Blocks, Counts, Hidden};
use crate::ir::{
    Access, BufId, COUNTED, CopyVia, Each, Expr, Leaf, Operand, RoleKind, Space, TabId, Table,
    TableSource, Tabulation, Var, part_of_table,
};
use crate::passes::{
    draft::{Draft, Flow, FlowId, Source, Writer, read, write},
    shape::grouped::Grouped,
};
use mk_abi::DType;

/// Rows that a task copies.
const PIECE: i32 = 16;

/// Tokens, and the experts that they name.
pub(super) struct Dispatch {
    tokens: BufId,
    ids: BufId,
    /// The table of these.
    named: TabId,
    /// How many tokens, and how many experts each has.
    shape: [i32; 2],
    experts: i32,
    width: Expr,
    dtype: DType,
}

/// A table that tasks of the launch list tokens in.
pub(super) struct Listed {
    table: TabId,
    memory: BufId,
    done: FlowId,
}

fn whole(n: i32) -> (Expr, Expr) {
    (0.into(), n.into())
}

impl Dispatch {
    /// Parameters of a pipeline, by number, and their buffers: tokens, and ids.
    pub fn new(draft: &mut Draft, g: &Grouped, of: [(usize, BufId); 2]) -> Dispatch {
        let world = draft.world();
        let [(tokens, memory), (ids, experts_of)] = of;
        let x = &g.params[tokens];
        let shape = [0, 1].map(|d| g.params[ids].widest(d, world));
        let experts = g.params[g.products[0].b].widest(0, world);
        // A table's extents are numbers.
        draft.plan.buffers[experts_of].shape = shape.map(Expr::from).to_vec();
        let named = draft.plan.tables.push(Table {
            name: "ids".into(),
            shape: shape.map(|n| n as u32).to_vec(),
            source: TableSource::Runtime { min: 0, max: experts - 1 },
            stored: Some(experts_of),
        });
        let width = draft.dim(&x.shape[1]);
        Dispatch { tokens: memory, ids: experts_of, named, shape, experts, width, dtype: x.dtype }
    }

    fn named(&self) -> Access {
        read(Operand::Src, self.ids, self.shape.map(whole).to_vec())
    }

    /// Counts the rows of each expert.
    pub fn count(&self, draft: &mut Draft) -> Counts {
        let experts = self.experts;
        let memory = draft.buffer("counts", Space::Scratch, DType::I32, vec![experts.into()], None);
        let table = draft.plan.tables.push(Table {
            name: "counts".into(),
            shape: vec![experts as u32],
            source: TableSource::Counts { of: self.named },
            stored: Some(memory),
        });
        let part = part_of_table(experts as u32, COUNTED);
        let touched = [self.named(), write(Operand::Dst, memory, vec![part])];
        let leaf = Leaf::Tabulate { of: Tabulation::Counts { groups: experts as u32 } };
        let tasks = (experts as u32).div_ceil(COUNTED) as i32;
        let domain = vec![("i", tasks.into())];
        let family = draft.family("counts", RoleKind::Compute, leaf, domain, vec![], touched);
        let done = Writer::new(family, Operand::Dst, vec![0.into()]);
        let counted = draft.flow(Flow::new("counted", vec![1.into()], tasks.into(), vec![done]));
        Counts { table, memory, experts, counted: Some(counted) }
    }

    /// Lists the tokens of each block.
    pub fn list(&self, draft: &mut Draft, blocks: Blocks) -> Listed {
        let rows = blocks.count * BLOCK;
        let memory =
            draft.buffer("row_tokens", Space::Scratch, DType::I32, vec![rows.into()], None);
        let table = draft.plan.tables.push(Table {
            name: "row_tokens".into(),
            shape: vec![rows as u32],
            source: TableSource::Tokens { of: self.named, blocks: blocks.table },
            stored: Some(memory),
        });
        let all = read(Operand::W, blocks.memory, vec![whole(blocks.count), whole(2)]);
        let part = part_of_table(rows as u32, BLOCK as u32);
        let touched = vec![
            self.named().into(),
            Source::behind(all, blocks.built, vec![0.into()]),
            write(Operand::Dst, memory, vec![part]).into(),
        ];
        let leaf = Leaf::Tabulate { of: Tabulation::Tokens };
        let domain = vec![("b", blocks.count.into())];
        let family = draft.family("list", RoleKind::Compute, leaf, domain, vec![], touched);
        let word = vec![Var::domain(0).into()];
        let done = Writer::new(family, Operand::Dst, word);
        let shape = vec![blocks.count.into()];
        let done = draft.flow(Flow::new("listed", shape, 1.into(), vec![done]));
        Listed { table, memory, done }
    }

    /// Copies the tokens of each block to its rows, some at a time.
    pub fn pull(&self, draft: &mut Draft, blocks: Blocks, listed: Listed) -> Hidden {
        let pieces = BLOCK / PIECE;
        let shape = vec![(blocks.count * BLOCK).into(), self.width.clone()];
        let buffer = draft.buffer("rows", Space::Scratch, self.dtype, shape, None);
        let [b, p] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let count = Expr::Table(blocks.table, vec![b.clone(), 1.into()]);
        let first = p * PIECE;
        let row = b.clone() * BLOCK + first.clone();
        let wide = (Expr::Const(0), self.width.clone());
        let token = Expr::Table(listed.table, vec![row.clone() + Var::EACH]);
        let src = Access {
            each: Some(Each { var: "q".into(), extent: PIECE.into() }),
            when: Some((first.clone() + Var::EACH).lt(count.clone())),
            ..read(Operand::Src, self.tokens, vec![(token, 1.into()), wide.clone()])
        };
        let entry = read(Operand::Tab, blocks.memory, vec![(b.clone(), 1.into()), whole(2)]);
        let tokens = read(Operand::Tab, listed.memory, vec![(row.clone(), PIECE.into())]);
        // Who has listed the tokens has seen the blocks.
        let word = vec![b.clone()];
        let len = (count - first).min(PIECE).max(0);
        let touched = vec![
            Source::behind(tokens, listed.done, word.clone()),
            entry.into(),
            src.into(),
            write(Operand::Dst, buffer, vec![(row, len), wide]).into(),
        ];
        let leaf = Leaf::CopyTile { via: CopyVia::Gather, stages: 1 };
        let domain = vec![("b", blocks.count.into()), ("p", pieces.into())];
        let pull = draft.family("pull", RoleKind::Compute, leaf, domain, vec![], touched);
        let arrived = Writer::new(pull, Operand::Dst, word);
        let shape = vec![blocks.count.into()];
        let done = draft.flow(Flow::new("arrived", shape, pieces.into(), vec![arrived]));
        Hidden { buffer, done }
    }
}
