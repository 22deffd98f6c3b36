//! Between nodes: messages of net memory to the ranks of the same place (the *rail*), and what has come on to the node.
//!
//! Assumes nodes, and rows without gaps: a message is one piece of memory. A message waits for a word of the GPU, and raises a word of
//! the network behind itself; few CTAs may await those, and *relay* them as words of the GPU. What a message was sent from
//! is handed back when the card has delivered it: a credit, a launch back.
//!
//! Loops of a message: block of rows, piece of the block, and the other node last, so that all nodes are sent the first rows first.

use crate::passes::draft::{Draft, Flow, FlowId, Reader, Source, Writer, read, write};
use mk_plan::{Access, BufId, CopyVia, Each, Expr, FamId, Leaf, Operand, RoleKind, Var};

/// Blocks of rows, and pieces of each.
#[derive(Clone, Copy)]
pub(in crate::passes) struct Pieces {
    /// Rows of a block.
    pub block: i32,
    pub blocks: i32,
    /// Rows of a piece.
    pub piece: i32,
    pub per_block: i32,
}

impl Pieces {
    /// Blocks as they are.
    pub fn whole(block: i32, blocks: i32) -> Pieces {
        Pieces { block, blocks, piece: block, per_block: 1 }
    }

    /// Pieces of so many bytes at most, but of eight rows at least.
    pub fn new(block: i32, blocks: i32, row_bytes: u64, most_bytes: u32) -> Pieces {
        let mut piece = block;
        while piece > 8 && piece % 2 == 0 && piece as u64 * row_bytes.max(1) > u64::from(most_bytes)
        {
            piece /= 2;
        }
        Pieces { block, blocks, piece, per_block: (block + piece - 1) / piece }
    }

    /// Its loops: block and piece.
    pub fn domain(self) -> Vec<(&'static str, Expr)> {
        vec![("i", self.blocks.into()), ("q", self.per_block.into())]
    }

    /// The rows of piece `p` of block `i`, of `rows`: neither past the end, nor into the next block.
    pub fn rows(self, i: &Expr, p: Expr, rows: Expr) -> (Expr, Expr) {
        let Pieces { block, piece, .. } = self;
        let base = i.clone() * block + p * piece;
        let in_block = if block % piece == 0 {
            Expr::Const(piece)
        } else {
            Expr::Const(piece).min(i.clone() * block + block - base.clone())
        };
        (base.clone(), in_block.min(rows - base))
    }

    /// The variables of these loops.
    pub fn vars() -> [Expr; 2] {
        [0, 1].map(|n| Var::domain(n).into())
    }
}

/// The own node.
pub(in crate::passes) fn home(draft: &Draft) -> Expr {
    Expr::from(Var::RANK) / draft.nodes().local
}

/// The node `m + 1` places after the own one.
pub(in crate::passes) fn node(draft: &Draft, m: Expr) -> Expr {
    (home(draft) + (m + 1)) % draft.nodes().count()
}

/// The loop over other nodes of messages, and of what has come.
pub(in crate::passes) fn other() -> Expr {
    Var::domain(2).into()
}

/// Every other node: which number, and how many.
pub(in crate::passes) fn others(draft: &Draft) -> Each {
    Each { var: "m".into(), extent: (draft.nodes().count() - 1).into() }
}

/// Messages of a rank to its rail.
pub(in crate::passes) struct Messages {
    pub pieces: Pieces,
    /// What is sent, and the words of the GPU that it waits for.
    pub from: Source,
    /// Where it arrives: `[nodes, rows, n]`, by source.
    pub to: BufId,
    /// Rows and columns there.
    pub there: [(Expr, Expr); 2],
}

/// Messages under way.
pub(in crate::passes) struct Carried {
    /// Words by other node, block and piece: the source may be written again, in the next launch.
    pub sent: FlowId,
    /// Words of the GPU by source node, block and piece: it is here.
    pub relayed: FlowId,
}

/// Sends messages, and relays what has come.
pub(in crate::passes) fn carry(draft: &mut Draft, x: Messages) -> Carried {
    let nodes = draft.nodes();
    let others: Expr = (nodes.count() - 1).into();
    let [i, p] = Pieces::vars();
    let to = nodes.rail(other());
    let [rows, columns] = x.there;
    let there = vec![(home(draft), 1.into()), rows, columns];
    let dst = Access { rank: to.clone(), ..write(Operand::Dst, x.to, there) };
    let mut domain = x.pieces.domain();
    domain.push(("m", others.clone()));
    let kind = RoleKind::InterSend;
    let touched = vec![x.from, dst.into()];
    let send = draft.family("send", kind, Leaf::NicSend, domain.clone(), vec![], touched);
    let by_piece = |first: Expr| vec![first, x.pieces.blocks.into(), x.pieces.per_block.into()];
    let delivered = Writer::new(send, Operand::Src, vec![other(), i.clone(), p.clone()]);
    let sent = draft.flow(Flow::new("sent", by_piece(others), 1.into(), vec![delivered]));
    let word = vec![home(draft), i.clone(), p.clone()];
    let behind = Writer::new(send, Operand::Dst, word).on(to);
    let shape = by_piece(nodes.count().into());
    let wired = draft.flow(Flow::new("wired", shape.clone(), 1.into(), vec![behind]));
    let none = [] as [Access; 0];
    let relay = draft.family("relay", RoleKind::InterReduce, Leaf::Signal, domain, vec![], none);
    let word = vec![node(draft, other()), i, p];
    draft.read(wired, Reader::new(relay, Operand::Src, word.clone()));
    let seen = Writer::new(relay, Operand::Dst, word);
    let relayed = draft.flow(Flow::new("relayed", shape, 1.into(), vec![seen]));
    Carried { sent, relayed }
}

/// Words of the GPU for those that write again what was sent, by other node, block and piece: those of the network are awaited in inter
/// roles only. They are of this launch, and need nothing of it.
pub(in crate::passes) fn room(draft: &mut Draft, sent: FlowId, pieces: Pieces) -> FlowId {
    let others: Expr = (draft.nodes().count() - 1).into();
    let [i, p] = Pieces::vars();
    let mut domain = pieces.domain();
    domain.push(("m", others.clone()));
    let none = [] as [Access; 0];
    let family = draft.family("room", RoleKind::InterReduce, Leaf::Signal, domain, vec![], none);
    // No relay that waits for other nodes stands before it.
    draft.first.push(family);
    let word = vec![other(), i, p];
    draft.read(sent, Reader { lag: 1, ..Reader::new(family, Operand::Src, word.clone()) });
    let seen = Writer::new(family, Operand::Dst, word);
    let shape = vec![others, pieces.blocks.into(), pieces.per_block.into()];
    draft.flow(Flow::new("room", shape, 1.into(), vec![seen]))
}

/// What has come over the wire, on its way to the node.
pub(in crate::passes) struct Forward {
    pub pieces: Pieces,
    /// `[nodes, rows, n]`.
    pub from: BufId,
    pub relayed: FlowId,
    /// `[world, rows, n]` of every rank of the node.
    pub to: BufId,
    /// Rows of the rank that has sent.
    pub rows: Expr,
    pub columns: (Expr, Expr),
    pub via: CopyVia,
    pub kind: RoleKind,
}

/// The rank whose rows a task forwards.
pub(in crate::passes) fn source_rank(draft: &Draft) -> Expr {
    draft.nodes().rail(other())
}

/// Copies what has come to every rank of the node, the own one, too: there a product reads rows of all ranks in one place, and net
/// memory, which may be the host's, is read once.
pub(in crate::passes) fn forward(draft: &mut Draft, x: Forward) -> FamId {
    let nodes = draft.nodes();
    let [i, p] = Pieces::vars();
    let from = node(draft, other());
    let rows = x.pieces.rows(&i, p.clone(), x.rows);
    let here = vec![(from.clone(), 1.into()), rows.clone(), x.columns.clone()];
    let src = Source::behind(read(Operand::Src, x.from, here), x.relayed, vec![from, i, p]);
    let there = vec![(source_rank(draft), 1.into()), rows, x.columns];
    let dst = write(Operand::Dst, x.to, there);
    let dst = match nodes.local {
        1 => dst,
        _ => {
            let (rank, each) = nodes.everyone();
            Access { rank, each: Some(each), ..dst }
        }
    };
    let mut domain = x.pieces.domain();
    domain.push(("m", (nodes.count() - 1).into()));
    let leaf = x.via.leaf(draft.copy_stages);
    draft.family("forward", x.kind, leaf, domain, vec![], vec![src, dst.into()])
}

/// A writer that tells every rank of the node.
pub(in crate::passes) fn told_to_node(draft: &Draft, writer: Writer) -> Writer {
    match draft.nodes().local {
        1 => writer,
        _ => {
            let (rank, each) = draft.nodes().everyone();
            writer.on_each(rank, each)
        }
    }
}
