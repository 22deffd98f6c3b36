//! Delivers memory to its readers, the ranks of a group: over NVLink within the node, and once to each other node by
//! the network card, to the rank of the same local index (the *rail*), which forwards it within its node.
//!
//! Between nodes rows must be contiguous: a message is one piece of memory. It waits for a flag in GPU memory, and
//! increments a network flag after its data. Only inter roles, of few CTAs, wait for network flags; they *relay* them
//! as GPU flags. The send buffer is free again when the card has delivered it: a credit, awaited one launch later. A
//! ring between nodes would move as many bytes over each card, in more hops.
//!
//! Loops over messages: block of rows, piece of the block, other node (innermost), so that every node gets the first
//! rows first.

use crate::passes::{
    draft::{Draft, Flow, FlowId, Reader, Source, Writer, on_each, read, write},
    error::{LowerError, unsupported},
    shape::{
        ranks::{Nodes, RankGroup},
        rows::Rows,
    },
};
use mk_abi::DType;
use mk_plan::{Access, BufId, CopyVia, Each, Expr, FamId, Leaf, Operand, RoleKind, Space, Var};

/// The ranks whose memory `what` reads or writes in place: all of the group.
///
/// # Errors
/// [`LowerError::Unsupported`] where some are on other nodes, whose memory is not mapped.
pub(in crate::passes) fn mapped(nodes: Nodes, what: &str) -> Result<RankGroup, LowerError> {
    let Nodes { group, near, .. } = nodes;
    if near != group {
        let why = "it touches the memory of every rank, and no network card carries that between nodes yet";
        return Err(unsupported(what, why, "use one node"));
    }
    Ok(group)
}

/// Turns a write of local memory into a write to every peer of a group.
pub(in crate::passes) fn to_peers(access: Access, group: RankGroup) -> Access {
    let (rank, each) = group.every_peer();
    Access { rank, each: Some(each), ..access }
}

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

    /// One block of few rows, in pieces of so many bytes at most, but of a row at least.
    pub fn of_few(rows: i32, row_bytes: u64, most_bytes: u32) -> Pieces {
        let most = u64::from(most_bytes) / row_bytes.max(1);
        let piece = i32::try_from(most).unwrap_or(rows).clamp(1, rows.max(1));
        // Equal pieces, so that the last one is not small.
        let count = (rows + piece - 1) / piece;
        let piece = (rows + count - 1) / count.max(1);
        Pieces { block: rows, blocks: 1, piece, per_block: (rows + piece - 1) / piece.max(1) }
    }

    /// Its loops: block and piece.
    fn domain(self) -> Vec<(&'static str, Expr)> {
        vec![("i", self.blocks.into()), ("q", self.per_block.into())]
    }

    /// Messages of these pieces, to other nodes in turn.
    pub fn to_others(self, nodes: Nodes) -> MessageTasks {
        let [i, p, m] = vars();
        let others = vec![("m", (nodes.count() - 1).into())];
        MessageTasks {
            nodes,
            domain: [self.domain(), others].concat(),
            other: m,
            shape: vec![self.blocks.into(), self.per_block.into()],
            word: vec![i, p],
        }
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
}

/// Block and piece of a message, and its other node.
pub(in crate::passes) fn vars() -> [Expr; 3] {
    [0, 1, 2].map(|n| Var::domain(n).into())
}

/// A loop over the other nodes.
pub(in crate::passes) fn others(nodes: Nodes) -> Each {
    Each { var: "m".into(), extent: (nodes.count() - 1).into() }
}

/// The tasks that send messages, and those that receive them.
#[derive(Clone)]
pub(in crate::passes) struct MessageTasks {
    /// The ranks that share what they carry.
    pub nodes: Nodes,
    /// Loops; one of them is over other nodes.
    pub domain: Vec<(&'static str, Expr)>,
    /// The number of a task's other node.
    pub other: Expr,
    /// The shape of the set of messages between two nodes, and a task's message in it.
    pub shape: Vec<Expr>,
    pub word: Vec<Expr>,
}

impl MessageTasks {
    /// Shape of words `[by, message]`.
    fn words(&self, by: i32) -> Vec<Expr> {
        [vec![by.into()], self.shape.clone()].concat()
    }

    /// The word `[which, message of the task]`.
    pub fn by(&self, which: Expr) -> Vec<Expr> {
        [vec![which], self.word.clone()].concat()
    }
}

/// Messages of a rank to its rail.
pub(in crate::passes) struct Messages {
    pub message_tasks: MessageTasks,
    /// The source, and the GPU flags that it waits for.
    pub from: Source,
    /// The destination, of which each source node has its part, and the region there.
    pub to: BufId,
    pub there: Vec<(Expr, Expr)>,
    /// What is looked up for either.
    pub tables: Vec<Source>,
    /// The family that writes the send buffer, and the credits `[other node, message]` that its tasks wait for.
    pub maker: FamId,
    pub credit: Vec<Expr>,
    pub each: Option<Each>,
}

/// Sends messages, relays arrivals, and returns credits for send buffers. Returns the flow of GPU flags `[source node,
/// message]`: the message has arrived.
pub(in crate::passes) fn carry(draft: &mut Draft, x: Messages) -> FlowId {
    let message_tasks = x.message_tasks;
    let nodes = message_tasks.nodes;
    let m = message_tasks.other.clone();
    let [to, _] = nodes.rail(m.clone());
    let dst = Access { rank: to.clone(), ..write(Operand::Dst, x.to, x.there) };
    let domain = message_tasks.domain.clone();
    let kind = RoleKind::InterSend;
    let touched: Vec<Source> = [x.from, dst.into()].into_iter().chain(x.tables).collect();
    let send = draft.family("send", kind, Leaf::NicSend, domain.clone(), vec![], touched);
    let delivered = Writer::new(send, Operand::Src, message_tasks.by(m.clone()));
    let shape = message_tasks.words(nodes.count() - 1);
    let sent = draft.flow(Flow::new("sent", shape, 1.into(), vec![delivered]));
    let behind = Writer::new(send, Operand::Dst, message_tasks.by(nodes.far.place())).on(to);
    let shape = message_tasks.words(nodes.count());
    let wired = draft.flow(Flow::new("wired", shape.clone(), 1.into(), vec![behind]));
    let none = [] as [Access; 0];
    let relay = draft.family("relay", RoleKind::InterReduce, Leaf::Signal, domain, vec![], none);
    let [from, _] = nodes.source(m);
    let word = message_tasks.by(from);
    draft.read(wired, Reader::new(relay, Operand::Src, word.clone()));
    let seen = Writer::new(relay, Operand::Dst, word);
    let credit = Reader { each: x.each, ..Reader::new(x.maker, Operand::Dst, x.credit) };
    match draft.kinds[x.maker] {
        RoleKind::InterSend => draft.read(sent, Reader { lag: 1, ..credit }),
        _ => {
            let room = room(draft, sent, &message_tasks);
            draft.read(room, credit);
        }
    }
    draft.flow(Flow::new("relayed", shape, 1.into(), vec![seen]))
}

/// GPU flags of credits, `[other node, message]`, for writers outside inter roles, which cannot wait for network flags.
/// They depend on the previous launch only.
fn room(draft: &mut Draft, sent: FlowId, message_tasks: &MessageTasks) -> FlowId {
    let (domain, none) = (message_tasks.domain.clone(), [] as [Access; 0]);
    let family = draft.family("room", RoleKind::InterReduce, Leaf::Signal, domain, vec![], none);
    // First in its role: no relay that waits for other nodes precedes it.
    draft.first.push(family);
    let word = message_tasks.by(message_tasks.other.clone());
    draft.read(sent, Reader { lag: 1, ..Reader::new(family, Operand::Src, word.clone()) });
    let seen = Writer::new(family, Operand::Dst, word);
    let shape = message_tasks.words(message_tasks.nodes.count() - 1);
    draft.flow(Flow::new("room", shape, 1.into(), vec![seen]))
}

/// An all-gather of rows within a group.
pub(in crate::passes) struct Delivery<'a> {
    /// Prefix of the names of its net buffers.
    pub name: &'a str,
    pub dtype: DType,
    /// Rows of a rank; `n` is their length.
    pub rows: &'a Rows,
    pub n: Expr,
    pub pieces: Pieces,
    /// `[ranks, rows, n]` of every rank.
    pub to: BufId,
    /// Role that forwards rows from other nodes, and its kind of copy.
    pub kind: RoleKind,
    pub via: CopyVia,
    /// The flow: name, shape of words, count of each word; `amount` is the increment for a piece from another node.
    pub flow: &'static str,
    pub words: Vec<Expr>,
    pub count: Expr,
    pub amount: Expr,
}

/// Local rows in a send buffer: the family that writes them, and its flow of words.
pub(in crate::passes) struct Staged {
    pub memory: BufId,
    pub by: FamId,
    pub words: FlowId,
    pub word: Vec<Expr>,
    /// Rows of a message.
    pub rows: (Expr, Expr),
}

impl Delivery<'_> {
    fn wide(&self) -> (Expr, Expr) {
        (0.into(), self.n.clone())
    }

    /// Brings rows to all ranks. `near` makes the writer of local rows within the node (if it has several ranks),
    /// `stage` the writer of the send buffer (if there are several nodes).
    pub fn bring(
        &self,
        draft: &mut Draft,
        near: impl FnOnce(&mut Draft) -> Writer,
        stage: impl FnOnce(&mut Draft) -> Staged,
    ) -> FlowId {
        let mut from = Vec::new();
        if draft.along(self.rows.axis).local() > 1 {
            from.push(near(draft));
        }
        if draft.along(self.rows.axis).count() > 1 {
            let staged = stage(draft);
            from.push(self.over_rail(draft, staged));
        }
        draft.flow(Flow::new(self.flow, self.words.clone(), self.count.clone(), from))
    }

    /// Copies local rows from `shard` to the send buffer.
    pub fn stage(&self, draft: &mut Draft, shard: BufId) -> Staged {
        let pieces = self.pieces;
        let shape = vec![self.rows.capacity.into(), self.n.clone()];
        let name = format!("{}_send", self.name);
        let memory = draft.buffer(&name, Space::Net, self.dtype, shape, None);
        let [i, p, _] = vars();
        let mine = draft.own(&self.rows.of, 0);
        let rows = pieces.rows(&i, p.clone(), mine);
        let region = vec![rows.clone(), self.wide()];
        let touched =
            [read(Operand::Src, shard, region.clone()), write(Operand::Dst, memory, region)];
        let leaf = CopyVia::Bulk.leaf(draft.copy_stages);
        let domain = pieces.domain();
        // By those that forward: one CTA stages 40 GB/s, less than a card of 400 Gb/s sends.
        let by = draft.family("stage", self.kind, leaf, domain, vec![], touched);
        // What travels further goes first.
        draft.first.push(by);
        let word = vec![i, p];
        let done = Writer::new(by, Operand::Dst, word.clone());
        let shape = vec![pieces.blocks.into(), pieces.per_block.into()];
        let words = draft.flow(Flow::new("staged", shape, 1.into(), vec![done]));
        Staged { memory, by, words, word, rows }
    }

    /// Sends local rows to the rail, and copies arrivals to every rank of the node, this one too: GEMMs read the rows
    /// of all ranks from one buffer, and net memory, which may be host memory, is read once.
    fn over_rail(&self, draft: &mut Draft, x: Staged) -> Writer {
        let (nodes, pieces) = (draft.along(self.rows.axis), self.pieces);
        let shape = vec![nodes.count().into(), self.rows.capacity.into(), self.n.clone()];
        let recv = format!("{}_recv", self.name);
        let recv = draft.buffer(&recv, Space::Net, self.dtype, shape, None);
        let [i, p, m] = vars();
        let sent = read(Operand::Src, x.memory, vec![x.rows.clone(), self.wide()]);
        let piece = if x.word.len() > 1 { p.clone() } else { 0.into() };
        let messages = Messages {
            message_tasks: pieces.to_others(nodes),
            from: Source::behind(sent, x.words, x.word),
            to: recv,
            there: vec![nodes.own_part(), x.rows, self.wide()],
            tables: Vec::new(),
            maker: x.by,
            credit: vec![Var::EACH.into(), i.clone(), piece],
            each: Some(others(nodes)),
        };
        let relayed = carry(draft, messages);
        let [from, source] = nodes.source(m);
        let rows = match &self.rows.pieces {
            Some(_) => self.rows.in_blocks(pieces.block).of_shard(&mut draft.extents, &source, &i),
            None => {
                let (of, ranks) = (&self.rows.of.shape[0], self.rows.group.size);
                let theirs = draft.extents.shard(of, ranks, source.clone());
                pieces.rows(&i, p.clone(), theirs)
            }
        };
        let here = vec![(from.clone(), 1.into()), rows.clone(), self.wide()];
        let src = read(Operand::Src, recv, here);
        let src = Source::behind(src, relayed, vec![from, i.clone(), p]);
        let dst = write(Operand::Dst, self.to, vec![(source.clone(), 1.into()), rows, self.wide()]);
        let node = (nodes.local() > 1).then(|| nodes.near.everyone());
        let dst = on_each(dst, node.clone());
        let leaf = self.via.leaf(draft.copy_stages);
        let (message_tasks, touched) = (pieces.to_others(nodes), vec![src, dst.into()]);
        let forward =
            draft.family("forward", self.kind, leaf, message_tasks.domain, vec![], touched);
        let come = Writer::new(forward, Operand::Dst, vec![source, i]);
        let come = Writer { amount: self.amount.clone(), ..come };
        come.on_each(node)
    }
}
