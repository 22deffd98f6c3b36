//! Gathered rows of other nodes: each rank stages its rows in net memory and sends them to its rail, once to each node, and what has come
//! goes on to the ranks of the node.
//!
//! A ring between nodes would move as many bytes over each network card, `(nodes - 1)` shards, in as many more hops.

use super::rail::{self, Forward, Messages, Pieces, Stage};
use crate::ir::{BufId, Expr, Operand, Space, Var};
use crate::passes::{
    draft::{Draft, Source, Writer, read},
    shape::{rows::Rows, tensor::Tensor},
};

/// Adds what brings other nodes' rows of `x` to `all`; says which words of `arrived` it raises.
pub(in crate::passes) fn push(
    draft: &mut Draft,
    x: &Tensor,
    (shard, all): (BufId, BufId),
    rows: &Rows,
    pieces: Pieces,
) -> Writer {
    let (name, nodes) = (&x.name, draft.nodes());
    let k = draft.dim(&x.shape[1]);
    let wide = (Expr::Const(0), k.clone());
    let mut net = |of: &str, shape: Vec<Expr>| {
        draft.buffer(&format!("{name}_{of}"), Space::Net, x.dtype, shape, None)
    };
    let one = vec![rows.capacity.into(), k];
    let send = net("send", one.clone());
    let recv = net("recv", [vec![nodes.count().into()], one].concat());

    let [i, p] = Pieces::vars();
    let mine = draft.local(x, 0, Var::RANK);
    let own = pieces.rows(&i, p.clone(), mine);
    let region = vec![own.clone(), wide.clone()];
    let from = read(Operand::Src, shard, region.clone()).into();
    let order = Vec::new();
    let stage = Stage { name: "stage", pieces, from, order };
    let (staged, stage) = rail::stage(draft, stage, (send, region.clone()), None);
    let word = pieces.word(0.into(), i.clone(), p.clone());
    let from = Source::behind(read(Operand::Src, send, region), staged, word);
    let there = vec![(rail::home(draft), 1.into()), own, wide.clone()];
    let (order, come) = (Vec::new(), Vec::new());
    let carried = rail::carry(draft, Messages { pieces, from, to: recv, there, order, come });
    rail::hand_back(draft, stage, carried.sent, pieces, true);

    let source = rail::source_rank(draft);
    let theirs = draft.local(x, 0, source.clone());
    let forward = Forward {
        pieces,
        from: recv,
        relayed: carried.relayed,
        to: all,
        rows: theirs,
        columns: wide,
    };
    let forward = rail::forward(draft, forward);
    rail::told_to_node(draft, Writer::new(forward, Operand::Dst, vec![source, i]))
}
