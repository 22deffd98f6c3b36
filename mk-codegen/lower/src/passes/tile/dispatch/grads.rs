//! Gradients of rows of an activation that have weights behind it, row by row: of blocks whose gradients without
//! weights a GEMM has made.

use super::{BLOCK, CHUNK, Dispatch, RowWeights, of_all, one, whole};
use crate::passes::{
    draft::{Arrival, Draft, Flow, Source, Writer, read, write},
    shape::grouped::Grads,
    tile::blocks::{Blocks, MadeBlocks, Slots},
};
use mk_abi::DType;
use mk_plan::{Access, BufId, Expr, Leaf, Operand, Point, RoleKind, Space, SwigluGradTile, Var};

impl Dispatch<'_> {
    /// Finds the weights of rows: before a GEMM of these, which leaves time for it.
    pub fn weigh_rows(&mut self, draft: &mut Draft, blocks: Blocks, weights: usize) -> RowWeights {
        let sources = self.sources_of(draft, blocks);
        let slots = self.slots_of(draft, blocks, sources);
        let (of, given) = (&self.params[weights], self.inputs[weights]);
        let all = of_all(draft, ["row_weights", "row_weighed"], of, given, self.chunks);
        let found = RowWeights { sources, slots, all };
        self.row_weights = Some(found);
        found
    }

    /// Their family: into results, or memory of its own, of which one number of each row is for its weight.
    pub fn grads(
        &mut self,
        draft: &mut Draft,
        grads: &Grads,
        made: &MadeBlocks,
        blocks: Blocks,
    ) -> MadeBlocks {
        let RowWeights { sources, slots, all: (weights, weighed) } =
            self.row_weights.unwrap_or_else(|| self.weigh_rows(draft, blocks, grads.weights));
        let columns = grads.out.widest(2);
        let rows = self.count * BLOCK;
        let memory = |draft: &mut Draft, name: &str, result: Option<usize>, shape: &[i32]| {
            let shape = shape.iter().map(|n| Expr::from(*n)).collect();
            match result {
                Some(r) => self.results[r],
                None => draft.buffer(name, Space::Scratch, grads.out.dtype, shape, None),
            }
        };
        let out = memory(draft, "grads", grads.result, &[rows, 2, columns]);
        let rows_weighed = memory(draft, "weighed_rows", grads.weighed, &[rows, columns]);
        // Ranks of tokens read what is for the weights.
        let space = if self.sums_alone(draft) { Space::Scratch } else { Space::Workspace };
        let of_slots =
            draft.buffer("row_products", space, DType::F32, vec![rows.into(), 1.into()], None);
        let b = Expr::from(Var::domain(0));
        let row = b.clone() * BLOCK + Var::INNER;
        let exists =
            Expr::from(Var::INNER).lt(Expr::Table(blocks.table, vec![b.clone(), 1.into()]));
        let inner =
            |access: Access| Access { at: Point::Inner, when: Some(exists.clone()), ..access };
        let on_row = |with: &[(Expr, Expr)]| [&[one(row.clone())], with].concat();
        let halves = [whole(2), whole(columns)];
        let reads = |operand, from: BufId, with: &[(Expr, Expr)]| {
            Source::from(inner(read(operand, from, on_row(with))))
        };
        let writes = |operand, to: BufId, with: &[(Expr, Expr)]| {
            Source::from(inner(write(operand, to, on_row(with))))
        };
        let token = Expr::Table(sources.table, vec![row.clone()]);
        let slot = Expr::Table(slots.table, vec![row.clone()]);
        let weight = inner(read(Operand::W, weights, vec![one(token.clone()), one(slot)]));
        let word = token.clone() / self.tokens * self.chunks.max(1) + token % self.tokens / CHUNK;
        let weight = match weighed {
            Some(weighed) => Source::behind(weight, weighed, vec![word]),
            None => weight.into(),
        };
        let of_block = vec![(b.clone() * BLOCK, Expr::Const(BLOCK))];
        let entry = read(Operand::Tab, blocks.memory, vec![one(b.clone()), whole(2)]);
        let tables =
            [sources.memory, slots.memory].map(|t| read(Operand::Tab, t, of_block.clone()));
        let [tokens_of, slots_of] = tables;
        let touched = vec![
            // The table was made before the rows were.
            Source { access: entry, arrivals: vec![Arrival::new(made.done, vec![b.clone()])] },
            tokens_of.into(),
            Source::behind(slots_of, slots.built, vec![0.into()]),
            reads(Operand::Src, made.buffer, &[whole(columns)]),
            reads(Operand::E0, self.inputs[grads.gates], &halves),
            weight,
            writes(Operand::Dst, out, &halves),
            writes(Operand::E1, rows_weighed, &[whole(columns)]),
            writes(Operand::E2, of_slots, &[whole(1)]),
        ];
        let (domain, leaf) = (vec![("b", self.count.into())], Leaf::SwigluGradTile(SwigluGradTile));
        let family = draft.family("grads", RoleKind::Compute, leaf, domain, vec![], touched);
        draft.plan.families[family].inner = Some(("q".into(), BLOCK.into()));
        let done = Writer::new(family, Operand::Dst, vec![b]);
        let done = draft.flow(Flow::new("graded", vec![self.count.into()], 1.into(), vec![done]));
        let slots = Some(Slots { of_rows: of_slots, family });
        MadeBlocks { buffer: out, factors: None, done, family, tiles: 1, slots }
    }
}
