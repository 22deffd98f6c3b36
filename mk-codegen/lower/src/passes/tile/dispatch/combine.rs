//! Rows of experts that go back to their tokens: weighted sums of rows, or their products with a row of each token.

use super::{BLOCK, Derived, Dispatch, one, whole};
use crate::passes::{
    draft::{Draft, Flow, Source, Writer, read, write},
    shape::{
        grouped::{Combine, Combined},
        ranks::block_rows,
    },
};
use mk_plan::{
    Access, BufId, DotTile, Each, EpilogueOp, Expr, FamId, Leaf, Operand, Point, ReduceTile,
    RoleKind, Var,
};

/// Tokens that are combined at once.
pub(super) const COMBINED: i32 = 8;

impl Dispatch<'_> {
    /// Each token is the weighted sum of its slots' rows, wherever they are, in the order of slots. `made` is a GEMM
    /// that writes `y`, and has so many tiles of a block.
    pub(in crate::passes::tile) fn combine(
        &self,
        draft: &mut Draft,
        combine: &Combine,
        (y, made, tiles): (BufId, FamId, i32),
        out: BufId,
        places: Derived,
    ) {
        if draft.nodes.count() > 1 {
            return self.combine_nodes(draft, combine, (y, made, tiles), out, places);
        }
        let group = draft.nodes.group;
        let word = vec![group.place(), Var::domain(0).into()];
        let done = Writer::new(made, Operand::C, word).on_each(group.everyone());
        let shape = vec![group.size.into(), self.count.into()];
        let done = draft.flow(Flow::new("done", shape, tiles.into(), vec![done]));
        let i = Expr::from(Var::domain(0));
        let token = i.clone() * COMBINED + Var::INNER;
        let own = draft.own(&combine.out, 0);
        let exists = token.clone().lt(own.clone());
        let each = Some(Each { var: "j".into(), extent: self.slots.into() });
        let place = |part: i32| {
            Expr::Table(places.table, vec![token.clone(), Var::EACH.into(), part.into()])
        };
        let wide = match combine.how {
            Combined::Sum(_) => whole(combine.out.shape[1].value),
            Combined::Products(dy) => whole(self.params[dy].shape[1].value),
        };
        let inner =
            |access: Access| Access { at: Point::Inner, when: Some(exists.clone()), ..access };
        // Dropped slots, and slots of no expert, are neither read nor weighted.
        let there = places.kept.map(|(kept, _)| {
            let kept = Expr::Table(kept, vec![token.clone(), Var::EACH.into()]);
            exists.clone().select(kept, 0)
        });
        let contribution =
            |access: Access| Access { each: each.clone(), when: there.clone(), ..access };
        let src = Access {
            rank: group.rank_of(place(0)),
            ..contribution(inner(read(Operand::Src, y, vec![one(place(1)), wide.clone()])))
        };
        let weight = vec![one(token.clone()), one(Var::EACH)];
        let own_row = vec![one(token.clone()), wide.clone()];
        // Each product of rows is an element of its own; a sum is a row.
        let (factor, dst) = match combine.how {
            Combined::Sum(weights) => (
                contribution(inner(read(Operand::W, self.inputs[weights], weight))),
                inner(write(Operand::Dst, out, own_row)),
            ),
            Combined::Products(dy) => (
                inner(read(Operand::W, self.inputs[dy], own_row)),
                Access { each: each.clone(), ..inner(write(Operand::Dst, out, weight)) },
            ),
        };
        let rows = (i.clone() * COMBINED, block_rows(own.clone(), i, COMBINED));
        let region = vec![rows.clone(), whole(self.slots), whole(2)];
        let entries = read(Operand::Tab, places.memory, region);
        let kept = places.kept.map(|(_, memory)| {
            let entries = read(Operand::Tab, memory, vec![rows.clone(), whole(self.slots)]);
            Source::from(entries)
        });
        let touched = vec![
            Source::behind(entries, places.built, vec![0.into()]),
            // The words of all slots: that of no expert is the first block's, which has one, too.
            Source::behind(src, done, vec![place(0), place(1) / BLOCK]).whether(exists.clone()),
            factor.into(),
            dst.into(),
        ];
        let addend = combine.addend.map(|x| {
            let row = vec![one(token.clone()), whole(combine.out.shape[1].value)];
            Source::from(inner(read(Operand::E0, self.inputs[x], row)))
        });
        let touched: Vec<Source> = touched.into_iter().chain(kept).chain(addend).collect();
        let epilogue = combine.addend.map(|_| EpilogueOp::Add).into_iter().collect();
        let leaf = match combine.how {
            Combined::Sum(_) => Leaf::ReduceTile(ReduceTile { epilogue }),
            Combined::Products(_) => Leaf::DotTile(DotTile),
        };
        let domain = vec![("i", ((self.tokens + COMBINED - 1) / COMBINED).into())];
        let family = draft.family("combine", RoleKind::Compute, leaf, domain, vec![], touched);
        draft.plan.families[family].inner = Some(("q".into(), COMBINED.into()));
    }
}
