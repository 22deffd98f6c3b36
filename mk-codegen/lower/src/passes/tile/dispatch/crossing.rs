//! Tokens of other nodes: a row goes once to each node that has one of its token's experts, to the rank of the same
//! place there, whose node fetches it from that rank's memory.
//!
//! Each chunk is packed for each node, so that writes are affine and messages have as many rows as there are; who
//! fetches looks up where a token is among those of its chunk. A chunk always has a row for each node, whether or not
//! the node wants one: so nobody's number of rows decides what another rank may read.

use super::{CHUNK, Dispatch, STAGED, near_part, one, whole};
use crate::passes::{
    draft::{Draft, Flow, FlowId, Source, Writer, read, write},
    shape::{
        ranks::{Nodes, block_rows},
        tensor::Tensor,
    },
    strategies::{
        deliver::{self, Messages},
        rails::{message_tasks, near},
    },
};
use mk_plan::{
    Access, BufId, CopyVia, Each, Expr, Operand, RoleKind, RoutePart, Space, TabId, TableSource,
    Var, wanted_share,
};

/// A share of tokens from which on all of them cross: no table is made then, and no row packed.
const ALL: f64 = 15.0 / 16.0;
/// Pieces of a chunk.
const PIECES: i32 = CHUNK / STAGED;

/// What crosses, by chunk `[place, chunk]` of the world, and the words that say that it is known.
#[derive(Clone, Copy)]
struct Crossing {
    /// Tokens for each node, `[chunks of the world, nodes]`.
    counts: (TabId, BufId),
    /// Which those are, of this rank's chunks.
    leaving: (TabId, BufId),
    /// The number of each token among those for this node.
    coming: (TabId, BufId),
    known: FlowId,
    /// Chunks of a rank.
    chunks: i32,
    nodes: i32,
}

/// Rows of other nodes: where ranks of this one read them.
pub(super) struct Come {
    crossing: Crossing,
    memory: BufId,
    /// Rows of a node there.
    room: i32,
    /// Words of pieces `[place, piece]`.
    here: FlowId,
}

/// A row of a place that a rank of this node has.
pub(super) struct Fetched {
    pub access: Access,
    /// What it looks up.
    pub tables: Vec<Source>,
    pub here: FlowId,
    pub word: Vec<Expr>,
}

impl Crossing {
    fn row(self, place: Expr, piece: &Expr) -> Expr {
        place * self.chunks + piece.clone() / PIECES
    }

    /// Tokens for a node of the chunk of a piece, of a rank that has so many: entries say more of a short chunk in no
    /// launch.
    fn of_chunk(self, row: Expr, piece: &Expr, node: Expr, tokens: Expr) -> Expr {
        let all = block_rows(tokens, piece.clone() / PIECES, CHUNK);
        Expr::Table(self.counts.0, vec![row, node]).min(all)
    }

    /// Tokens of a piece, and whether the number `Var::EACH` of it is one.
    fn of_piece(self, row: Expr, piece: &Expr, node: Expr, tokens: Expr) -> [Expr; 2] {
        let (all, at) = (self.of_chunk(row, piece, node, tokens), piece.clone() % PIECES);
        let there = (at.clone() * STAGED + Var::EACH).lt(all.clone());
        [block_rows(all, at, STAGED), there]
    }

    /// The read of counts, which is behind whatever else a task waits for.
    fn counts(self, row: Expr) -> Access {
        read(Operand::Tab, self.counts.1, vec![one(row), whole(self.nodes)])
    }
}

impl Dispatch<'_> {
    /// Tables of what crosses: of own tokens, which need nobody else's, and of those of other nodes.
    fn crossing(&self, draft: &mut Draft) -> Crossing {
        let (nodes, ids) = (draft.nodes, &self.params[self.ragged.counts]);
        let chunks = self.chunks.max(1);
        let (count, width) = (nodes.count(), self.list_width());
        let world = nodes.group.size * chunks;
        let mut table = |name: &str, part: RoutePart, shape: &[i32]| {
            let least = i32::from(part == RoutePart::Crossing);
            let source = TableSource::Runtime { min: least, max: CHUNK - 1 + least };
            let routed = self.routed(draft, part, near(draft.nodes));
            draft.table(name, shape, source, Some(routed))
        };
        let counts = table("crossing", RoutePart::Crossing, &[world, count]);
        let leaving = table("leaving", RoutePart::Leaving, &[chunks, count, width]);
        let coming = table("coming", RoutePart::Coming, &[world, width]);
        let mut known = Vec::new();
        // The experts of a chunk, and rows of tables that are made of them.
        let mut made =
            |draft: &mut Draft, name: &str, part, domain, src: Source, row: Expr, dst| {
                let of_nodes = write(Operand::Dst, counts.1, vec![one(row.clone()), whole(count)]);
                let (kind, of) = (RoleKind::Compute, draft.nodes.group.over());
                let leaf = near_part(self.route, self.count, of, part, near(draft.nodes));
                let touched = vec![src, of_nodes.into(), dst];
                let family = draft.family(name, kind, leaf, domain, vec![], touched);
                known.push(Writer::new(family, Operand::Dst, vec![row]));
                family
            };
        let c = Expr::from(Var::domain(0));
        let own = block_rows(draft.own(ids, 0), c.clone(), CHUNK);
        let given = self.inputs[self.ragged.counts];
        let src = read(Operand::Src, given, vec![(c.clone() * CHUNK, own), whole(self.slots)]);
        let list = vec![one(c.clone()), whole(count), whole(width)];
        let list = write(Operand::Dst, leaving.1, list);
        let domain = vec![("c", chunks.into())];
        let row = nodes.group.place() * chunks + c;
        let part = RoutePart::Leaving;
        let leave = made(draft, "leave", part, domain, src.into(), row, list.into());
        draft.leaves_first(leave, given);
        let [s, c] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let source = nodes.before(s + nodes.local());
        let src = self.experts_of(draft, &source, &c);
        let row = source * chunks + c;
        let numbers = write(Operand::Dst, coming.1, vec![one(row.clone()), whole(width)]);
        let others = (nodes.count() - 1) * nodes.local();
        let domain = vec![("s", others.into()), ("c", chunks.into())];
        made(draft, "come", RoutePart::Coming, domain, src, row, numbers.into());
        let known = draft.flow(Flow::new("crossed", vec![world.into()], 1.into(), known));
        Crossing { counts, leaving, coming, known, chunks, nodes: count }
    }

    /// Entries of a list of a chunk's tokens.
    fn list_width(&self) -> i32 {
        self.room().clamp(STAGED, CHUNK)
    }

    /// Whether so many tokens have no expert of some other node that their rows are packed: else all go.
    pub(super) fn few_cross(&self, nodes: Nodes) -> bool {
        let size = nodes.group.size as usize;
        let [experts, slots, local] =
            [self.route.experts, self.slots, nodes.local()].map(|n| n.max(0) as usize);
        nodes.count() > 1
            && wanted_share(experts, experts.div_ceil(size.max(1)) * local, slots) < ALL
    }

    /// Sends the caller's rows to the nodes that have an expert of their tokens, and takes those that come.
    pub(super) fn cross(&self, draft: &mut Draft, x: &Tensor, given: BufId) -> Come {
        let crossing = self.crossing(draft);
        let (nodes, room) = (draft.nodes, self.room());
        let (pieces, wide) = (room / STAGED, x.shape[1].value);
        let [i, m] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let tasks = message_tasks(nodes, pieces);
        let mut net = |name: &str, n: i32| {
            let shape = [n * self.tokens, wide].map(Expr::from).to_vec();
            draft.buffer(name, Space::Net, x.dtype, shape, None)
        };
        let (send, recv) =
            (net("tokens_send", nodes.count() - 1), net("tokens_recv", nodes.count()));
        let (each, gather) = (Each { var: "q".into(), extent: STAGED.into() }, CopyVia::Gather);
        // Packed for each node.
        let (own, to) = (draft.own(x, 0), nodes.other(m.clone()));
        let row = crossing.row(nodes.group.place(), &i);
        let [some, there] = crossing.of_piece(row.clone(), &i, to.clone(), own.clone());
        let at = vec![i.clone() / PIECES, to, i.clone() % PIECES * STAGED + Var::EACH];
        let token = i.clone() / PIECES * CHUNK + Expr::Table(crossing.leaving.0, at);
        let token = token.min(own - 1);
        let src = Access {
            each: Some(each.clone()),
            when: Some(there),
            ..read(Operand::Src, given, vec![one(token), whole(wide)])
        };
        let width = self.list_width();
        let list = vec![one(i.clone() / PIECES), whole(nodes.count()), whole(width)];
        let list = read(Operand::Tab, crossing.leaving.1, list);
        let packed = |of: Expr| (of * self.tokens + i.clone() * STAGED, some.clone());
        let region = vec![packed(m.clone()), whole(wide)];
        let touched = vec![
            Source::behind(crossing.counts(row.clone()), crossing.known, vec![row.clone()]),
            list.into(),
            src.into(),
            write(Operand::Dst, send, region.clone()).into(),
        ];
        let (kind, domain) = (RoleKind::Compute, tasks.domain.clone());
        let pack = draft.family("tokens.net", kind, gather.leaf(1), domain, vec![], touched);
        draft.leaves_first(pack, given);
        let word = vec![m.clone(), i.clone()];
        let staged = Writer::new(pack, Operand::Dst, word.clone());
        let shape = vec![(nodes.count() - 1).into(), pieces.into()];
        let staged = draft.flow(Flow::new("staged.net", shape, 1.into(), vec![staged]));
        let messages = Messages {
            message_tasks: tasks.clone(),
            from: Source::behind(read(Operand::Src, send, region), staged, word.clone()),
            to: recv,
            there: vec![packed(nodes.far.place()), whole(wide)],
            tables: vec![Source::behind(crossing.counts(row.clone()), crossing.known, vec![row])],
            maker: pack,
            credit: word,
            each: None,
        };
        let here = deliver::carry(draft, messages);
        if nodes.local() == 1 {
            return Come { crossing, memory: recv, room: self.tokens, here };
        }
        // Net memory is nobody else's.
        let shape = [nodes.count() * room, wide].map(Expr::from).to_vec();
        let memory = draft.buffer("tokens_come", Space::Workspace, x.dtype, shape, None);
        let [node, source] = nodes.source(m);
        let row = crossing.row(source.clone(), &i);
        let tokens = draft.local(x, 0, source.clone());
        let [some, there] = crossing.of_piece(row.clone(), &i, nodes.far.place(), tokens);
        let first = |room: i32| node.clone() * room + i.clone() * STAGED;
        let src = Access {
            each: Some(each),
            when: Some(there),
            ..read(Operand::Src, recv, vec![one(first(self.tokens) + Var::EACH), whole(wide)])
        };
        let touched = vec![
            Source::behind(crossing.counts(row.clone()), crossing.known, vec![row]),
            Source::behind(src, here, vec![node.clone(), i.clone()]),
            write(Operand::Dst, memory, vec![(first(room), some), whole(wide)]).into(),
        ];
        let (kind, leaf) = (RoleKind::Compute, gather.leaf(1));
        let forward = draft.family("tokens.forward", kind, leaf, tasks.domain, vec![], touched);
        let come = Writer::new(forward, Operand::Dst, vec![source, i]);
        let come = vec![come.on_each(nodes.near.everyone())];
        let shape = vec![nodes.group.size.into(), pieces.into()];
        let here = draft.flow(Flow::new("come", shape, 1.into(), come));
        Come { crossing, memory, room, here }
    }

    /// The row of entry `Var::EACH` of a piece of `place`'s tokens, which are so many, that this node has an expert of.
    pub(super) fn fetched(
        &self,
        draft: &Draft,
        come: &Come,
        (place, i): (Expr, &Expr),
        tokens: Expr,
        wide: i32,
    ) -> Fetched {
        let (nodes, crossing) = (draft.nodes, come.crossing);
        let (node, row) = (nodes.node_of(place.clone()), crossing.row(place.clone(), i));
        let at = vec![row.clone(), i.clone() % PIECES * STAGED + Var::EACH];
        // Of those that there are; an entry is one of them in every launch.
        let last = crossing.of_chunk(row.clone(), i, nodes.far.place(), tokens) - 1;
        let number = Expr::Table(crossing.coming.0, at).min(last);
        let packed = i.clone() / PIECES * CHUNK + number;
        let first = node * come.room;
        let access =
            read(Operand::Src, come.memory, vec![one(first + packed.clone()), whole(wide)]);
        let access = match nodes.local() {
            1 => access,
            _ => Access { rank: nodes.same_place(place.clone()), ..access },
        };
        let width = self.list_width();
        let numbers = read(Operand::Tab, crossing.coming.1, vec![one(row.clone()), whole(width)]);
        let tables = vec![
            Source::behind(crossing.counts(row.clone()), crossing.known, vec![row]),
            numbers.into(),
        ];
        Fetched { access, tables, here: come.here, word: vec![place, packed / STAGED] }
    }
}
