//! Gathered rows of other nodes: each rank stages its rows in net memory and sends them to its rail, once to each node, and what has come
//! goes on to the ranks of the node.
//!
//! A ring between nodes would move as many bytes over each network card, `(nodes - 1)` shards, in as many more hops.

use super::rail::{self, Forward, Messages, Pieces};
use crate::passes::{
    draft::{Draft, Flow, Reader, Source, Writer, read, write},
    shape::{rows::Rows, tensor::Tensor},
};
use crate::settings::Config;
use mk_plan::{BufId, CopyVia, Expr, Operand, RoleKind, Space, Var};

/// Adds what brings other nodes' rows of `x` to `all`; says which words of `arrived` it raises.
pub(in crate::passes) fn push(
    draft: &mut Draft,
    x: &Tensor,
    (shard, all): (BufId, BufId),
    rows: &Rows,
    pieces: Pieces,
    config: &Config,
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
    let accesses =
        [read(Operand::Src, shard, region.clone()), write(Operand::Dst, send, region.clone())];
    let leaf = CopyVia::Bulk.leaf(config.copy_stages);
    let domain = pieces.domain();
    let stage = draft.family("stage", RoleKind::InterSend, leaf, domain, vec![], accesses);
    let done = Writer::new(stage, Operand::Dst, vec![i.clone(), p.clone()]);
    let shape = vec![pieces.blocks.into(), pieces.per_block.into()];
    let staged = draft.flow(Flow::new("staged", shape, 1.into(), vec![done]));
    let word = vec![i.clone(), p.clone()];
    let from = Source::behind(read(Operand::Src, send, region), staged, word);
    let carried =
        rail::carry(draft, Messages { pieces, from, to: recv, there: [own, wide.clone()] });
    let each = Some(rail::others(draft));
    let room = Reader::new(stage, Operand::Dst, vec![Var::EACH.into(), i.clone(), p]);
    draft.read(carried.sent, Reader { lag: 1, each, ..room });

    let source = rail::source_rank(draft);
    let theirs = draft.local(x, 0, source.clone());
    let forward = Forward {
        pieces,
        from: recv,
        relayed: carried.relayed,
        to: all,
        rows: theirs,
        columns: wide,
        via: CopyVia::Bulk,
        kind: RoleKind::IntraComm,
    };
    let forward = rail::forward(draft, forward);
    rail::told_to_node(draft, Writer::new(forward, Operand::Dst, vec![source, i]))
}
