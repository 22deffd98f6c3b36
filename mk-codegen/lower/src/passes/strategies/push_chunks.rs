//! Owners push keys and values (or queries, with what belongs to them) from the caller's memory to the peers that meet them, each chunk
//! once, head by head, in the order in which tiles will want them: the heads of one wave, then chunk by chunk, then head by head.
//!
//! Leaves: `k_all` and `v_all`, symmetric buffers `[chunks, batch, heads, rows, elements]`, in which every chunk is retained until the
//! launch ends, with a word for all parts of each chunk, batch and head.

use crate::passes::{
    draft::{Draft, Flow, FlowId, Writer, read, write},
    shape::{
        chunks::Chunks,
        ranks::{block_rows, peer},
        tensor::Tensor,
    },
};
use crate::settings::Config;
use mk_plan::{Access, BufId, CopyVia, Expr, Operand, RoleKind, Space, Var};

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

/// Ranks that a chunk goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::passes) enum Wanted {
    Everywhere,
    /// Where something at its place in the sequence or behind it is: keys of a causal mask.
    Behind,
    /// Where something at its place or before it is: queries of one.
    Before,
}

/// Rows of a piece: a multiple of this, where there are as many.
const PIECE: i32 = 64;

/// Whether rank `to` wants the own chunk `half`; `None` where all do.
fn wants(
    draft: &mut Draft,
    chunks: &Chunks,
    wanted: Wanted,
    half: &Expr,
    to: &Expr,
) -> Option<Expr> {
    let rank = Expr::from(Var::RANK);
    let ends = chunks.runs_out();
    let mut some = |chunk: &Expr| {
        let len = ends.then(|| chunks.len(&mut draft.extents, chunk));
        len.map_or(Expr::Const(1), |len| Expr::Const(0).lt(len))
    };
    match (wanted, chunks.per_rank) {
        (Wanted::Everywhere, _) => ends.then(|| some(to)),
        // A shard is seen by the ranks behind it.
        (Wanted::Behind, 1) => Some(rank.lt(to.clone()).select(some(to), 0)),
        // The second chunk of a rank in zigzag is seen by the second ones of the ranks before it, the first by all second ones, and
        // by the first ones behind it.
        (Wanted::Behind, _) => {
            let second = some(&chunks.mirror(to.clone()));
            let by_second = to.clone().lt(rank.clone()).select(second.clone(), 0);
            if !ends {
                return Some(half.clone().select(by_second, 1));
            }
            let first = rank.lt(to.clone()).select(some(to), second);
            Some(half.clone().select(by_second, first))
        }
        // Whatever is before a chunk that is not empty is not empty.
        (Wanted::Before, 1) => Some(to.clone().lt(rank)),
        (Wanted::Before, _) => Some(half.clone().select(1, to.clone().lt(rank))),
    }
}

/// Adds the push of these parts, of which chunks go to ranks that want them. Parts of one family lie alike, and take turns; families follow
/// each other. `together`: heads that tiles meet at the same time, a divisor of all. `flops`: operations of the rank that receives.
pub(in crate::passes) fn push(
    draft: &mut Draft,
    families: &[(&str, &[Part<'_>])],
    chunks: &Chunks,
    wanted: Wanted,
    together: i32,
    flops: f64,
    config: &Config,
) -> Pushed {
    let parts = || families.iter().flat_map(|(_, parts)| parts.iter());
    let row_bytes = |p: &Part<'_>| p.tensor.shape[3].value as u64 * p.tensor.dtype.size_bytes();
    let row_bytes = parts().map(row_bytes).max().unwrap_or(1).max(1);
    let rows = (u64::from(config.chunk_bytes) / row_bytes) as i32 / PIECE * PIECE;
    let height = rows.max(PIECE).min(chunks.rows.max(1));
    let world = f64::from(chunks.world());
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
    draft.bytes_per_flop = Some(sent * parts().map(bytes).sum::<f64>() / flops.max(1.0));
    let mut pushes = Pushes { chunks, wanted, together, height, all: Vec::new(), from: Vec::new() };
    let mut shape = vec![chunks.count.into()];
    for (name, parts) in families {
        let [batch, heads] = pushes.family(draft, name, parts, config);
        shape = vec![chunks.count.into(), batch, heads];
    }
    let count = parts().count() as i32 * pushes.pieces();
    let Pushes { all, from, .. } = pushes;
    Pushed { all, arrived: draft.flow(Flow::new("arrived", shape, count.into(), from)) }
}

struct Pushes<'a> {
    chunks: &'a Chunks,
    wanted: Wanted,
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

    /// One family; returns its batch and its heads.
    fn family(
        &mut self,
        draft: &mut Draft,
        name: &str,
        parts: &[Part<'_>],
        config: &Config,
    ) -> [Expr; 2] {
        let Pushes { chunks, wanted, together, height, .. } = *self;
        let world = chunks.world();
        let first = &parts[0];
        let of_heads = &first.tensor.shape[3 - first.along];
        let windows = of_heads.value / together;
        let (batch, heads) = (draft.dim(&first.tensor.shape[0]), draft.dim(of_heads));
        let mut into = Vec::new();
        for Part { tensor: t, .. } in parts {
            let wide = draft.dim(&t.shape[3]);
            let shape = vec![
                chunks.count.into(),
                batch.clone(),
                heads.clone(),
                chunks.rows.into(),
                wide.clone(),
            ];
            let name = format!("{}_all", t.name);
            into.push((draft.buffer(&name, Space::Workspace, t.dtype, shape, None), wide));
        }
        // Batch, window of heads, own chunk, step to a peer, head of the window, part, piece.
        let [b, w, half, s, g, c, p] = [0, 1, 2, 3, 4, 5, 6].map(|i| Expr::from(Var::domain(i)));
        let to = peer(s, world);
        let head = w.clone() * together + g;
        let own = chunks.own(&half);
        let len = chunks.len(&mut draft.extents, &own);
        let at = p.clone() * height;
        let len = block_rows(len, p, height);
        let len = match wants(draft, chunks, wanted, &half, &to) {
            Some(wants) => wants.select(len, 0),
            None => len,
        };
        let start = chunks.at(&mut draft.extents, &half);
        let one = |e: &Expr| (e.clone(), Expr::Const(1));
        let mine = |i: usize| (parts.len() > 1).then(|| c.clone().equals(i as i32));
        let mut accesses = Vec::new();
        for (i, (part, (_, wide))) in parts.iter().zip(&into).enumerate() {
            let mut region = vec![one(&b), one(&head), one(&head), (0.into(), wide.clone())];
            region[part.along] = (start.clone() + at.clone(), len.clone());
            accesses.push(Access { when: mine(i), ..read(Operand::Src, part.from, region) });
        }
        for (i, (buffer, wide)) in into.iter().enumerate() {
            let rows = (at.clone(), len.clone());
            let region = vec![one(&own), one(&b), one(&head), rows, (0.into(), wide.clone())];
            let access = write(Operand::Dst, *buffer, region);
            accesses.push(Access { rank: to.clone(), when: mine(i), ..access });
        }
        let domain = vec![
            ("b", batch.clone()),
            ("w", windows.into()),
            ("half", chunks.per_rank.into()),
            ("s", (world - 1).into()),
            ("g", together.into()),
            ("c", (parts.len() as i32).into()),
            ("p", self.pieces().into()),
        ];
        let leaf = CopyVia::Bulk.leaf(config.copy_stages);
        let push = draft.family(name, RoleKind::IntraComm, leaf, domain, vec![], accesses);
        let word = vec![own, b, head];
        self.from.push(Writer::new(push, Operand::Dst, word).on(to));
        self.all.extend(into.into_iter().map(|(buffer, _)| buffer));
        [batch, heads]
    }
}
