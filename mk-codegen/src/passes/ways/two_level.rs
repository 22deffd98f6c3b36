//! Sums rows that have owners, over nodes: first inside each node, for each owner anywhere, on the rank of the owner's place; then messages
//! to the owner, one for each panel of a block of rows, and the owner adds its own node's summands and the other nodes' sums. In an
//! `all_reduce` finished rows go the way of a gather. No node holds rows that neither belong to its ranks nor go to a rank of the same place.
//!
//! Assumes rows cut by owner, without gaps. Leaves: `slots`, a symmetric buffer `[panels, slots, rows, width]`: for each owner's node a slot
//! of each source rank of the own node, other nodes first and the own one last, and behind those a slot for each other node's sum; `send` and
//! `recv` in net memory; for an all-reduce also `sums`, as of [`two_shot`](super::two_shot), where a node has several ranks.
//!
//! Tiles of other nodes' rows come first where nobody brings rows, node by node ([`NodeSlots::order`]): the network is busy from the first
//! of them on, and what comes behind the last tile needs no network. Walks overlap, each by agents of its own: sums for others by
//! `intra_comm`, in memory of the GPU, where a node has several ranks; copies into net memory and messages by lanes of `inter_send`; and in
//! `inter_reduce` copies of what has come, by lanes, and the owner's sums, by all others. Net memory is touched by bulk copies alone.
//!
//! Deterministic: sums are in f32, the own node's ranks in order and then the other nodes from the next one on, rounded where they leave a
//! node and at the owner.

use super::{
    panels::Panels,
    rail::{self, Messages, Pieces, Stage},
    sum::{Adders, Share, Summands, Summed, adders, tiles_across},
    two_shot::COPIED_ROWS,
};
use crate::ir::{Access, BufId, CopyVia, Each, Expr, FamId, Leaf, Operand, RoleKind, Space, Var};
use crate::passes::{
    draft::{Arrival, Draft, Flow, FlowId, Source, TileRows, Writer, read, write},
    shape::{
        kernel::Reduce,
        ranks::{Nodes, block_rows},
        rows::{RowBlock, Rows, in_groups},
        tensor::Tensor,
    },
};
use crate::settings::{Config, Reduction};

/// Slots of rows that ranks of the own place have, in all nodes.
#[derive(Clone, Copy)]
pub(in crate::passes) struct NodeSlots {
    buffer: BufId,
    nodes: Nodes,
    panels: Panels,
}

impl NodeSlots {
    /// Slots for tiles of so many rows and columns.
    pub fn new(
        draft: &mut Draft,
        out: &Tensor,
        rows: &Rows,
        tile: [i32; 2],
        config: &Config,
    ) -> Self {
        let (nodes, n) = (draft.nodes(), draft.dim(&out.shape[1]));
        let panels = match config.reduction {
            Reduction::DedicatedSms => Panels::new(out, tile, config.chunk_bytes),
            // All is there at once, in flatter tiles.
            Reduction::AfterLastWave | Reduction::Ring => Panels::one(out, tile[1]),
        };
        let slots = nodes.world + nodes.count() - 1;
        let width = panels.width(&n);
        let shape = vec![panels.count.into(), slots.into(), rows.capacity.into(), width];
        let buffer = draft.buffer("slots", Space::Workspace, out.dtype, shape, None);
        NodeSlots { buffer, nodes, panels }
    }

    /// Some columns of a block of rows, from the own rank.
    pub fn write(self, operand: Operand, r: &RowBlock, columns: (Expr, Expr)) -> Access {
        let NodeSlots { buffer, nodes, panels } = self;
        let (rank, [panel, columns]) = (Expr::from(Var::RANK), panels.within(columns));
        let hop = match nodes.local {
            1 => r.shard.clone() - rank.clone(),
            local => r.shard.clone() / local - rank.clone() / local,
        };
        let hop = (hop + (nodes.count() - 1)) % nodes.count();
        let slot = match nodes.local {
            1 => hop,
            local => hop * local + rank % local,
        };
        let region = vec![panel, (slot, 1.into()), (r.at.clone(), r.len.clone()), columns];
        Access { rank: nodes.same_place(r.shard.clone()), ..write(operand, buffer, region) }
    }

    /// Order of tiles that write all shards: node by node from the next one to the own one, in each as [`Rows::order`]. Ranks of a node go
    /// through the same shards, as their sums leave together.
    pub fn order(self, rows: &Rows, group: i32, across: i32, times: i32) -> Vec<Expr> {
        let Nodes { world, local } = self.nodes;
        let t = Expr::from(Var::LINEAR) / times;
        let of_node = rows.walked.max(1) * local * across;
        let (row, column) = in_groups(t.clone() % of_node, rows.walked * local, group, across);
        let hop = t / of_node;
        let shard = match (local, rows.first) {
            (1, 1) => hop,
            // The loop begins `first` places behind the own rank, the walk at the next node's first.
            _ => {
                let place = Expr::from(Var::RANK) % local;
                ((hop + 1) * local + row.clone() % local - place - rows.first) % world
            }
        };
        vec![row / local, shard, column]
    }
}

/// What all families of a sum share.
struct Shared {
    adders: Adders,
    /// Blocks as high as the tiles that are added, and their panels.
    pieces: Pieces,
    panels: Panels,
    across: i32,
    n: Expr,
    /// The rows' extent, for their parts.
    rows: Rows,
    /// Whether summands of one node's rows come before those of the next.
    by_node: bool,
    partial: FlowId,
    slots: BufId,
    /// Who adds, and who copies, at the owner.
    at_owner: RoleKind,
}

impl Shared {
    fn columns(&self, j: Expr) -> (Expr, Expr) {
        let width = self.adders.tile[1];
        (j.clone() * width, block_rows(self.n.clone(), j, width))
    }

    /// Rows of block `i` of a rank's shard.
    fn rows(&self, draft: &mut Draft, i: &Expr, of: Expr) -> (Expr, Expr) {
        let rows = draft.extents.shard(&self.rows.of.shape[0], of);
        let height = self.pieces.block;
        (i.clone() * height, block_rows(rows, i.clone(), height))
    }

    /// A piece of memory that is cut into panels, of some index.
    fn piece(&self, index: Expr, q: Expr, rows: (Expr, Expr)) -> Vec<(Expr, Expr)> {
        let [panel, columns] = self.panels.whole(q, &self.n);
        vec![(index, 1.into()), panel, rows, columns]
    }

    /// The summands of a tile of an owner in `node`, from slot `first` on: those of the own node's ranks, and `more` behind them.
    fn summands(
        &self,
        draft: &Draft,
        (node, first, more): (Expr, Expr, i32),
        rows: (Expr, Expr),
        [i, j]: [Expr; 2],
    ) -> Source {
        let local = draft.nodes().local;
        let each = Each { var: "s".into(), extent: (local + more).into() };
        let [panel, columns] = self.panels.within(self.columns(j.clone()));
        let region = vec![panel, (Expr::from(Var::EACH) + first, 1.into()), rows, columns];
        let src = Access { each: Some(each), ..read(Operand::Src, self.slots, region) };
        let word = vec![Var::EACH.into(), node, i / self.adders.per_block, j];
        let own = Each { var: "s".into(), extent: local.into() };
        let summed = Arrival { each: Some(own), ..Arrival::new(self.partial, word) };
        Source { access: src, arrivals: vec![summed] }
    }

    /// Block, other node and column of a walk over rows of other nodes, of `across` in a row: as their summands come. Of what comes from
    /// them, each node's as it sends to this one.
    fn walk(&self, draft: &Draft, across: i32, come: bool) -> Option<[Expr; 3]> {
        let (blocks, together) = (self.pieces.blocks, self.adders.together);
        let others = draft.nodes().count() - 1;
        let t = Expr::from(Var::LINEAR);
        if self.by_node {
            let of_node = blocks * across;
            let (within, hop) = match others {
                1 => (t, Expr::Const(0)),
                _ => (t.clone() % of_node, t / of_node),
            };
            let (i, column) = in_groups(within, blocks, together, across);
            let m = if come { Expr::Const(others - 1) - hop } else { hop };
            return Some([i, if others == 1 { 0.into() } else { m }, column]);
        }
        if together == 1 {
            return None;
        }
        let (row, column) = in_groups(t, blocks * others, together * others, across);
        Some([row.clone() / others, row % others, column])
    }

    /// Words of messages by `first`, of the loops of a piece.
    fn word(&self, first: Expr) -> Vec<Expr> {
        let [i, p] = Pieces::vars();
        self.pieces.word(first, i, p)
    }

    /// The same of messages.
    fn messages(&self, draft: &Draft, come: bool) -> Vec<Expr> {
        let walk = self.walk(draft, self.panels.count, come);
        walk.map_or(Vec::new(), |[i, m, q]| vec![i, q, m])
    }
}

/// Adds up the slots. Tasks of `from` write them; their last loop variable is the column block.
pub(in crate::passes) fn sum(
    draft: &mut Draft,
    config: &Config,
    how: Reduce,
    of: &Summed<'_>,
    slots: NodeSlots,
    from: Summands,
) {
    let (nodes, out) = (draft.nodes(), of.out);
    let Summands { rows, block, together, by_node, by, operand } = from;
    let n = draft.dim(&out.shape[1]);
    let across = tiles_across(draft, out, block[1]);
    let adders = adders(draft, config.reduction, Share::One, across, &rows.own(), block, together);
    let post = |c: TileRows| {
        let column = draft.plan.families[c.family].domain.len() - 1;
        let place = Expr::from(Var::RANK) % nodes.local;
        let word = vec![place, c.shard.clone() / nodes.local, c.block, Var::domain(column).into()];
        Writer::new(c.family, operand, word).on(nodes.same_place(c.shard))
    };
    let from = by.into_iter().map(post).collect();
    let shape = vec![nodes.local.into(), nodes.count().into(), rows.blocks.into(), across.into()];
    let partial = draft.flow(Flow::new("partial", shape, 1.into(), from));
    let (height, panels) = (adders.tile[0], slots.panels);
    let pieces = Pieces {
        per_block: panels.count,
        by_piece: together > 1,
        ..Pieces::whole(height, rows.in_blocks(height).blocks)
    };
    let at_owner = match adders.kind {
        RoleKind::IntraComm => RoleKind::InterReduce,
        after => after,
    };
    let slots = slots.buffer;
    let x = Shared { adders, pieces, panels, across, n, rows, by_node, partial, slots, at_owner };
    let come = for_others(draft, &x, of.summand.dtype);
    let finished = at_the_owner(draft, &x, how, of, come);
    if let Some(finished) = finished {
        spread(draft, &x, of, finished);
    }
}

/// Sums of the own node for owners in other nodes, their way there, and into the slots.
fn for_others(draft: &mut Draft, x: &Shared, dtype: mk_abi::DType) -> FlowId {
    let nodes = draft.nodes();
    let others: Expr = (nodes.count() - 1).into();
    let shape =
        vec![others.clone(), x.panels.count.into(), x.rows.capacity.into(), x.panels.width(&x.n)];
    let send = draft.buffer("part_send", Space::Net, dtype, shape.clone(), None);
    let recv = draft.buffer("part_recv", Space::Net, dtype, shape.clone(), None);
    let from = match nodes.local {
        1 => own_summands(draft, x),
        _ => node_sums(draft, x, dtype, shape),
    };
    let ([i, p], other) = (Pieces::vars(), rail::other());
    let rows = x.rows(draft, &i, nodes.rail(other.clone()));
    let region = x.piece(other.clone(), p.clone(), rows.clone());
    // There, this node is as many places before the last one as that one is behind this.
    let there = x.piece(Expr::Const(nodes.count() - 2) - other.clone(), p.clone(), rows);
    let (order, come) = (x.messages(draft, false), x.messages(draft, true));
    let stage = Stage { name: "stage.parts", pieces: x.pieces, from, order: order.clone() };
    let each = Some(others.clone());
    let (staged, stage) = rail::stage(draft, stage, (send, region.clone()), each);
    let from = Source::behind(read(Operand::Src, send, region), staged, x.word(other.clone()));
    let message = Messages { pieces: x.pieces, from, to: recv, there, order, come: come.clone() };
    let carried = rail::carry(draft, message);
    rail::hand_back(draft, stage, carried.sent, x.pieces, false);

    // Net memory, which may be the host's, is read once and in large pieces.
    let here = x.rows(draft, &i, Var::RANK.into());
    let src = read(Operand::Src, recv, x.piece(other.clone(), p.clone(), here.clone()));
    let word = x.pieces.word(rail::node(draft, other.clone()), i.clone(), p.clone());
    let src = Source::behind(src, carried.relayed, word);
    let [panel, columns] = x.panels.whole(p.clone(), &x.n);
    let slot = (other.clone() + nodes.world, 1.into());
    let dst = write(Operand::Dst, x.slots, vec![panel, slot, here, columns]);
    let mut domain = x.pieces.domain();
    domain.push(("m", others));
    let leaf = Leaf::CopyTile { via: CopyVia::Bulk, stages: draft.copy_stages };
    let kind = RoleKind::InterReduce;
    let fetch = draft.family("fetch", kind, leaf, domain, come, vec![src, dst.into()]);
    let fetched = Writer::new(fetch, Operand::Dst, vec![other, i, p]);
    let shape = vec![(nodes.count() - 1).into(), x.pieces.blocks.into(), x.panels.count.into()];
    draft.flow(Flow::new("come", shape, 1.into(), vec![fetched]))
}

/// Of a node of one rank there is nothing to add: what tiles have written, behind the tiles of a piece.
fn own_summands(draft: &mut Draft, x: &Shared) -> Source {
    let ([i, p], other) = (Pieces::vars(), rail::other());
    let rows = x.rows(draft, &i, draft.nodes().rail(other.clone()));
    let [panel, columns] = x.panels.whole(p.clone(), &x.n);
    let region = vec![panel, (other.clone(), 1.into()), rows, columns];
    let each = Each { var: "tile".into(), extent: x.panels.tiles.into() };
    let column = p * x.panels.tiles + Var::EACH;
    let word = vec![0.into(), rail::node(draft, other), i / x.adders.per_block, column];
    let tiles = Arrival { each: Some(each), ..Arrival::new(x.partial, word) };
    Source { access: read(Operand::Src, x.slots, region), arrivals: vec![tiles] }
}

/// Adds what ranks of the node have for owners in other nodes, in memory of the GPU.
fn node_sums(draft: &mut Draft, x: &Shared, dtype: mk_abi::DType, shape: Vec<Expr>) -> Source {
    let nodes = draft.nodes();
    let others: Expr = (nodes.count() - 1).into();
    let sums = draft.buffer("part_sums", Space::Scratch, dtype, shape, None);
    let [i, m, j] = [0, 1, 2].map(|v| Expr::from(Var::domain(v)));
    let rows = x.rows(draft, &i, nodes.rail(m.clone()));
    let node = rail::node(draft, m.clone());
    let first = m.clone() * nodes.local;
    let src = x.summands(draft, (node, first, 0), rows.clone(), [i.clone(), j.clone()]);
    let [panel, columns] = x.panels.within(x.columns(j.clone()));
    let dst = write(Operand::Dst, sums, vec![(m.clone(), 1.into()), panel, rows, columns]);
    let domain = vec![("i", x.pieces.blocks.into()), ("m", others.clone()), ("j", x.across.into())];
    let order = x.walk(draft, x.across, false).map_or(Vec::new(), Vec::from);
    let leaf = Leaf::ReduceTile { epilogue: Vec::new() };
    let touched = vec![src, dst.into()];
    let family = draft.family("reduce.node", x.adders.kind, leaf, domain, order, touched);
    let added = Writer::new(family, Operand::Dst, vec![m, i, x.panels.of(j)]);
    let shape = vec![others, x.pieces.blocks.into(), x.panels.count.into()];
    let summed = draft.flow(Flow::new("summed.node", shape, x.panels.tiles.into(), vec![added]));
    let ([i, p], other) = (Pieces::vars(), rail::other());
    let rows = x.rows(draft, &i, nodes.rail(other.clone()));
    let region = x.piece(other.clone(), p.clone(), rows);
    Source::behind(read(Operand::Src, sums, region), summed, vec![other, i, p])
}

/// Finished rows of an all-reduce: for the node, and for the network.
struct Finished {
    by: FamId,
    /// Of every rank of a node of several.
    sums: Option<BufId>,
    /// The own ones, in panels.
    own: BufId,
}

/// The owner adds its node's summands, and the sums of other nodes.
fn at_the_owner(
    draft: &mut Draft,
    x: &Shared,
    how: Reduce,
    of: &Summed<'_>,
    come: FlowId,
) -> Option<Finished> {
    let (nodes, out) = (draft.nodes(), of.out);
    let [i, j] = [0, 1].map(|v| Expr::from(Var::domain(v)));
    let here = x.rows(draft, &i, Var::RANK.into());
    let columns = x.columns(j.clone());
    let others = nodes.count() - 1;
    let own: Expr = (others * nodes.local).into();
    let home = rail::home(draft);
    let mut src = x.summands(draft, (home, own, others), here.clone(), [i.clone(), j.clone()]);
    let word = vec![Var::EACH.into(), i, x.panels.of(j)];
    src.arrivals.push(Arrival { each: Some(rail::others(draft)), ..Arrival::new(come, word) });
    let mut touched = vec![src];
    let first = match how {
        Reduce::All => Expr::from(Var::RANK) * x.rows.per_shard.clone(),
        _ => Expr::Const(0),
    };
    let region = vec![(first + here.0.clone(), here.1.clone()), columns.clone()];
    touched.extend(of.makes(region).into_iter().map(Source::from));
    let [panel, columns] = x.panels.within(columns);
    let all = (how == Reduce::All).then(|| {
        let shape = vec![x.panels.count.into(), x.rows.capacity.into(), x.panels.width(&x.n)];
        let own = draft.buffer("sums_own", Space::Scratch, out.dtype, shape.clone(), None);
        let shape = [vec![Expr::from(nodes.world)], shape].concat();
        let sums = (nodes.local > 1)
            .then(|| draft.buffer("sums", Space::Workspace, out.dtype, shape, None));
        (sums, own)
    });
    if let Some((sums, own)) = all {
        if let Some(sums) = sums {
            let (rank, each) = nodes.every_peer();
            let mine = (Var::RANK.into(), 1.into());
            let theirs = vec![mine, panel.clone(), here.clone(), columns.clone()];
            let sums = write(Operand::Dst, sums, theirs);
            touched.push(Access { rank, each: Some(each), ..sums }.into());
        }
        touched.push(write(Operand::Dst, own, vec![panel, here, columns]).into());
    }
    let domain = vec![("i", x.pieces.blocks.into()), ("j", x.across.into())];
    let order = x.adders.order(&x.rows.own().in_blocks(x.pieces.block), x.across);
    let by = draft.family("reduce", x.at_owner, of.leaf(), domain, order, touched);
    all.map(|(sums, own)| Finished { by, sums, own })
}

/// Brings finished rows to every rank: where a node has one, straight to where the caller wants them, else every rank copies the others' there.
fn spread(draft: &mut Draft, x: &Shared, of: &Summed<'_>, Finished { by, sums, own }: Finished) {
    let (nodes, out) = (draft.nodes(), of.out);
    let (others, count) = (Expr::from(nodes.count() - 1), x.panels.count);
    let one = vec![count.into(), x.rows.capacity.into(), x.panels.width(&x.n)];
    let send = draft.buffer("sums_send", Space::Net, out.dtype, one.clone(), None);
    let shape = [vec![others.clone()], one].concat();
    let recv = draft.buffer("sums_recv", Space::Net, out.dtype, shape, None);
    let q = x.panels.of(Var::domain(1).into());
    let added = Writer::new(by, Operand::Dst, vec![Var::domain(0).into(), q.clone()]);
    let shape = vec![x.pieces.blocks.into(), count.into()];
    let ready = draft.flow(Flow::new("finished", shape, x.panels.tiles.into(), vec![added]));
    let ([i, p], other) = (Pieces::vars(), rail::other());
    let rows = x.rows(draft, &i, Var::RANK.into());
    let mut region = x.piece(0.into(), p.clone(), rows.clone());
    region.remove(0);
    let from = read(Operand::Src, own, region.clone());
    let from = Source::behind(from, ready, vec![i.clone(), p.clone()]);
    let there = x.piece(Expr::Const(nodes.count() - 2) - other.clone(), p.clone(), rows);
    // As they are added up, and each to all nodes.
    let t = Expr::from(Var::LINEAR);
    let walk = |t: Expr| in_groups(t, x.pieces.blocks, x.adders.together, count);
    let (once, order) = match x.adders.together {
        1 => (Vec::new(), Vec::new()),
        _ => {
            let (i, q) = walk(t.clone());
            let (each, at) = (walk(t.clone() / others.clone()), t % others.clone());
            (vec![i, q], vec![each.0, each.1, at])
        }
    };
    let stage = Stage { name: "stage.sums", pieces: x.pieces, from, order: once };
    let (staged, stage) = rail::stage(draft, stage, (send, region.clone()), None);
    let from = read(Operand::Src, send, region);
    let from = Source::behind(from, staged, x.pieces.word(0.into(), i.clone(), p.clone()));
    let come = order.clone();
    let message = Messages { pieces: x.pieces, from, to: recv, there, order: order.clone(), come };
    let carried = rail::carry(draft, message);
    rail::hand_back(draft, stage, carried.sent, x.pieces, true);

    let source = rail::source_rank(draft);
    let theirs = x.rows(draft, &i, source.clone());
    let src = read(Operand::Src, recv, x.piece(other.clone(), p.clone(), theirs.clone()));
    let word = x.pieces.word(rail::node(draft, other), i.clone(), p.clone());
    let src = Source::behind(src, carried.relayed, word);
    let dst = match sums {
        None => {
            let rows = (source.clone() * x.rows.per_shard.clone() + theirs.0, theirs.1);
            let columns = x.panels.columns(p.clone(), &x.n);
            write(Operand::Dst, of.result, vec![rows, columns])
        }
        Some(sums) => {
            let there = x.piece(source.clone(), p.clone(), theirs);
            let (rank, each) = nodes.everyone();
            Access { rank, each: Some(each), ..write(Operand::Dst, sums, there) }
        }
    };
    let mut domain = x.pieces.domain();
    domain.push(("m", others));
    let leaf = Leaf::CopyTile { via: CopyVia::Bulk, stages: draft.copy_stages };
    let kind = RoleKind::InterReduce;
    let forward = draft.family("forward", kind, leaf, domain, order, vec![src, dst.into()]);
    let Some(sums) = sums else { return };
    let come = Writer::new(forward, Operand::Dst, vec![source, i, p]);
    let come = Writer { amount: x.panels.tiles.into(), ..rail::told_to_node(draft, come) };
    let (rank, each) = nodes.every_peer();
    let word = vec![Var::RANK.into(), Var::domain(0).into(), q];
    let near = Writer::new(by, Operand::Dst, word).on_each(rank, each);
    let shape = vec![nodes.world.into(), x.pieces.blocks.into(), count.into()];
    let summed = draft.flow(Flow::new("summed", shape, x.panels.tiles.into(), vec![near, come]));
    collect(draft, x, of, (sums, summed));
}

/// Every rank copies what has been pushed to it to where the caller wants it.
fn collect(draft: &mut Draft, x: &Shared, of: &Summed<'_>, (sums, summed): (BufId, FlowId)) {
    let kind = x.adders.kind;
    // After the products, the CTAs that multiply have no ring for bulk copies.
    let (via, height) = match kind {
        RoleKind::Compute => (CopyVia::Ldst, x.pieces.block),
        _ => (CopyVia::Bulk, x.pieces.block.min(COPIED_ROWS)),
    };
    let per_block = x.pieces.block / height;
    let theirs = x.rows.in_blocks(height).peers();
    let r = theirs.block(&mut draft.extents);
    let q = theirs.column();
    let [panel, columns] = x.panels.whole(q.clone(), &x.n);
    let here = (r.at.clone(), r.len.clone());
    let here = vec![(r.shard.clone(), 1.into()), panel, here, columns];
    let src = read(Operand::Src, sums, here);
    let to = (theirs.global(&r), r.len.clone());
    let columns = x.panels.columns(q.clone(), &x.n);
    let dst = write(Operand::Dst, of.result, vec![to, columns]);
    let leaf = Leaf::CopyTile { via, stages: draft.copy_stages };
    let word = vec![r.shard, r.block / per_block, q];
    let touched = vec![Source::behind(src, summed, word), dst.into()];
    let adders = Adders { together: x.adders.together * per_block, ..x.adders };
    let order = adders.order(&theirs, x.panels.count);
    draft.family("collect", kind, leaf, theirs.domain(x.panels.count), order, touched);
}
