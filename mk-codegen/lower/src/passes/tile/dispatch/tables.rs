//! Tables that each rank makes of a routing: whose rows are where, and which tokens it has an expert of.

use super::{CHUNK, Derived, Dispatch, LISTED, near_part, one, part_of, varies, whole};
use crate::passes::{
    draft::{Draft, Source, read, write},
    shape::ranks::block_rows,
    strategies::rails::{near, rail_of},
    tile::blocks::{BLOCK, Blocks},
};
use mk_plan::{BufId, Expr, Operand, RoleKind, RoutePart, Routed, TabId, Table, TableSource, Var};

impl Dispatch<'_> {
    /// A table that tasks fill, each its share: the entries of a range of rows, behind what those are made of.
    fn table(
        &self,
        draft: &mut Draft,
        part: RoutePart,
        source: TableSource,
        shape: &[i32],
        (tasks, rows): (i32, (Expr, Expr)),
        made_of: Vec<Source>,
    ) -> Derived {
        let local = if part == RoutePart::Places { near(self.sums) } else { 0 };
        let (name, flow) = match part {
            RoutePart::Sources => ("sources", "sourced"),
            RoutePart::Slots => ("slots", "slotted"),
            _ => ("places", "placed"),
        };
        let routed = self.routed(draft, part, local);
        let (table, memory) = draft.table(name, shape, source, Some(routed));
        let kept = (part == RoutePart::Places).then(|| self.kept(draft, shape[0]));
        let others = shape.iter().skip(1).map(|n| whole(*n));
        let region = [rows.clone()].into_iter().chain(others).collect();
        let mut touched = made_of;
        touched.push(write(Operand::Dst, memory, region).into());
        touched.extend(
            kept.map(|(_, memory)| {
                write(Operand::Dst, memory, vec![rows, whole(self.slots)]).into()
            }),
        );
        let leaf = near_part(self.route, self.count, draft.nodes.group.over(), part, local);
        let domain = vec![("i", tasks.into())];
        let built = draft.filled((name, flow), leaf, domain, tasks.into(), touched);
        Derived { table, memory, built, kept }
    }

    /// Whether each slot of so many tokens has a row.
    fn kept(&self, draft: &mut Draft, tokens: i32) -> (TabId, BufId) {
        let routed = self.routed(draft, RoutePart::Kept, near(self.sums));
        let flags = TableSource::Runtime { min: 0, max: 1 };
        draft.table("kept", &[tokens, self.slots], flags, Some(routed))
    }

    /// That a table has this part.
    pub(super) fn routed(&self, draft: &Draft, part: RoutePart, local: u32) -> Routed {
        let along = draft.nodes.group.axis();
        Routed { ids: self.ids, part, rows: BLOCK, keep: self.keep, local, along }
    }

    /// How many rows of the rank's tokens are dropped: a result.
    pub fn dropped(&self, draft: &mut Draft) {
        let Some(result) = self.route.dropped else { return };
        let memory = self.results[result];
        let max = self.tokens * self.slots;
        draft.plan.tables.push(Table {
            name: "dropped".into(),
            shape: vec![1],
            source: TableSource::Runtime { min: 0, max },
            stored: Some(memory),
            routed: Some(self.routed(draft, RoutePart::Dropped, 0)),
        });
        let lists = self.all_lists(draft.ranks());
        let experts = whole(self.route.experts);
        let touched = vec![
            // Bases were made of these.
            read(Operand::Src, self.lists, vec![whole(lists), whole(self.width)]).into(),
            Source::behind(
                read(Operand::Src, self.bases, vec![whole(lists + 1), experts]),
                self.counted,
                vec![0.into()],
            ),
            write(Operand::Dst, memory, vec![whole(1)]).into(),
        ];
        let over = draft.nodes.group.over();
        let leaf = part_of(self.route, self.count, over, RoutePart::Dropped);
        let domain = vec![("i", 1.into())];
        draft.family("dropped", RoleKind::Compute, leaf, domain, vec![], touched);
    }

    /// The lists of all chunks.
    pub(super) fn all_lists(&self, world: i32) -> i32 {
        (world * self.chunks).max(1)
    }

    /// The token in each packed row.
    pub(super) fn sources(&self, draft: &mut Draft, blocks: Blocks) -> Derived {
        let lists = self.all_lists(draft.ranks());
        let i = Expr::from(Var::domain(0));
        let some = block_rows(self.count.into(), i.clone(), LISTED);
        let entries = vec![(i.clone() * LISTED, some.clone()), whole(2)];
        let made_of = vec![
            Source::behind(
                read(Operand::Src, blocks.memory, entries),
                blocks.built,
                vec![0.into()],
            ),
            // Blocks were made beside, or of, these.
            read(Operand::Src, self.lists, vec![whole(lists), whole(self.width)]).into(),
            read(Operand::Src, self.bases, vec![whole(lists + 1), whole(self.route.experts)])
                .into(),
        ];
        let ids = &self.params[self.ragged.counts];
        let max = match varies(ids) {
            true => draft.ranks() * self.tokens - 1,
            false => ids.shape[0].value - 1,
        };
        let source = TableSource::Runtime { min: 0, max };
        let tasks = (self.count + LISTED - 1) / LISTED;
        let rows = (i * (LISTED * BLOCK), some * BLOCK);
        let shape = [self.count * BLOCK];
        self.table(draft, RoutePart::Sources, source, &shape, (tasks, rows), made_of)
    }

    /// Which slot of its token each packed row is.
    pub(super) fn slots_of(&self, draft: &mut Draft, blocks: Blocks, sources: Derived) -> Derived {
        let i = Expr::from(Var::domain(0));
        let some = block_rows(self.count.into(), i.clone(), LISTED);
        let entries = vec![(i.clone() * LISTED, some.clone()), whole(2)];
        let rows = (i * (LISTED * BLOCK), some * BLOCK);
        let all = self.params[self.ragged.counts].shape[0].value;
        let made_of = vec![
            // Sources were made of lists of all of them.
            read(Operand::Src, self.named.0, vec![whole(all), whole(self.slots)]).into(),
            read(Operand::Src, blocks.memory, entries).into(),
            Source::behind(
                read(Operand::Src, sources.memory, vec![rows.clone()]),
                sources.built,
                vec![0.into()],
            ),
        ];
        let source = TableSource::Runtime { min: 0, max: self.slots - 1 };
        let tasks = (self.count + LISTED - 1) / LISTED;
        let shape = [self.count * BLOCK];
        self.table(draft, RoutePart::Slots, source, &shape, (tasks, rows), made_of)
    }

    /// Where each slot of the rank's tokens has its row. Where sums go back: each slot of its rails' tokens, among the
    /// ranks that share a sum.
    pub fn places(&self, draft: &mut Draft, blocks: Blocks) -> Derived {
        let ids = &self.params[self.ragged.counts];
        let i = Expr::from(Var::domain(0));
        let nodes = self.sums;
        let (list, rows, src) = match nodes.count() {
            1 => {
                let own = draft.own(ids, 0);
                let rows = (i.clone() * CHUNK, block_rows(own, i.clone(), CHUNK));
                let src = match ids.own_rows() {
                    false => (self.inputs[self.ragged.counts], rows.0.clone()),
                    true => (self.named.0, nodes.group.place() * self.tokens + rows.0.clone()),
                };
                let region = vec![(src.1, rows.1.clone()), whole(self.slots)];
                let src = read(Operand::Src, src.0, region);
                (nodes.group.place() * self.chunks + i, rows, src)
            }
            _ => {
                let chunks = self.chunks.max(1);
                let (node, chunk) = (i.clone() / chunks, i % chunks);
                let of = rail_of(nodes, node.clone());
                let some = block_rows(draft.local(ids, 0, of.clone()), chunk.clone(), CHUNK);
                let first = |of: Expr| of * self.tokens + chunk.clone() * CHUNK;
                let src = vec![(first(of.clone()), some.clone()), whole(self.slots)];
                let src = read(Operand::Src, self.named.0, src);
                (of * chunks + chunk.clone(), (first(node), some), src)
            }
        };
        let mut made_of = vec![
            src.into(),
            read(Operand::Src, self.lists, vec![one(list.clone()), whole(self.width)]).into(),
            Source::behind(
                read(Operand::Src, self.bases, vec![one(list), whole(self.route.experts)]),
                self.counted,
                vec![0.into()],
            ),
        ];
        if self.keep > 0 {
            let behind = one(self.all_lists(draft.ranks()));
            let begins = vec![behind, whole(self.route.experts)];
            made_of.push(read(Operand::Src, self.bases, begins).into());
        }
        let source = TableSource::Places { of: blocks.table };
        let shape = [nodes.count() * self.tokens, self.slots, 2];
        let tasks = nodes.count() * self.chunks;
        self.table(draft, RoutePart::Places, source, &shape, (tasks, rows), made_of)
    }

    /// Which tokens of the world this rank has an expert of.
    pub(super) fn wanted(&self, draft: &mut Draft) -> Derived {
        let (world, room) = (draft.ranks(), self.room());
        let routed = self.routed(draft, RoutePart::Wanted, 0);
        let flags = TableSource::Runtime { min: 0, max: 1 };
        let (table, memory) = draft.table("wanted", &[world * room], flags, Some(routed));
        let [s, c] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let source = draft.nodes.group.place_after(s);
        let src = self.experts_of(draft, &source, &c);
        let first = source * room + c.clone() * CHUNK;
        let entries = block_rows(room.into(), c, CHUNK);
        let touched = vec![src, write(Operand::Dst, memory, vec![(first, entries)]).into()];
        let chunks = (room + CHUNK - 1) / CHUNK;
        let leaf = part_of(self.route, self.count, draft.nodes.group.over(), RoutePart::Wanted);
        let domain = vec![("s", world.into()), ("c", chunks.into())];
        let count = (world * chunks).into();
        let built = draft.filled(("wanted", "judged"), leaf, domain, count, touched);
        Derived { table, memory, built, kept: None }
    }

    /// The experts of a chunk of a place's tokens.
    pub(super) fn experts_of(&self, draft: &mut Draft, place: &Expr, c: &Expr) -> Source {
        let ids = &self.params[self.ragged.counts];
        let rows = block_rows(draft.local(ids, 0, place.clone()), c.clone(), CHUNK);
        let first = place.clone() * self.tokens + c.clone() * CHUNK;
        let src = read(Operand::Src, self.named.0, vec![(first, rows), whole(self.slots)]);
        let word = place.clone() * self.chunks.max(1) + c.clone();
        match self.named.1 {
            Some(named) => Source::behind(src, named, vec![word]),
            None => src.into(),
        }
    }
}
