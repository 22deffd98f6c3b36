//! Rows of each rank that go once to each other node, to the rank of the same place (its *rail*), from where those of
//! its node fetch them, or which copies them to each: tokens, and what a routing says of them.
//!
//! Leaves: a copy in net memory, of pieces that are messages of [`deliver`](super::deliver), and what came beside it.

use super::deliver::{self, MessageTasks, Messages};
use crate::passes::{
    draft::{Draft, Flow, FlowId, Source, Writer, on_each, read, write},
    shape::{
        ranks::{Nodes, block_rows},
        tensor::Tensor,
    },
};
use mk_plan::{BufId, CopyVia, Each, Expr, FamId, Operand, RoleKind, Space, Var};

/// Ranks of a node of whose experts places are; 0: all of one node.
pub(in crate::passes) fn near(nodes: Nodes) -> u32 {
    match nodes.count() {
        1 => 0,
        _ => nodes.local() as u32,
    }
}

/// The place in a node that is the own one's rail.
pub(in crate::passes) fn rail_of(nodes: Nodes, node: Expr) -> Expr {
    node * nodes.local() + nodes.near.place()
}

/// Of ranks that are no rail of this one: the place of number `s`, those of its own node first; which rank of this node
/// has its tokens; and how many they are.
pub(in crate::passes) fn others_of_node(nodes: Nodes, s: Expr) -> (Expr, Expr, i32) {
    let (group, others) = (nodes.group, nodes.local() - 1);
    if nodes.count() == 1 || others == 0 {
        return (group.place_after(s.clone() + 1), group.rank_after(s + 1), others);
    }
    let (node, step) = (nodes.node_before(s.clone() / others), s % others + 1);
    let place = node * nodes.local() + nodes.near.place_after(step.clone());
    (place, nodes.near.rank_after(step), nodes.count() * others)
}

/// Rows of each rank that go to its rails, in pieces of so many.
pub(in crate::passes) struct RailRows<'a> {
    pub of: &'a Tensor,
    pub height: i32,
    pub pieces: i32,
}

impl RailRows<'_> {
    fn wide(&self) -> (Expr, Expr) {
        (0.into(), self.of.shape[1].value.into())
    }

    /// A piece of one rank's.
    fn rows(&self, draft: &mut Draft, i: &Expr, of: Expr) -> (Expr, Expr) {
        let all = draft.local(self.of, 0, of);
        (i.clone() * self.height, block_rows(all, i.clone(), self.height))
    }

    fn own(&self, draft: &mut Draft) -> (Expr, Expr) {
        let (i, all) = (Expr::from(Var::domain(0)), draft.own(self.of, 0));
        (i.clone() * self.height, block_rows(all, i, self.height))
    }

    /// Rows of so many ranks. Origins of integers are followed by rows of the first dimension.
    fn net(&self, draft: &mut Draft, name: &str, ranks: i32) -> BufId {
        let shape = [ranks * self.of.widest(0), self.of.shape[1].value];
        draft.buffer(name, Space::Net, self.of.dtype, shape.map(Expr::from).to_vec(), None)
    }

    /// Rows in the part of a node, behind those of the nodes before.
    fn of_node(&self, node: Expr, (first, some): (Expr, Expr)) -> (Expr, Expr) {
        (node * self.of.widest(0) + first, some)
    }

    /// Sends the caller's rows to the rails: where they arrive, node by node, and the words `[node, piece]`.
    pub fn send(&self, draft: &mut Draft, name: &str, given: BufId) -> (BufId, FlowId) {
        let (nodes, i) = (draft.nodes, Expr::from(Var::domain(0)));
        let (rows, wide) = (self.own(draft), self.wide());
        let send = self.net(draft, &format!("{name}_send"), 1);
        let src = read(Operand::Src, given, vec![rows.clone(), wide.clone()]);
        let dst = write(Operand::Dst, send, vec![rows, wide]);
        let domain = vec![("i", self.pieces.into())];
        let (kind, leaf) = (RoleKind::Compute, CopyVia::Ldst.leaf(1));
        let stage = format!("{name}.net");
        let by = draft.family(&stage, kind, leaf, domain, vec![], [src, dst]);
        // Behind those before, and before everything that waits for the network.
        draft.leaves_first(by, given);
        let staged = Writer::new(by, Operand::Dst, vec![i.clone()]);
        let staged = Flow::new("staged.net", vec![self.pieces.into()], 1.into(), vec![staged]);
        let staged = draft.flow(staged);
        let rows = self.own(draft);
        let from = read(Operand::Src, send, vec![rows.clone(), self.wide()]);
        let recv = self.net(draft, &format!("{name}_recv"), nodes.count());
        let messages = Messages {
            message_tasks: message_tasks(nodes, self.pieces),
            from: Source::behind(from, staged, vec![i.clone()]),
            to: recv,
            there: vec![self.of_node(nodes.far.place(), rows), self.wide()],
            tables: Vec::new(),
            maker: by,
            credit: vec![Var::EACH.into(), i],
            each: Some(deliver::others(nodes)),
        };
        (recv, deliver::carry(draft, messages))
    }

    /// What comes from the rail `m + 1` before: its place, and the read of a piece.
    fn come(&self, draft: &mut Draft, (recv, relayed): (BufId, FlowId)) -> (Expr, Source) {
        let [i, m] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let [node, source] = draft.nodes.source(m);
        let rows = self.rows(draft, &i, source.clone());
        let region = vec![self.of_node(node.clone(), rows), self.wide()];
        (source, Source::behind(read(Operand::Src, recv, region), relayed, vec![node, i]))
    }

    /// Sends the caller's rows to the rails, and copies what comes from them to memory `[places * room, wide]`, of this
    /// rank or of each of its node: which family, and the place whose rows a task copies.
    pub fn bring(
        &self,
        draft: &mut Draft,
        name: &str,
        given: BufId,
        (to, room): (BufId, i32),
        near: Option<(Expr, Each)>,
    ) -> (FamId, Expr) {
        let wide = self.wide();
        let arrived = self.send(draft, name, given);
        let (source, src) = self.come(draft, arrived);
        let (first, some) = self.rows(draft, &Var::domain(0).into(), source.clone());
        let dst = write(Operand::Dst, to, vec![(source.clone() * room + first, some), wide]);
        let dst = on_each(dst, near);
        let domain = message_tasks(draft.nodes, self.pieces).domain;
        let (kind, leaf) = (RoleKind::Compute, CopyVia::Ldst.leaf(1));
        let name = format!("{name}.forward");
        let forward = draft.family(&name, kind, leaf, domain, vec![], vec![src, dst.into()]);
        (forward, source)
    }

    /// The same to each rank of the node; with the words of pieces `[place, piece]`, as one number.
    pub fn to_everyone(
        &self,
        draft: &mut Draft,
        name: &str,
        given: BufId,
        to: (BufId, i32),
    ) -> Writer {
        let near = draft.nodes.near;
        let near = (near.size > 1).then(|| near.everyone());
        let (forward, source) = self.bring(draft, name, given, to, near.clone());
        let word = vec![source * self.pieces + Var::domain(0)];
        let come = Writer::new(forward, Operand::Dst, word);
        come.on_each(near)
    }
}

/// Messages of so many pieces, to the rails in turn.
pub(in crate::passes) fn message_tasks(nodes: Nodes, pieces: i32) -> MessageTasks {
    MessageTasks {
        nodes,
        domain: vec![("i", pieces.into()), ("m", (nodes.count() - 1).into())],
        other: Var::domain(1).into(),
        shape: vec![pieces.into()],
        word: vec![Var::domain(0).into()],
    }
}
