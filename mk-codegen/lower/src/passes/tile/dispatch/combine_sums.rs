//! Sums that go back to the ranks of tokens: of nodes, each to its rank's rail; or of ranks of one node.
//!
//! Each node, or rank, sums what its own experts make of a token, in f32 and in the order of slots; the token's rank
//! adds these sums, in the order of nodes, and rounds. Ranks of one node store theirs to each other's memory, rounded:
//! half the bytes, as contributions to a `reduce_scatter` are.

use super::{BLOCK, CHUNK, Derived, Dispatch, combine::COMBINED, of_all, whole};
use crate::passes::{
    draft::{Arrival, Draft, Flow, FlowId, Source, Writer, one, read, write},
    shape::{
        grouped::{Combine, Combined},
        ids::Reduce,
        ranks::{RankGrid, RankGroup, block_rows, own_rank},
        tensor::Tensor,
    },
    strategies::{
        deliver::{self, Messages},
        rails::{RailRows, message_tasks, rail_of},
    },
};
use mk_abi::DType;
use mk_plan::{
    Access, BufId, CopyVia, DotTile, Each, EpilogueOp, Expr, FamId, Leaf, Operand, Point,
    ReduceTile, RoleKind, Space, Var,
};

/// Tokens that a rank of a node sums at once: waits and posts of a task take as long as four of them.
const OF_RANKS: i32 = 16;

/// What families, flows and memory are called.
struct Names {
    done: &'static str,
    send: &'static str,
    recv: &'static str,
    away: &'static str,
    rank: &'static str,
    /// The family that sums what a node made of its own tokens.
    own: &'static str,
    total: &'static str,
    summed: &'static str,
    summed_here: &'static str,
    kept: &'static str,
}

impl Names {
    fn of(combine: &Combine) -> Names {
        match combine.how {
            Combined::Elements => Names {
                done: "slots_done",
                send: "slots_send",
                recv: "slots_recv",
                away: "slots.node",
                rank: "slots.rank",
                own: "slots.own",
                total: "slots",
                summed: "slots.summed",
                summed_here: "slots.here",
                kept: "slots.kept",
            },
            _ => Names {
                done: "done",
                send: "part_send",
                recv: "part_recv",
                away: "combine.node",
                rank: "combine.rank",
                own: "combine.own",
                total: "combine",
                summed: "summed.node",
                summed_here: "summed.rank",
                kept: "kept",
            },
        }
    }
}

/// What a node makes of rows of its experts.
struct Parts {
    /// Tokens of a task.
    height: i32,
    y: BufId,
    done: FlowId,
    places: Derived,
    factor: Factor,
    /// The ranks of the node that have contributions to a row, if there are several of one place.
    shared: Option<RankGroup>,
    /// The first token that this rank sums, if those share the tokens, too.
    first: Option<Expr>,
}

impl Parts {
    /// Tokens of a place that this rank sums.
    fn rows(&self, draft: &mut Draft, combine: &Combine, of: Expr) -> Expr {
        match self.first {
            Some(_) => draft.own(&combine.out, 0),
            None => draft.local(&combine.out, 0, of),
        }
    }

    /// One of them among all of a place.
    fn named(&self, token: Expr) -> Expr {
        match &self.first {
            Some(first) => first.clone() + token,
            None => token,
        }
    }
}

/// Where sums of a family go: the rank, and the part of memory that has one for each node.
struct Into {
    memory: BufId,
    rank: Expr,
    part: Expr,
}

/// What rows are multiplied by.
#[derive(Clone, Copy)]
enum Factor {
    /// The weights of all tokens, with the words of their chunks.
    Weights(BufId, Option<FlowId>),
    /// Nothing: an element of each row goes back as it is.
    None,
    /// A row of each token: of this rank's, and of those of its rails where they arrive, with their words.
    Rows { own: BufId, recv: BufId, relayed: FlowId },
}

impl Dispatch<'_> {
    /// Sends weights to everyone, if a sum over nodes has some: before tokens, since they are few bytes.
    pub fn weigh(&mut self, draft: &mut Draft, how: Option<Combined>) {
        if let (Some(Combined::Sum(weights)), true) = (how, self.sums.count() > 1) {
            self.weights = Some(self.weights_of_all(draft, weights));
        }
    }

    fn weights_of_all(&self, draft: &mut Draft, weights: usize) -> (BufId, Option<FlowId>) {
        let (of, given) = (&self.params[weights], self.inputs[weights]);
        of_all(draft, ["weights", "weighed"], of, given, self.chunks)
    }

    /// Each token is the sum of its nodes' sums, in the order of nodes. `made` writes `y` by this
    /// operand, and has so many tasks of a block.
    pub(super) fn combine_sums(
        &self,
        draft: &mut Draft,
        combine: &Combine,
        (y, made, operand, tiles): (BufId, FamId, Operand, i32),
        out: BufId,
        places: Derived,
    ) {
        let (nodes, ranks) = (self.sums, self.sums_alone(draft));
        // Along another axis, ranks of the node have contributions to a row.
        let shared = combine.summed.map(|_| draft.along(1).group).filter(|group| group.size > 1);
        let grid = RankGrid { outer: nodes.near, inner: shared.unwrap_or(nodes.group.alone()) };
        let (own_number, everyone) = match shared {
            None => (nodes.near.place(), nodes.near.everyone()),
            Some(_) => (grid.own(), grid.everyone()),
        };
        let done = Writer::new(made, operand, vec![own_number, Var::domain(0).into()]);
        let done = if grid.size() > 1 { done.on_each(everyone) } else { done };
        let shape = vec![grid.size().into(), self.count.into()];
        let names = Names::of(combine);
        let done = draft.flow(Flow::new(names.done, shape, tiles.into(), vec![done]));
        // Of tokens that ranks along that axis share, those of the own place.
        let own_rows = shared.filter(|_| combine.summed == Some(Reduce::Scatter));
        let most = if own_rows.is_some() { combine.out.widest(0) } else { self.tokens };
        let first = own_rows.map(|group| group.place() * most);
        let height = if ranks { OF_RANKS } else { COMBINED };
        let pieces = (most + height - 1) / height;
        let factor = match combine.how {
            Combined::Sum(weights) => {
                let (all, weighed) =
                    self.weights.unwrap_or_else(|| self.weights_of_all(draft, weights));
                Factor::Weights(all, weighed)
            }
            Combined::Products(dy) => {
                let (of, own) = (&self.params[dy], self.inputs[dy]);
                let (recv, relayed) = match ranks {
                    true => self.rows_of_all(draft, of, own, (height, pieces)),
                    false => {
                        let rows = RailRows { of, height, pieces };
                        rows.send(draft, "dy", own)
                    }
                };
                Factor::Rows { own, recv, relayed }
            }
            Combined::Elements => Factor::None,
        };
        let parts = Parts { height, y, done, places, factor, shared, first };
        if ranks {
            return self.combine_ranks(draft, combine, &parts, pieces, out);
        }
        let wide = combine.out.shape[1].value;
        let one = [most, wide];
        let mut net = |name: &str, nodes: i32| {
            let shape = [nodes].into_iter().chain(one).map(Expr::from).collect();
            draft.buffer(name, Space::Net, DType::F32, shape, None)
        };
        let (send, recv) = (net(names.send, nodes.count() - 1), net(names.recv, nodes.count()));
        // For tokens of other nodes.
        let [i, m] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let domain = message_tasks(nodes, pieces).domain;
        let node = nodes.other(m.clone());
        let into = Into { memory: send, rank: own_rank(), part: m.clone() };
        let family = self.part(draft, combine, &parts, names.away, domain, node, into);
        let summed = Writer::new(family, Operand::Dst, vec![m.clone(), i.clone()]);
        let shape = vec![(nodes.count() - 1).into(), pieces.into()];
        let summed = draft.flow(Flow::new(names.summed, shape, 1.into(), vec![summed]));
        let [_, place] = nodes.rail(m.clone());
        let rows = parts.rows(draft, combine, place);
        let rows = (i.clone() * height, block_rows(rows, i.clone(), height));
        let region = vec![(m.clone(), 1.into()), rows.clone(), whole(wide)];
        let from = read(Operand::Src, send, region);
        let messages = Messages {
            message_tasks: message_tasks(nodes, pieces),
            from: Source::behind(from, summed, vec![m.clone(), i.clone()]),
            to: recv,
            there: vec![nodes.own_part(), rows, whole(wide)],
            tables: Vec::new(),
            maker: family,
            credit: vec![m, i.clone()],
            each: None,
        };
        let relayed = deliver::carry(draft, messages);
        // For its own.
        let (domain, home) = (vec![("i", pieces.into())], nodes.far.place());
        let into = Into { memory: recv, rank: own_rank(), part: home.clone() };
        let family = self.part(draft, combine, &parts, names.own, domain, home, into);
        let kept = Writer::new(family, Operand::Dst, vec![i.clone()]);
        let kept = draft.flow(Flow::new(names.kept, vec![pieces.into()], 1.into(), vec![kept]));
        let wire = vec![nodes.other(Var::EACH.into()), i.clone()];
        let wire = Arrival { each: Some(deliver::others(nodes)), ..Arrival::new(relayed, wire) };
        let arrivals = vec![wire, Arrival::new(kept, vec![i])];
        self.total(draft, combine, (height, pieces), (recv, arrivals), out);
    }

    /// The caller's rows on every other rank of the node: where they arrive, place by place, and the words
    /// `[place, piece]`.
    fn rows_of_all(
        &self,
        draft: &mut Draft,
        of: &Tensor,
        given: BufId,
        (height, pieces): (i32, i32),
    ) -> (BufId, FlowId) {
        let (group, wide) = (self.sums.group, of.shape[1].value);
        let shape = [group.size * self.tokens, wide].map(Expr::from).to_vec();
        let memory = draft.buffer("dy_all", Space::Workspace, of.dtype, shape, None);
        let [i, p] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let own = draft.own(of, 0);
        let (first, some) = (i.clone() * height, block_rows(own, i.clone(), height));
        let src = read(Operand::Src, given, vec![(first.clone(), some.clone()), whole(wide)]);
        let to = group.rank_after(p + 1);
        let there = vec![(group.place() * self.tokens + first, some), whole(wide)];
        let dst = Access { rank: to.clone(), ..write(Operand::Dst, memory, there) };
        let domain = vec![("i", pieces.into()), ("p", (group.size - 1).into())];
        let leaf = CopyVia::Ldst.leaf(1);
        let send = draft.family("dy", RoleKind::Compute, leaf, domain, vec![], [src, dst]);
        draft.leaves_first(send, given);
        let sent = Writer::new(send, Operand::Dst, vec![group.place(), i]).on(to);
        let shape = vec![group.size.into(), pieces.into()];
        (memory, draft.flow(Flow::new("dy_here", shape, 1.into(), vec![sent])))
    }

    /// Each rank stores its sums to the memory of the tokens' ranks, its own tokens' last.
    fn combine_ranks(
        &self,
        draft: &mut Draft,
        combine: &Combine,
        parts: &Parts,
        pieces: i32,
        out: BufId,
    ) {
        let (group, out_of, names) = (self.sums.group, &combine.out, Names::of(combine));
        let [i, p] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let shape = [group.size, self.tokens, out_of.shape[1].value].map(Expr::from).to_vec();
        let memory = draft.buffer(names.recv, Space::Workspace, out_of.dtype, shape, None);
        let word = vec![group.place(), i.clone()];
        let to = group.rank_after(p.clone() + 1);
        let into = Into { memory, rank: to.clone(), part: group.place() };
        let domain = vec![("i", pieces.into()), ("p", (group.size - 1).into())];
        let place = group.place_after(p + 1);
        let family = self.part(draft, combine, parts, names.rank, domain, place, into);
        let theirs = Writer::new(family, Operand::Dst, word.clone()).on(to);
        let into = Into { memory, rank: own_rank(), part: group.place() };
        let domain = vec![("i", pieces.into())];
        let family = self.part(draft, combine, parts, names.own, domain, group.place(), into);
        let own = Writer::new(family, Operand::Dst, word);
        let shape = vec![group.size.into(), pieces.into()];
        let summed = draft.flow(Flow::new(names.summed_here, shape, 1.into(), vec![theirs, own]));
        let (_, each) = group.everyone();
        let word = Arrival::new(summed, vec![Var::EACH.into(), i]);
        let arrivals = vec![Arrival { each: Some(each), ..word }];
        self.total(draft, combine, (parts.height, pieces), (memory, arrivals), out);
    }

    /// The sum of the nodes' sums, which have arrived.
    fn total(
        &self,
        draft: &mut Draft,
        combine: &Combine,
        (height, pieces): (i32, i32),
        (recv, arrivals): (BufId, Vec<Arrival>),
        out: BufId,
    ) {
        let (i, wide) = (Expr::from(Var::domain(0)), combine.out.shape[1].value);
        let own = draft.own(&combine.out, 0);
        let rows = (i.clone() * height, block_rows(own, i, height));
        let region = vec![(Var::EACH.into(), 1.into()), rows.clone(), whole(wide)];
        let each = Some(Each { var: "n".into(), extent: self.sums.count().into() });
        let access = Access { each, ..read(Operand::Src, recv, region) };
        let addend = combine.addend.map(|x| {
            let row = vec![rows.clone(), whole(wide)];
            Source::from(read(Operand::E0, self.inputs[x], row))
        });
        let dst = write(Operand::Dst, out, vec![rows, whole(wide)]);
        let touched = [Source { access, arrivals }, dst.into()].into_iter().chain(addend);
        let epilogue = combine.addend.map(|_| EpilogueOp::Add).into_iter().collect();
        let leaf = Leaf::ReduceTile(ReduceTile { epilogue });
        let domain = vec![("i", pieces.into())];
        draft.family(Names::of(combine).total, RoleKind::Compute, leaf, domain, vec![], touched);
    }

    /// Sums what this node's experts made of tokens of the rail in `node`, into that part of memory.
    #[allow(clippy::too_many_arguments)]
    fn part(
        &self,
        draft: &mut Draft,
        combine: &Combine,
        x: &Parts,
        name: &str,
        domain: Vec<(&str, Expr)>,
        node: Expr,
        into: Into,
    ) -> FamId {
        let nodes = self.sums;
        let i = Expr::from(Var::domain(0));
        let of = rail_of(nodes, node.clone());
        let all = x.rows(draft, combine, of.clone());
        let token = i.clone() * x.height + Var::INNER;
        let exists = token.clone().lt(all.clone());
        // Its entries.
        let listed = node.clone() * self.tokens;
        let named = x.named(token.clone());
        let row = listed.clone() + named.clone();
        // Contributions to the row of a slot follow each other.
        let sharing = x.shared.map_or(1, |group| group.size);
        let each = Some(Each { var: "j".into(), extent: (self.slots * sharing).into() });
        let slot = Expr::from(Var::EACH) / sharing;
        let place =
            |part: i32| Expr::Table(x.places.table, vec![row.clone(), slot.clone(), part.into()]);
        let there = x.places.kept.map(|(kept, _)| {
            let kept = Expr::Table(kept, vec![row.clone(), slot.clone()]);
            exists.clone().select(kept, 0)
        });
        let contribution = |access: Access| Access {
            at: Point::Inner,
            each: each.clone(),
            when: there.clone(),
            ..access
        };
        let wide = match combine.how {
            Combined::Sum(_) => whole(combine.out.shape[1].value),
            Combined::Products(dy) => whole(self.params[dy].shape[1].value),
            Combined::Elements => whole(1),
        };
        let y = read(Operand::Src, x.y, vec![one(place(1)), wide.clone()]);
        let share = Expr::from(Var::EACH) % sharing;
        let rank = match x.shared {
            None if nodes.local() == 1 => y.rank.clone(),
            None => nodes.group.rank_of(place(0)),
            // Data name the place of the node, which has one rank of it.
            Some(group) => group.rank_of(share.clone()) + (place(0) - nodes.far.place()),
        };
        let y = Access { rank, ..y };
        let done = vec![place(0) % nodes.local() * sharing + share, place(1) / BLOCK];
        let inner =
            |access: Access| Access { at: Point::Inner, when: Some(exists.clone()), ..access };
        let own = name == Names::of(combine).own;
        let factor = match x.factor {
            Factor::Weights(all, weighed) => {
                let weight = vec![one(of.clone() * self.tokens + named), one(slot)];
                let access = contribution(read(Operand::W, all, weight));
                // Those of another place than the first may end in the next chunk.
                let first = i.clone() * x.height;
                let ends = match &x.first {
                    None => vec![first],
                    Some(_) => {
                        let last = first.clone() + (x.height - 1);
                        [first, last].map(|at| x.named(at).min(self.tokens - 1)).to_vec()
                    }
                };
                let chunk = |at: Expr| vec![of.clone() * self.chunks.max(1) + at / CHUNK];
                let arrival =
                    |flow| ends.iter().map(move |at| Arrival::new(flow, chunk(at.clone())));
                Some(Source { access, arrivals: weighed.into_iter().flat_map(arrival).collect() })
            }
            Factor::Rows { own: given, .. } if own => {
                Some(inner(read(Operand::W, given, vec![one(token.clone()), wide.clone()])).into())
            }
            Factor::Rows { recv, relayed, .. } => {
                let row = inner(read(Operand::W, recv, vec![one(row.clone()), wide.clone()]));
                Some(Source::behind(row, relayed, vec![node, i.clone()]))
            }
            Factor::None => None,
        };
        // Each product of rows is an element of its own; a sum is a row.
        let to = |part, elements| {
            let region = vec![one(part), one(token.clone()), elements];
            let to = inner(write(Operand::Dst, into.memory, region));
            Access { rank: into.rank, ..to }
        };
        let dst = match x.factor {
            Factor::Weights(..) => to(into.part, wide),
            Factor::Rows { .. } | Factor::None => {
                let each = each.clone();
                Access { each, ..to(into.part, one(Var::EACH)) }
            }
        };
        let first = i.clone() * x.height;
        let rows = (listed + x.named(first), block_rows(all, i, x.height));
        let region = vec![rows.clone(), whole(self.slots), whole(2)];
        let entries = read(Operand::Tab, x.places.memory, region);
        let kept = x.places.kept.map(|(_, memory)| {
            Source::from(read(Operand::Tab, memory, vec![rows, whole(self.slots)]))
        });
        let touched = [
            Source::behind(entries, x.places.built, vec![0.into()]),
            Source::behind(contribution(y), x.done, done).whether(exists),
        ];
        let factor = factor.into_iter().chain([dst.into()]);
        let touched: Vec<Source> = touched.into_iter().chain(factor).chain(kept).collect();
        let leaf = match x.factor {
            Factor::Weights(..) => Leaf::ReduceTile(ReduceTile { epilogue: Vec::new() }),
            Factor::Rows { .. } => Leaf::DotTile(DotTile { plain: false }),
            Factor::None => Leaf::DotTile(DotTile { plain: true }),
        };
        let family = draft.family(name, RoleKind::Compute, leaf, domain, vec![], touched);
        draft.plan.families[family].inner = Some(("q".into(), x.height.into()));
        family
    }
}
