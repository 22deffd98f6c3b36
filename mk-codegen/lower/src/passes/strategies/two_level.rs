//! Sums rows that have owners, over nodes: first inside each node, for each owner anywhere, on the rank of the owner's
//! place; then one message to the owner for each block of rows, and the owner adds the nodes' sums in the order of
//! nodes. In an `all_reduce` finished rows go the way of a gather. No node holds rows that neither belong to its ranks
//! nor go to a rank of the same place.
//!
//! Assumes rows cut by owner, without gaps. Leaves: `slots`, a symmetric buffer `[nodes, local, rows, n]` of one slot
//! for each owner's node and source rank of this node; `send` and `recv` in net memory; for an all-reduce also
//! `sums`, as of [`two_shot`](super::two_shot).
//!
//! Deterministic: sums are in f32, in the order of ranks and of nodes, and rounded once a node and once at the owner.

use super::deliver::{self, Delivery, Messages, Pieces, Staged};
use super::sum::{Contributions, ReductionTiles, Share, Summed, reduction_tiles, tiles_across};
use super::two_shot::COPIED_ROWS;
use crate::passes::{
    draft::{Arrival, Draft, Flow, FlowId, Source, TileRows, Writer, read, write},
    shape::{
        ids::Reduce,
        ranks::{Nodes, block_rows},
        rows::Rows,
        tensor::Tensor,
    },
};
use crate::settings::Config;
use mk_plan::{
    Access, BufId, CopyVia, Each, Expr, FamId, Leaf, Operand, ReduceTile, RoleKind, Space, Var,
};

/// The slots of rows that ranks of the own place have, in all nodes.
pub(in crate::passes) fn slots(
    draft: &mut Draft,
    nodes: Nodes,
    out: &Tensor,
    rows: &Rows,
) -> BufId {
    let (n, rows) = (draft.own(out, 1), rows.by_others());
    let shape = vec![nodes.count().into(), nodes.local().into(), rows.capacity.into(), n];
    draft.buffer("slots", Space::Workspace, out.dtype, shape, None)
}

/// What all families of a sum share.
struct Shared {
    nodes: Nodes,
    reduction_tiles: ReductionTiles,
    /// Blocks as high as the tiles that are added.
    pieces: Pieces,
    across: i32,
    n: Expr,
    /// In such blocks.
    rows: Rows,
    partial: FlowId,
    slots: BufId,
}

impl Shared {
    fn columns(&self, j: Expr) -> (Expr, Expr) {
        let width = self.reduction_tiles.tile[1];
        (j.clone() * width, block_rows(self.n.clone(), j, width))
    }

    fn wide(&self) -> (Expr, Expr) {
        (0.into(), self.n.clone())
    }

    /// Rows of block `i` of a rank's shard.
    fn rows(&self, draft: &mut Draft, i: &Expr, of: Expr) -> (Expr, Expr) {
        self.rows.of_shard(&mut draft.extents, &of, i)
    }

    /// The contributions of a tile of an owner in `node`: those of this node's ranks.
    fn contributions(&self, node: Expr, rows: (Expr, Expr), i: Expr, j: Expr) -> Source {
        let each = Each { var: "s".into(), extent: self.nodes.local().into() };
        let columns = self.columns(j.clone());
        let when = self.rows.exists(&rows.1);
        let region = vec![(node.clone(), 1.into()), (Var::EACH.into(), 1.into()), rows, columns];
        let access = Access { each: Some(each), ..read(Operand::Src, self.slots, region) };
        let word = vec![Var::EACH.into(), node, i / self.reduction_tiles.per_block, j];
        let arrivals = vec![Arrival { when, ..Arrival::new(self.partial, word) }];
        Source { access, arrivals }
    }
}

/// Adds up `slots`. Tasks of `from` write them; their last loop variable is the column block.
pub(in crate::passes) fn sum(
    draft: &mut Draft,
    config: &Config,
    how: Reduce,
    of: &Summed<'_>,
    slots: BufId,
    from: Contributions,
) {
    let (nodes, out) = (draft.along(of.axis), of.out);
    let Contributions { rows, block, together, by, operand } = from;
    let rows = rows.by_others();
    let n = draft.own(out, 1);
    let across = tiles_across(out, block[1]);
    let reduction_tiles =
        reduction_tiles(draft, config.reduction, Share::One, across, &rows.own(), block, together);
    let post = |c: TileRows| {
        let column = draft.plan.families[c.family].domain.len() - 1;
        let node = nodes.node_of(c.shard.clone());
        let word = vec![nodes.near.place(), node, c.block, Var::domain(column).into()];
        Writer::new(c.family, operand, word).on(nodes.same_place(c.shard)).when(c.when)
    };
    let from = by.into_iter().map(post).collect();
    let shape = vec![nodes.local().into(), nodes.count().into(), rows.blocks.into(), across.into()];
    let partial = draft.flow(Flow::new("partial", shape, 1.into(), from));
    let rows = rows.in_blocks(reduction_tiles.tile[0]);
    let pieces = Pieces::whole(rows.height, rows.blocks);
    let x = Shared { nodes, reduction_tiles, pieces, across, n, rows, partial, slots };
    let dtype = of.contribution.dtype;
    let one = vec![x.rows.capacity.into(), x.n.clone()];
    let by_node = |count: i32| [vec![Expr::from(count)], one.clone()].concat();
    let send = draft.buffer("part_send", Space::Net, dtype, by_node(nodes.count() - 1), None);
    let recv = draft.buffer("part_recv", Space::Net, dtype, by_node(nodes.count()), None);
    let relayed = for_others(draft, &x, send, recv);
    let kept = for_own(draft, &x, recv);
    let finished = at_owner(draft, &x, how, of, recv, (relayed, kept));
    if let Some(finished) = finished {
        spread(draft, &x, of, finished);
    }
}

/// Sums of this node for owners in other nodes, and their way there.
fn for_others(draft: &mut Draft, x: &Shared, send: BufId, recv: BufId) -> FlowId {
    let nodes = x.nodes;
    let [i, m, j] = [0, 1, 2].map(|v| Expr::from(Var::domain(v)));
    let [_, place] = nodes.rail(m.clone());
    let rows = x.rows(draft, &i, place);
    let node = nodes.other(m.clone());
    let src = x.contributions(node, rows.clone(), i.clone(), j.clone());
    let dst = write(Operand::Dst, send, vec![(m.clone(), 1.into()), rows, x.columns(j)]);
    let others: Expr = (nodes.count() - 1).into();
    let domain = vec![("i", x.pieces.blocks.into()), ("m", others.clone()), ("j", x.across.into())];
    let leaf = Leaf::ReduceTile(ReduceTile { epilogue: Vec::new() });
    let touched = vec![src, dst.into()];
    let family = draft.family("reduce.node", x.reduction_tiles.kind, leaf, domain, vec![], touched);
    let added = Writer::new(family, Operand::Dst, vec![m.clone(), i.clone()]);
    let shape = vec![others, x.pieces.blocks.into()];
    let ready = draft.flow(Flow::new("summed.node", shape, x.across.into(), vec![added]));

    let [_, _, other] = deliver::vars();
    let [_, place] = nodes.rail(other.clone());
    let rows = x.rows(draft, &i, place);
    let region = vec![(other.clone(), 1.into()), rows.clone(), x.wide()];
    let from = Source::behind(read(Operand::Src, send, region), ready, vec![other, i.clone()]);
    let there = vec![nodes.own_part(), rows, x.wide()];
    let credit = vec![m, i, 0.into()];
    let message_tasks = x.pieces.to_others(nodes);
    deliver::carry(
        draft,
        Messages {
            message_tasks,
            from,
            to: recv,
            there,
            tables: Vec::new(),
            maker: family,
            credit,
            each: None,
        },
    )
}

/// Sums of this node for local rows, beside those that come.
fn for_own(draft: &mut Draft, x: &Shared, recv: BufId) -> FlowId {
    let [i, j] = [0, 1].map(|v| Expr::from(Var::domain(v)));
    let rows = x.rows(draft, &i, x.rows.group.place());
    let home = x.nodes.far.place();
    let src = x.contributions(home.clone(), rows.clone(), i.clone(), j.clone());
    let region = vec![(home, 1.into()), rows, x.columns(j.clone())];
    let dst = write(Operand::Dst, recv, region);
    let domain = vec![("i", x.pieces.blocks.into()), ("j", x.across.into())];
    let leaf = Leaf::ReduceTile(ReduceTile { epilogue: Vec::new() });
    let touched = vec![src, dst.into()];
    let family = draft.family("reduce.own", x.reduction_tiles.kind, leaf, domain, vec![], touched);
    let shape = vec![x.pieces.blocks.into(), x.across.into()];
    let added = Writer::new(family, Operand::Dst, vec![i, j]);
    draft.flow(Flow::new("kept", shape, 1.into(), vec![added]))
}

/// Finished rows of an all-reduce: for the node, and for the network.
struct Finished {
    by: FamId,
    sums: BufId,
    net: BufId,
}

/// The owner adds the sums of the nodes.
fn at_owner(
    draft: &mut Draft,
    x: &Shared,
    how: Reduce,
    of: &Summed<'_>,
    recv: BufId,
    (relayed, kept): (FlowId, FlowId),
) -> Option<Finished> {
    let (nodes, out) = (x.nodes, of.out);
    let [i, j] = [0, 1].map(|v| Expr::from(Var::domain(v)));
    let here = x.rows(draft, &i, x.rows.group.place());
    let columns = x.columns(j.clone());
    let each = Each { var: "n".into(), extent: nodes.count().into() };
    let region = vec![(Var::EACH.into(), 1.into()), here.clone(), columns.clone()];
    let access = Access { each: Some(each), ..read(Operand::Src, recv, region) };
    let wire = vec![nodes.other(Var::EACH.into()), i.clone(), 0.into()];
    let wire = Arrival { each: Some(deliver::others(nodes)), ..Arrival::new(relayed, wire) };
    let arrivals = vec![wire, Arrival::new(kept, vec![i, j])];
    let mut touched = vec![Source { access, arrivals }];
    let first = match how {
        Reduce::All => x.rows.group.place() * x.rows.per_shard.clone(),
        _ => Expr::Const(0),
    };
    let region = vec![(first + here.0.clone(), here.1.clone()), columns.clone()];
    touched.extend(of.makes(region).into_iter().map(Source::from));
    let all = (how == Reduce::All).then(|| {
        let one = vec![x.rows.capacity.into(), x.n.clone()];
        let shape = [vec![Expr::from(x.rows.group.size)], one.clone()].concat();
        let sums = draft.buffer("sums", Space::Workspace, out.dtype, shape, None);
        (sums, draft.buffer("sums_send", Space::Net, out.dtype, one, None))
    });
    if let Some((sums, net)) = all {
        if nodes.local() > 1 {
            let theirs = vec![(x.rows.group.place(), 1.into()), here.clone(), columns.clone()];
            touched.push(deliver::to_peers(write(Operand::Dst, sums, theirs), nodes.near).into());
        }
        touched.push(write(Operand::Dst, net, vec![here, columns]).into());
    }
    let domain = vec![("i", x.pieces.blocks.into()), ("j", x.across.into())];
    let by = draft.family("reduce", x.reduction_tiles.kind, of.leaf(), domain, vec![], touched);
    all.map(|(sums, net)| Finished { by, sums, net })
}

/// Brings finished rows to every rank, and every rank copies the others' to where the caller wants them.
fn spread(draft: &mut Draft, x: &Shared, of: &Summed<'_>, Finished { by, sums, net }: Finished) {
    let nodes = x.nodes;
    let kind = x.reduction_tiles.kind;
    // After the GEMMs, the CTAs that multiply have no ring for bulk copies.
    let via = if kind == RoleKind::Compute { CopyVia::Ldst } else { CopyVia::Bulk };
    let delivery = Delivery {
        name: "sums",
        dtype: of.out.dtype,
        rows: &x.rows,
        n: x.n.clone(),
        pieces: x.pieces,
        to: sums,
        kind,
        via,
        flow: "summed",
        words: vec![x.rows.group.size.into(), x.pieces.blocks.into()],
        count: x.across.into(),
        amount: x.across.into(),
    };
    let i = Expr::from(Var::domain(0));
    let near = |_: &mut Draft| {
        let word = vec![x.rows.group.place(), i.clone()];
        Writer::new(by, Operand::Dst, word).on_each(nodes.near.every_peer())
    };
    let summed = delivery.bring(draft, near, |draft| {
        let added = Writer::new(by, Operand::Dst, vec![i.clone()]);
        let shape = vec![x.pieces.blocks.into()];
        let words = draft.flow(Flow::new("finished", shape, x.across.into(), vec![added]));
        let rows = x.rows(draft, &i, x.rows.group.place());
        Staged { memory: net, by, words, word: vec![i.clone()], rows }
    });

    let height = match kind {
        RoleKind::Compute => x.pieces.block,
        _ => x.pieces.block.min(COPIED_ROWS),
    };
    let theirs = x.rows.in_blocks(height).peers();
    let r = theirs.block(&mut draft.extents);
    let here = vec![(r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone()), x.wide()];
    let src = read(Operand::Src, sums, here);
    let to = (theirs.global(&r), r.len.clone());
    let dst = write(Operand::Dst, of.result, vec![to, x.wide()]);
    let leaf = via.leaf(draft.copy_stages);
    let word = vec![r.shard, r.block / (x.pieces.block / height)];
    let touched = vec![Source::behind(src, summed, word), dst.into()];
    draft.family("collect", kind, leaf, theirs.domain(1), vec![], touched);
}
