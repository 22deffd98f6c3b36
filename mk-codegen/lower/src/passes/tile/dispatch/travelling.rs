//! Tokens on their way to the ranks of their experts: staged in symmetric memory, brought from other nodes, and fetched
//! by the ranks that have an expert of them.

use super::{Dispatch, STAGED, Tokens, Travels, one, varies};
use crate::passes::{
    draft::{Draft, Flow, FlowId, Source, Writer, read, write},
    shape::ranks::block_rows,
    strategies::{
        deliver::Pieces,
        factors::{OwnFactors, RailFactors},
        rails::{RailRows, others_of_node},
    },
};
use mk_plan::{Access, BufId, CopyVia, Each, Expr, Operand, RoleKind, Space, Var};

impl Dispatch<'_> {
    /// Tokens of which the rank has an expert: where they are then, in the order of the world with room for each, and
    /// the words of pieces of each rank's. Own ones go to symmetric memory, where peers read those that they want,
    /// once: they are in the same place there.
    pub(super) fn tokens(&self, draft: &mut Draft, travel: &[Travels]) -> Tokens {
        let (nodes, from) = (draft.nodes, travel[0].from);
        let x = &self.params[from];
        let (group, world) = (nodes.group, nodes.group.size);
        let (room, n) = (self.room(), travel.len() as i32);
        let pieces = room / STAGED;
        let i = Expr::from(Var::domain(0));
        let (mut memory, mut here) = (Vec::new(), Vec::new());
        let mut staged = vec![Vec::new(); travel.len()];
        let peers = nodes.near.every_peer();
        for (t, staged) in travel.iter().zip(&mut staged) {
            let shape = t.shape(world * room);
            let dtype = self.params[t.from].dtype;
            let tokens = draft.buffer(&t.name("tokens"), Space::Workspace, dtype, shape, None);
            memory.push(tokens);
            let own = draft.own(x, 0);
            let rows = block_rows(own, i.clone(), STAGED);
            let src = t.region((i.clone() * STAGED, rows.clone()));
            let src = read(Operand::Src, self.inputs[t.from], src);
            let first = group.place() * room + i.clone() * STAGED;
            let dst = write(Operand::Dst, tokens, t.region((first, rows)));
            let leaf = CopyVia::Ldst.leaf(1);
            let domain = vec![("i", pieces.into())];
            let touched = [src, dst];
            let name = t.name("stage");
            let stage = draft.family(&name, RoleKind::Compute, leaf, domain, vec![], touched);
            let words = vec![group.place(), i.clone()];
            staged.push(Writer::new(stage, Operand::Dst, words).on_each(peers.clone()));
            let word = vec![group.place() * pieces + i.clone()];
            here.push(Writer::new(stage, Operand::Dst, word));
        }
        // Over nodes, factors go whole: they are a thirtieth of their tokens.
        let come = self.few_cross(nodes).then(|| self.cross(draft, x, self.inputs[from]));
        let bring = |draft: &mut Draft, t: &Travels, to: BufId| {
            if !t.factors {
                let rows = RailRows { of: x, height: STAGED, pieces };
                return rows.bring(draft, "tokens", self.inputs[from], (to, room), None);
            }
            let own = OwnFactors {
                buffer: self.inputs[t.from],
                steps: Some(t.wide.into()),
                n_steps: t.wide,
            };
            let cut = Pieces::whole(STAGED, pieces);
            let kind = RoleKind::Compute;
            let factors = RailFactors { name: "tokens", rows: x, own: &own, nodes, kind, cut };
            let theirs = |draft: &mut Draft, place| draft.local(x, 0, place);
            factors.bring(draft, theirs, |place, (first, rows)| {
                write(Operand::Dst, to, t.region((place * room + first, rows)))
            })
        };
        let packed = |t: &Travels| come.is_some() && !t.factors;
        for ((t, to), staged) in travel.iter().zip(&memory).zip(&mut staged) {
            if nodes.count() > 1 && !packed(t) {
                let (forward, source) = bring(draft, t, *to);
                let word = vec![source.clone(), i.clone()];
                staged.push(Writer::new(forward, Operand::Dst, word).on_each(peers.clone()));
                here.push(Writer::new(forward, Operand::Dst, vec![source * pieces + i.clone()]));
            }
        }
        let shape = vec![world.into(), pieces.into()];
        let staged: Vec<FlowId> = travel
            .iter()
            .zip(staged)
            .map(|(t, by)| draft.flow(Flow::new(t.staged(), shape.clone(), 1.into(), by)))
            .collect();
        let wanted = self.wanted(draft);
        let [s, i] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        // What ranks of this node have, then what other nodes sent.
        let (local, others) = (nodes.local(), world - nodes.local());
        let mut fetched = Vec::new();
        for ((t, tokens), staged) in travel.iter().zip(&memory).zip(staged) {
            let near = |s: Expr| (nodes.near_after(s.clone()), nodes.near.rank_after(s), local - 1);
            let (source, at, sources) = match packed(t) {
                true => near(s.clone() + 1),
                false => others_of_node(nodes, s.clone()),
            };
            if sources > 0 {
                let row = source.clone() * room + i.clone() * STAGED + Var::EACH;
                let src = read(Operand::Src, *tokens, t.region(one(row)));
                let src = Access { rank: at, ..src };
                let src = Source::behind(src, staged, vec![source.clone(), i.clone()]);
                fetched.push((t.name("fetch"), sources, source, src, Vec::new(), (*t, *tokens)));
            }
        }
        if let Some(come) = come {
            let (t, place) = (travel[0], nodes.before(s + local));
            let theirs = draft.local(x, 0, place.clone());
            // Words are awaited of all rows that there are: flags decide about memory alone.
            let exists = (i.clone() * STAGED + Var::EACH).lt(theirs.clone());
            let row = self.fetched(draft, &come, (place.clone(), &i), theirs, t.wide);
            let src = Source::behind(row.access, row.here, row.word).whether(exists);
            fetched.push(("fetch.nodes".into(), others, place, src, row.tables, (t, memory[0])));
        }
        for (name, sources, source, src, tables, (t, tokens)) in fetched {
            let first = source.clone() * room + i.clone() * STAGED;
            // Entries are 0 or 1, and behind a rank's last token nobody knows which.
            let there = match x.even(0) && room == self.tokens && !varies(x) {
                true => wanted.has(first.clone() + Var::EACH),
                false => {
                    let mut entry = Expr::Table(wanted.table, vec![first.clone() + Var::EACH]);
                    if self.some_idle(world) {
                        let own = draft.own(x, 0);
                        let stands_in = (own + first.clone() + Var::EACH).lt(1);
                        entry = stands_in.select(1, entry);
                    }
                    let own = draft.local(x, 0, source.clone());
                    (i.clone() * STAGED + Var::EACH).lt(own * entry)
                }
            };
            let each = Some(Each { var: "q".into(), extent: STAGED.into() });
            let here_if =
                |access: Access| Access { each: each.clone(), when: Some(there.clone()), ..access };
            let Source { access, arrivals } = src;
            let src = Source { access: here_if(access), arrivals };
            let entries = read(Operand::Tab, wanted.memory, vec![(first.clone(), STAGED.into())]);
            let dst = write(Operand::Dst, tokens, t.region(one(first + Var::EACH)));
            let behind = Source::behind(entries, wanted.built, vec![0.into()]);
            let touched = vec![behind, src, here_if(dst).into()];
            let touched: Vec<Source> = touched.into_iter().chain(tables).collect();
            let leaf = CopyVia::Gather.leaf(1);
            let domain = vec![("s", sources.into()), ("i", pieces.into())];
            let fetch = draft.family(&name, RoleKind::Compute, leaf, domain, vec![], touched);
            let arrived = vec![source * pieces + i.clone()];
            here.push(Writer::new(fetch, Operand::Dst, arrived));
        }
        let shape = vec![(world * pieces).into()];
        let here = draft.flow(Flow::new("here", shape, n.into(), here));
        Tokens { memory, here, wanted }
    }
}
