//! Rows of experts that go back to their tokens: weighted sums of rows, or their products with a row of each token.

use super::{BLOCK, Derived, Dispatch, one, whole};
use crate::passes::{
    draft::{Draft, Flow, Source, Writer, read, write},
    shape::{
        grouped::{Combine, Combined},
        ids::Reduce,
        ranks::{RankGrid, block_rows},
    },
};
use mk_plan::{
    Access, BufId, DotTile, Each, EpilogueOp, Expr, FamId, Leaf, Operand, Point, ReduceTile,
    RoleKind, Space, Var,
};

/// Tokens that are combined at once.
pub(super) const COMBINED: i32 = 8;
/// Tokens whose products are summed at once.
const SUMMED: i32 = 16 * COMBINED;

impl Dispatch<'_> {
    /// Each token is the weighted sum of its slots' rows, wherever they are, in the order of slots. `made` writes `y`
    /// by this operand, and has so many tasks of a block.
    pub(in crate::passes::tile) fn combine(
        &self,
        draft: &mut Draft,
        combine: &Combine,
        (y, made, operand, tiles): (BufId, FamId, Operand, i32),
        out: BufId,
        places: Derived,
    ) {
        if self.sums.count() > 1 {
            return self.combine_sums(draft, combine, (y, made, operand, tiles), out, places);
        }
        // Along the other axis, ranks have contributions to a row; else one has all of it. Products are short: each
        // rank makes those of its own contributions, which are added up behind.
        let (group, further) = (draft.nodes.group, draft.along(1).group);
        let products = matches!(combine.how, Combined::Products(_));
        let parts = (products && combine.summed.is_some() && further.size > 1).then(|| {
            let shape = [1, combine.out.widest(0), combine.out.widest(1)].map(Expr::from).into();
            draft.buffer("products", Space::Workspace, combine.out.dtype, shape, None)
        });
        let grid = RankGrid {
            outer: group,
            inner: if combine.summed.is_some() && !products { further } else { group.alone() },
        };
        let one_axis = grid.inner.size == 1;
        let (own_number, everyone) = match one_axis {
            true => (group.place(), group.everyone()),
            false => (grid.own(), grid.everyone()),
        };
        let done = Writer::new(made, operand, vec![own_number, Var::domain(0).into()]);
        let shape = vec![grid.size().into(), self.count.into()];
        let done = vec![done.on_each(everyone)];
        let elements = combine.how == Combined::Elements;
        let name = if elements { "slots_done" } else { "done" };
        let done = draft.flow(Flow::new(name, shape, tiles.into(), done));
        let i = Expr::from(Var::domain(0));
        let token = i.clone() * COMBINED + Var::INNER;
        let own = draft.own(&combine.out, 0);
        let exists = token.clone().lt(own.clone());
        // Contributions to the row of a slot follow each other.
        let each = Some(Each { var: "j".into(), extent: (self.slots * grid.inner.size).into() });
        let (slot, share) = match one_axis {
            true => (Expr::from(Var::EACH), Expr::Const(0)),
            false => {
                (Expr::from(Var::EACH) / grid.inner.size, Expr::from(Var::EACH) % grid.inner.size)
            }
        };
        // Of those that ranks along the other axis have, too, the first one that this rank sums.
        let first = match combine.summed {
            Some(Reduce::Scatter) if !one_axis => grid.inner.place() * combine.out.widest(0),
            _ => Expr::Const(0),
        };
        let named = match first {
            Expr::Const(_) => token.clone(),
            _ => first.clone() + token.clone(),
        };
        let place =
            |part: i32| Expr::Table(places.table, vec![named.clone(), slot.clone(), part.into()]);
        let wide = match combine.how {
            Combined::Sum(_) => whole(combine.out.shape[1].value),
            Combined::Products(dy) => whole(self.params[dy].shape[1].value),
            Combined::Elements => whole(1),
        };
        let inner =
            |access: Access| Access { at: Point::Inner, when: Some(exists.clone()), ..access };
        // Dropped slots, and slots of no expert, are neither read nor weighted.
        let there = places.kept.map(|(kept, _)| {
            let kept = Expr::Table(kept, vec![named.clone(), slot.clone()]);
            exists.clone().select(kept, 0)
        });
        let contribution =
            |access: Access| Access { each: each.clone(), when: there.clone(), ..access };
        let src = Access {
            rank: match one_axis {
                true => group.rank_of(place(0)),
                // A rank alone has place 0, and data name it all the same.
                false if group.size == 1 => grid.inner.rank_of(share.clone()) + place(0),
                false => grid.rank_of(place(0), share.clone()),
            },
            ..contribution(inner(read(Operand::Src, y, vec![one(place(1)), wide.clone()])))
        };
        let weight = vec![one(named.clone()), one(slot.clone())];
        let own_row = vec![one(token.clone()), wide.clone()];
        // Each product of rows is an element of its own; a sum is a row.
        let (factor, dst) = match combine.how {
            Combined::Sum(weights) => (
                Some(contribution(inner(read(Operand::W, self.inputs[weights], weight)))),
                inner(write(Operand::Dst, out, own_row)),
            ),
            Combined::Products(_) | Combined::Elements => {
                let dst = match parts {
                    Some(parts) => write(Operand::Dst, parts, [vec![one(0)], weight].concat()),
                    None => write(Operand::Dst, out, weight),
                };
                let dst = Access { each: each.clone(), ..inner(dst) };
                let factor = match combine.how {
                    Combined::Products(dy) => {
                        Some(inner(read(Operand::W, self.inputs[dy], own_row)))
                    }
                    _ => None,
                };
                (factor, dst)
            }
        };
        let some = block_rows(own.clone(), i.clone(), COMBINED);
        let rows = match first {
            Expr::Const(_) => (i * COMBINED, some),
            _ => (first + i * COMBINED, some),
        };
        let region = vec![rows.clone(), whole(self.slots), whole(2)];
        let entries = read(Operand::Tab, places.memory, region);
        let kept = places.kept.map(|(_, memory)| {
            let entries = read(Operand::Tab, memory, vec![rows.clone(), whole(self.slots)]);
            Source::from(entries)
        });
        let from = match one_axis {
            true => place(0),
            false => grid.number(place(0), share),
        };
        let touched = [
            Source::behind(entries, places.built, vec![0.into()]),
            // The words of all slots: that of no expert is the first block's, which has one, too.
            Source::behind(src, done, vec![from, place(1) / BLOCK]).whether(exists.clone()),
        ];
        let factor = factor.map(Source::from).into_iter().chain([dst.into()]);
        let addend = combine.addend.map(|x| {
            let row = vec![one(token.clone()), whole(combine.out.shape[1].value)];
            Source::from(inner(read(Operand::E0, self.inputs[x], row)))
        });
        let touched: Vec<Source> =
            touched.into_iter().chain(factor).chain(kept).chain(addend).collect();
        let epilogue = combine.addend.map(|_| EpilogueOp::Add).into_iter().collect();
        let leaf = match combine.how {
            Combined::Sum(_) => Leaf::ReduceTile(ReduceTile { epilogue }),
            Combined::Products(_) => Leaf::DotTile(DotTile { plain: false }),
            Combined::Elements => Leaf::DotTile(DotTile { plain: true }),
        };
        let most = if one_axis { self.tokens } else { combine.out.widest(0) };
        let domain = vec![("i", ((most + COMBINED - 1) / COMBINED).into())];
        let name = if elements { "slots" } else { "combine" };
        let family = draft.family(name, RoleKind::Compute, leaf, domain, vec![], touched);
        draft.plan.families[family].inner = Some(("q".into(), COMBINED.into()));
        if let Some(parts) = parts {
            self.sum_products(draft, combine, (parts, family), out);
        }
    }

    /// The sums of what ranks along the other axis have made of their contributions to rows: read from each of them.
    fn sum_products(
        &self,
        draft: &mut Draft,
        combine: &Combine,
        (parts, made): (BufId, FamId),
        out: BufId,
    ) {
        let group = draft.along(1).group;
        let tasks = (self.tokens + COMBINED - 1) / COMBINED;
        let together = SUMMED / COMBINED;
        let blocks = (tasks + together - 1) / together;
        let i = Expr::from(Var::domain(0));
        let word = vec![group.place(), i.clone() / together];
        let done = Writer::new(made, Operand::Dst, word).on_each(group.everyone());
        let count = Expr::Const(together).min(Expr::Const(tasks) - i.clone() * together);
        let done = draft.flow(Flow::new(
            "products",
            vec![group.size.into(), blocks.into()],
            count,
            vec![done],
        ));
        let own = draft.own(&combine.out, 0);
        let rows = (i.clone() * SUMMED, block_rows(own, i.clone(), SUMMED));
        let columns = whole(combine.out.widest(1));
        let (rank, each) = group.everyone();
        let src = Access {
            rank,
            each: Some(each),
            ..read(Operand::Src, parts, vec![one(0), rows.clone(), columns.clone()])
        };
        let touched = vec![
            Source::behind(src, done, vec![Var::EACH.into(), i]),
            write(Operand::Dst, out, vec![rows, columns]).into(),
        ];
        let leaf = Leaf::ReduceTile(ReduceTile { epilogue: vec![] });
        let domain = vec![("i", blocks.into())];
        draft.family("sum", RoleKind::Compute, leaf, domain, vec![], touched);
    }
}
