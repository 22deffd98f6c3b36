//! Between nodes: messages of net memory to the ranks of the same place (the *rail*), and what has come on to the node.
//!
//! Assumes nodes, and rows without gaps: a message is one piece of memory. A message waits for a word of the GPU, and raises a word of
//! the network behind itself; few CTAs may await those, and *relay* them as words of the GPU. What a message was sent from
//! is handed back when the card has delivered it: a credit, a launch back.
//!
//! Loops of a message: block of rows, piece of the block, and the other node last, so that all nodes are sent the first rows first, where
//! no order says otherwise.

use crate::ir::{Access, BufId, CopyVia, Each, Expr, FamId, Leaf, Operand, RoleKind, Var};
use crate::passes::draft::{Draft, Flow, FlowId, Reader, Source, Writer, read, write};

/// Blocks of rows, and pieces of each.
#[derive(Clone, Copy)]
pub(in crate::passes) struct Pieces {
    /// Rows of a block.
    pub block: i32,
    pub blocks: i32,
    /// Rows of a piece.
    pub piece: i32,
    pub per_block: i32,
    /// Whether a group of blocks leaves piece by piece: their words are then side by side, so that messages go to all lanes in turn.
    pub by_piece: bool,
}

impl Pieces {
    /// Blocks as they are.
    pub fn whole(block: i32, blocks: i32) -> Pieces {
        Pieces { block, blocks, piece: block, per_block: 1, by_piece: false }
    }

    /// Pieces of so many bytes at most, but of eight rows at least.
    pub fn new(block: i32, blocks: i32, row_bytes: u64, most_bytes: u32) -> Pieces {
        let mut piece = block;
        while piece > 8 && piece % 2 == 0 && piece as u64 * row_bytes.max(1) > u64::from(most_bytes)
        {
            piece /= 2;
        }
        let per_block = (block + piece - 1) / piece;
        Pieces { block, blocks, piece, per_block, by_piece: false }
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

    /// Words of messages by `first`, piece by piece.
    fn words(self, first: Expr) -> Vec<Expr> {
        self.word(first, self.blocks.into(), self.per_block.into())
    }

    /// The word of a piece of a block.
    pub fn word(self, first: Expr, block: Expr, piece: Expr) -> Vec<Expr> {
        if self.by_piece { vec![first, piece, block] } else { vec![first, block, piece] }
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
    /// Where it arrives, and the region there.
    pub to: BufId,
    pub there: Vec<(Expr, Expr)>,
    /// In which order messages are sent, and awaited.
    pub order: Vec<Expr>,
    pub come: Vec<Expr>,
}

/// Copies into net memory, in bulk: stores of threads would hold up everything else that the GPU has under way.
pub(in crate::passes) struct Stage {
    pub name: &'static str,
    pub pieces: Pieces,
    pub from: Source,
    pub order: Vec<Expr>,
}

/// Stages pieces of `send`, or of each of so many other nodes; says which words, by node and piece, stand for them, and by which family.
pub(in crate::passes) fn stage(
    draft: &mut Draft,
    x: Stage,
    (send, region): (BufId, Vec<(Expr, Expr)>),
    nodes: Option<Expr>,
) -> (FlowId, FamId) {
    let [i, p] = Pieces::vars();
    let mut domain = x.pieces.domain();
    let (first, shape) = match nodes {
        None => (Expr::Const(0), Expr::Const(1)),
        Some(nodes) => {
            domain.push(("m", nodes.clone()));
            (other(), nodes)
        }
    };
    let leaf = Leaf::CopyTile { via: CopyVia::Bulk, stages: draft.copy_stages };
    let touched = vec![x.from, write(Operand::Dst, send, region).into()];
    let family = draft.family(x.name, RoleKind::InterSend, leaf, domain, x.order, touched);
    let done = Writer::new(family, Operand::Dst, x.pieces.word(first, i, p));
    let shape = x.pieces.words(shape);
    (draft.flow(Flow::new("staged", shape, 1.into(), vec![done])), family)
}

/// Messages under way.
pub(in crate::passes) struct Carried {
    /// Words by other node and piece: the source may be written again, in the next launch.
    pub sent: FlowId,
    /// Words of the GPU by source node and piece: it is here.
    pub relayed: FlowId,
}

/// Sends messages, and relays what has come.
pub(in crate::passes) fn carry(draft: &mut Draft, x: Messages) -> Carried {
    let nodes = draft.nodes();
    let others: Expr = (nodes.count() - 1).into();
    let [i, p] = Pieces::vars();
    let to = nodes.rail(other());
    let dst = Access { rank: to.clone(), ..write(Operand::Dst, x.to, x.there) };
    let mut domain = x.pieces.domain();
    domain.push(("m", others.clone()));
    let kind = RoleKind::InterSend;
    let touched = vec![x.from, dst.into()];
    let send = draft.family("send", kind, Leaf::NicSend, domain.clone(), x.order, touched);
    let word = |first: Expr| x.pieces.word(first, i.clone(), p.clone());
    let delivered = Writer::new(send, Operand::Src, word(other()));
    let sent = draft.flow(Flow::new("sent", x.pieces.words(others), 1.into(), vec![delivered]));
    let behind = Writer::new(send, Operand::Dst, word(home(draft))).on(to);
    let shape = x.pieces.words(nodes.count().into());
    let wired = draft.flow(Flow::new("wired", shape.clone(), 1.into(), vec![behind]));
    let none = [] as [Access; 0];
    let relay = draft.family("relay", RoleKind::InterReduce, Leaf::Signal, domain, x.come, none);
    let word = word(node(draft, other()));
    draft.read(wired, Reader::new(relay, Operand::Src, word.clone()));
    let seen = Writer::new(relay, Operand::Dst, word);
    let relayed = draft.flow(Flow::new("relayed", shape, 1.into(), vec![seen]));
    Carried { sent, relayed }
}

/// Tells the family that stages what was delivered: it writes again what was sent in the launch before. To all nodes, where a piece goes to
/// `each` of them.
pub(in crate::passes) fn hand_back(
    draft: &mut Draft,
    stage: FamId,
    sent: FlowId,
    pieces: Pieces,
    each: bool,
) {
    let [i, p] = Pieces::vars();
    let node = if each { Var::EACH.into() } else { other() };
    let each = each.then(|| others(draft));
    let room = Reader::new(stage, Operand::Dst, pieces.word(node, i, p));
    draft.read(sent, Reader { lag: 1, each, ..room });
}

/// Rows that have come over the wire, on their way to the node.
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
    let leaf = Leaf::CopyTile { via: CopyVia::Bulk, stages: draft.copy_stages };
    let kind = RoleKind::IntraComm;
    draft.family("forward", kind, leaf, domain, vec![], vec![src, dst.into()])
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
