//! Owners push keys and values (or queries, with what belongs to them) from the caller's memory to the peers that meet
//! them, each chunk once, head by head, in the order in which tiles will want them: the heads of one wave, then chunk
//! by chunk, then head by head.
//!
//! To another node a chunk goes once, to the rank of the same place, which forwards it to its node: as messages of
//! [`deliver`](super::deliver), from a copy in net memory, as pieces of one chunk, batch and head.
//!
//! Leaves: `k_all` and `v_all`, symmetric buffers `[chunks, batch, heads, rows, elements]`, in which every chunk is
//! retained until the launch ends, with a word for all parts of each chunk, batch and head.

use super::deliver::{self, MessageTasks, Messages};
use crate::passes::{
    draft::{Arrival, Draft, Flow, FlowId, Source, Writer, one, read, write},
    shape::{chunks::Chunks, ranks::block_rows, tensor::Tensor},
};
use crate::settings::Config;
use mk_abi::DType;
use mk_plan::{Access, BufId, CopyVia, Each, Expr, Operand, RoleKind, Space, TabId, Var};

/// What is on its way.
pub(in crate::passes) struct Pushed {
    /// In the order of the parts.
    pub all: Vec<BufId>,
    /// By chunk, batch and head.
    pub arrived: FlowId,
}

/// A tensor that is pushed: `[B, S, heads, elements]`, or `[B, heads, S, elements]`.
pub(in crate::passes) struct Part<'a> {
    pub tensor: &'a Tensor,
    pub from: BufId,
    /// The dimension of the sequence: 1 or 2, heads being the other one.
    pub along: usize,
}

/// Where data say which ranks meet a chunk.
pub(in crate::passes) struct Meets {
    /// By place and chunk, 0 or 1.
    pub table: TabId,
    /// What is read to look entries up.
    pub entries: Source,
}

impl Meets {
    /// Under this condition, and where a place meets a chunk.
    pub fn also(&self, place: &Expr, chunk: &Expr, when: Option<Expr>) -> Expr {
        let entry = Expr::Table(self.table, vec![place.clone(), chunk.clone()]);
        match when {
            Some(when) => Expr::Select(Box::new([entry, when, 0.into()])),
            None => entry,
        }
    }
}

/// Ranks that a chunk goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) enum Wanted {
    Everywhere,
    /// Where something at its place in the sequence or behind it is: keys of a causal mask.
    Behind,
    /// Where something at its place or before it is: queries of one.
    Before,
}

/// Whether some place from the first to the last of `to` wants chunk `half` of place `of`; `None` where all do. That is
/// a place, or a node that `of` is not in.
fn wants(
    draft: &mut Draft,
    chunks: &Chunks,
    wanted: Wanted,
    half: &Expr,
    of: &Expr,
    [to, last]: &[Expr; 2],
) -> Option<Expr> {
    let of = of.clone();
    let ends = chunks.runs_out();
    let mut some = |chunk: &Expr| {
        let len = ends.then(|| chunks.len(&mut draft.extents, chunk));
        len.map_or(Expr::Const(1), |len| Expr::Const(0).lt(len))
    };
    match (wanted, chunks.per_rank) {
        (Wanted::Everywhere, _) => ends.then(|| some(to)),
        // A shard is seen by the ranks behind it.
        (Wanted::Behind, 1) => Some(of.lt(to.clone()).select(some(to), 0)),
        // The second chunk of a rank in zigzag is seen by the second ones of the ranks before it, the first by all
        // second ones, and by the first ones behind it.
        (Wanted::Behind, _) => {
            let second = some(&chunks.mirror(last.clone()));
            let by_second = to.clone().lt(of.clone()).select(second.clone(), 0);
            if !ends {
                return Some(half.clone().select(by_second, 1));
            }
            let first = of.lt(to.clone()).select(some(to), second);
            Some(half.clone().select(by_second, first))
        }
        // Whatever is before a chunk that is not empty is not empty.
        (Wanted::Before, 1) => Some(to.clone().lt(of)),
        (Wanted::Before, _) => Some(half.clone().select(1, to.clone().lt(of))),
    }
}

/// Adds the push of these parts, of which chunks go to ranks that want them. Parts of one family lie alike, and take
/// turns; families follow each other, and so do parts whose heads are not as wide. `together`: heads that tiles meet at
/// the same time, a divisor of all. `flops`: operations of the rank that receives.
pub(in crate::passes) fn push(
    draft: &mut Draft,
    families: &[(&str, &[Part<'_>])],
    chunks: &Chunks,
    (wanted, meets): (Wanted, Option<&Meets>),
    together: i32,
    flops: f64,
    config: &Config,
) -> Pushed {
    let parts = || families.iter().flat_map(|(_, parts)| parts.iter());
    let row_bytes = |p: &Part<'_>| p.tensor.shape[3].value as u64 * p.tensor.dtype.size_bytes();
    let row_bytes = parts().map(row_bytes).max().unwrap_or(1).max(1);
    let height = chunks.height(row_bytes, config.chunk_bytes);
    let world = f64::from(chunks.group.size);
    let bytes = |p: &Part<'_>| {
        let all: f64 = p.tensor.shape.iter().map(|e| f64::from(e.capacity())).product();
        all * p.tensor.dtype.size_bytes() as f64 * (world - 1.0) / world
    };
    // Of a mask and two parts of each rank, the first goes to all, and the second to half of them.
    let sent = match (wanted, chunks.per_rank) {
        (Wanted::Everywhere, _) => 1.0,
        (_, 1) => 0.5,
        _ => 0.75,
    };
    // Parts whose heads are not as wide do not lie alike.
    let wide = |p: &Part<'_>| p.tensor.shape[3].value;
    let alike = |parts: &[Part<'_>]| parts.iter().all(|p| wide(p) == wide(&parts[0]));
    let apart = families.iter().flat_map(|(name, parts)| {
        let each = if alike(parts) { parts.len() } else { 1 };
        let named =
            move |(i, part)| (if i == 0 { name.to_string() } else { format!("{name}.{i}") }, part);
        parts.chunks(each.max(1)).enumerate().map(named)
    });
    let apart: Vec<_> = apart.collect();
    draft.bytes_per_flop = Some(sent * parts().map(bytes).sum::<f64>() / flops.max(1.0));
    let (all, from) = (Vec::new(), Vec::new());
    let mut pushes = Pushes { chunks, wanted, meets, together, height, all, from };
    let mut shape = vec![chunks.count.into()];
    for (name, parts) in apart {
        let moved = pushes.buffers(draft, parts);
        if chunks.nodes.local() > 1 {
            pushes.family(draft, &name, parts, &moved, config);
        }
        if chunks.nodes.count() > 1 {
            pushes.over_rail(draft, parts, &moved, config);
        }
        shape = vec![chunks.count.into(), moved.batch, moved.heads];
        pushes.all.extend(moved.into);
    }
    let count = parts().count() as i32 * pushes.pieces();
    let Pushes { all, from, .. } = pushes;
    Pushed { all, arrived: draft.flow(Flow::new("arrived", shape, count.into(), from)) }
}

/// Parts that lie alike, on their way.
struct Moved {
    batch: Expr,
    heads: Expr,
    /// Windows of heads.
    windows: i32,
    dtype: DType,
    wide: Expr,
    /// Where each part arrives.
    into: Vec<BufId>,
}

/// The loops of a family that moves pieces of chunks; the other side is a rank, a node, or none.
struct Loops {
    batch: Expr,
    half: Expr,
    head: Expr,
    part: Expr,
    piece: Expr,
    other: Expr,
    domain: Vec<(&'static str, Expr)>,
}

struct Pushes<'a> {
    chunks: &'a Chunks,
    wanted: Wanted,
    meets: Option<&'a Meets>,
    together: i32,
    /// Rows of a piece.
    height: i32,
    all: Vec<BufId>,
    from: Vec<Writer>,
}

impl Pushes<'_> {
    /// Pieces of a chunk.
    fn pieces(&self) -> i32 {
        (self.chunks.rows + self.height - 1) / self.height
    }

    /// Where parts arrive, which lie alike.
    fn buffers(&self, draft: &mut Draft, parts: &[Part<'_>]) -> Moved {
        let (chunks, first) = (self.chunks, &parts[0]);
        let of_heads = &first.tensor.shape[3 - first.along];
        let windows = of_heads.value / self.together;
        let (batch, heads) = (draft.dim(&first.tensor.shape[0]), draft.dim(of_heads));
        let wide = draft.dim(&first.tensor.shape[3]);
        let mut into = Vec::new();
        for Part { tensor: t, .. } in parts {
            let wide = draft.dim(&t.shape[3]);
            let shape =
                vec![chunks.count.into(), batch.clone(), heads.clone(), chunks.rows.into(), wide];
            let name = format!("{}_all", t.name);
            into.push(draft.buffer(&name, Space::Workspace, t.dtype, shape, None));
        }
        Moved { batch, heads, windows, dtype: first.tensor.dtype, wide, into }
    }

    /// Batch, window of heads, own chunk, the other side, head of the window, part, piece.
    fn loops(&self, parts: usize, of: &Moved, other: Option<(&'static str, i32)>) -> Loops {
        // `p` is a place where something is written to each of a node.
        let repeats = other.is_none_or(|(name, _)| name == "m");
        let vars = if other.is_some() { [0, 1, 2, 3, 4, 5, 6] } else { [0, 1, 2, 0, 3, 4, 5] };
        let [batch, w, half, other_var, g, part, piece] = vars.map(|i| Expr::from(Var::domain(i)));
        let mut domain = vec![
            ("b", of.batch.clone()),
            ("w", of.windows.into()),
            ("half", self.chunks.per_rank.into()),
        ];
        domain.extend(other.map(|(name, extent)| (name, extent.into())));
        domain.extend([
            ("g", self.together.into()),
            ("c", (parts as i32).into()),
            (if repeats { "q" } else { "p" }, self.pieces().into()),
        ]);
        let head = w * self.together + g;
        Loops { batch, half, head, part, piece, other: other_var, domain }
    }

    /// Rows of a task's piece of a chunk: where they begin, and how many there are.
    fn rows(&self, draft: &mut Draft, x: &Loops, chunk: &Expr) -> (Expr, Expr) {
        let len = self.chunks.len(&mut draft.extents, chunk);
        (x.piece.clone() * self.height, block_rows(len, x.piece.clone(), self.height))
    }

    /// Those of them that go to the places from the first to the last of `to`, from place `of`.
    fn wanted(
        &self,
        draft: &mut Draft,
        x: &Loops,
        (at, len): (Expr, Expr),
        of: &Expr,
        to: &[Expr; 2],
    ) -> (Expr, Expr) {
        match wants(draft, self.chunks, self.wanted, &x.half, of, to) {
            Some(wants) => (at, wants.select(len, 0)),
            None => (at, len),
        }
    }

    /// Reads of rows of the local chunk in the caller's memory, one of each part.
    fn reads(
        &self,
        draft: &mut Draft,
        parts: &[Part<'_>],
        of: &Moved,
        x: &Loops,
        (at, len): &(Expr, Expr),
    ) -> Vec<Access> {
        let start = self.chunks.at(&mut draft.extents, &x.half);
        let of_part = |(i, part): (usize, &Part<'_>)| {
            let mut region = vec![one(&x.batch), one(&x.head), one(&x.head), of.wide()];
            region[part.along] = (start.clone() + at.clone(), len.clone());
            Access { when: x.is_part(i, parts), ..read(Operand::Src, part.from, region) }
        };
        parts.iter().enumerate().map(of_part).collect()
    }

    /// Writes of rows of a chunk where they arrive, one of each part.
    fn writes(
        &self,
        parts: &[Part<'_>],
        of: &Moved,
        x: &Loops,
        chunk: &Expr,
        rows: &(Expr, Expr),
        (to, each): (Expr, Option<Each>),
    ) -> Vec<Access> {
        let of_part = |(i, buffer): (usize, &BufId)| {
            let region = vec![one(chunk), one(&x.batch), one(&x.head), rows.clone(), of.wide()];
            let access = write(Operand::Dst, *buffer, region);
            Access { rank: to.clone(), each: each.clone(), when: x.is_part(i, parts), ..access }
        };
        of.into.iter().enumerate().map(of_part).collect()
    }

    /// Pushes local chunks to the peers of this node, one after the other.
    fn family(
        &mut self,
        draft: &mut Draft,
        name: &str,
        parts: &[Part<'_>],
        of: &Moved,
        config: &Config,
    ) {
        let nodes = self.chunks.nodes;
        let x = self.loops(parts.len(), of, Some(("s", nodes.local() - 1)));
        let step = x.other.clone() + 1;
        let (place, to) = (nodes.near_after(step.clone()), nodes.near.rank_after(step));
        let own = self.chunks.own(&x.half);
        let rows = self.rows(draft, &x, &own);
        let ends = [place.clone(), place.clone()];
        let rows = self.wanted(draft, &x, rows, &self.chunks.group.place(), &ends);
        let mut moved = self.reads(draft, parts, of, &x, &rows);
        moved.extend(self.writes(parts, of, &x, &own, &rows, (to.clone(), None)));
        let mut touched: Vec<Source> = Vec::new();
        if let Some(meets) = self.meets {
            let entries = &meets.entries;
            let arrivals = entries.arrivals.iter().map(|a| Arrival::new(a.flow, a.word.clone()));
            touched.push(Source { access: entries.access.clone(), arrivals: arrivals.collect() });
            moved.iter_mut().for_each(|a| a.when = Some(meets.also(&place, &own, a.when.take())));
        }
        touched.extend(moved.into_iter().map(Source::from));
        let leaf = CopyVia::Bulk.leaf(config.copy_stages);
        let Loops { domain, batch, head, .. } = x;
        let push = draft.family(name, RoleKind::IntraComm, leaf, domain, vec![], touched);
        self.from.push(Writer::new(push, Operand::Dst, vec![own, batch, head]).on(to));
    }

    /// Sends local chunks to the rail, and forwards what has come to every rank of this node.
    fn over_rail(&mut self, draft: &mut Draft, parts: &[Part<'_>], of: &Moved, config: &Config) {
        let nodes = self.chunks.nodes;
        let (chunks, count) = (self.chunks, parts.len() as i32);
        let first = &parts[0].tensor;
        let words = vec![
            chunks.per_rank.into(),
            of.batch.clone(),
            of.heads.clone(),
            count.into(),
            self.pieces().into(),
        ];
        let one_node = vec![
            count.into(),
            chunks.per_rank.into(),
            of.batch.clone(),
            of.heads.clone(),
            chunks.rows.into(),
            of.wide.clone(),
        ];
        let leaf = CopyVia::Bulk.leaf(config.copy_stages);

        let x = self.loops(parts.len(), of, None);
        let own = chunks.own(&x.half);
        let rows = self.rows(draft, &x, &own);
        let name = format!("{}_send", first.name);
        let send = draft.buffer(&name, Space::Net, of.dtype, one_node.clone(), None);
        let mut touched = self.reads(draft, parts, of, &x, &rows);
        touched.push(write(Operand::Dst, send, x.in_net(&rows, of)));
        // By those that forward, and first, as rows of a gather are.
        let kind = RoleKind::IntraComm;
        let stage = draft.family("stage", kind, leaf.clone(), x.domain.clone(), vec![], touched);
        draft.first.push(stage);
        let staged = Writer::new(stage, Operand::Dst, x.word());
        let staged = draft.flow(Flow::new("staged", words.clone(), 1.into(), vec![staged]));
        let credit = [vec![Var::EACH.into()], x.word()].concat();

        let x = self.loops(parts.len(), of, Some(("m", nodes.count() - 1)));
        let rows = self.rows(draft, &x, &own);
        let there = nodes.ends(&nodes.other(x.other.clone()));
        let rows = self.wanted(draft, &x, rows, &chunks.group.place(), &there);
        let from = Source::behind(read(Operand::Src, send, x.in_net(&rows, of)), staged, x.word());
        let shape = [vec![nodes.count().into()], one_node].concat();
        let recv = draft.buffer(&format!("{}_recv", first.name), Space::Net, of.dtype, shape, None);
        let message_tasks = MessageTasks {
            nodes,
            domain: x.domain.clone(),
            other: x.other.clone(),
            shape: words,
            word: x.word(),
        };
        let messages = Messages {
            message_tasks: message_tasks.clone(),
            from,
            to: recv,
            there: [vec![nodes.own_part()], x.in_net(&rows, of)].concat(),
            tables: Vec::new(),
            maker: stage,
            credit,
            each: Some(deliver::others(nodes)),
        };
        let relayed = deliver::carry(draft, messages);

        let [node, source] = nodes.source(x.other.clone());
        let chunk = chunks.of_place(&source, &x.half);
        let rows = self.rows(draft, &x, &chunk);
        let rows = self.wanted(draft, &x, rows, &source, &nodes.ends(&nodes.far.place()));
        let here = [vec![one(&node)], x.in_net(&rows, of)].concat();
        let src = Source::behind(read(Operand::Src, recv, here), relayed, message_tasks.by(node));
        let (everyone, each) = nodes.near.everyone();
        let to = (everyone.clone(), Some(each.clone()));
        let mut touched = vec![src];
        touched.extend(self.writes(parts, of, &x, &chunk, &rows, to).into_iter().map(Source::from));
        let Loops { domain, batch, head, .. } = x;
        let forward = draft.family("forward", RoleKind::IntraComm, leaf, domain, vec![], touched);
        let come = Writer::new(forward, Operand::Dst, vec![chunk, batch, head]);
        self.from.push(come.on_each((everyone, each)));
    }
}

impl Moved {
    fn wide(&self) -> (Expr, Expr) {
        (0.into(), self.wide.clone())
    }
}

impl Loops {
    /// Whether a task is of this part, where there are several.
    fn is_part(&self, i: usize, parts: &[Part<'_>]) -> Option<Expr> {
        (parts.len() > 1).then(|| self.part.clone().equals(i as i32))
    }

    /// The word of a task's message.
    fn word(&self) -> Vec<Expr> {
        [&self.half, &self.batch, &self.head, &self.part, &self.piece].map(Clone::clone).to_vec()
    }

    /// Rows of a chunk in net memory.
    fn in_net(&self, rows: &(Expr, Expr), of: &Moved) -> Vec<(Expr, Expr)> {
        vec![
            one(&self.part),
            one(&self.half),
            one(&self.batch),
            one(&self.head),
            rows.clone(),
            of.wide(),
        ]
    }
}
