//! Owners push keys and values from the caller's memory to the peers that attend to them, each chunk once, head by head, in the
//! order in which tiles will want them: the heads of one wave, then chunk by chunk, then head by head.
//!
//! Leaves: `k_all` and `v_all`, symmetric buffers `[chunks, batch, heads, rows, elements]`, in which every chunk is retained until the
//! launch ends, with a word for the keys and values of each chunk, batch and head.

use crate::ir::{Access, BufId, CopyVia, Expr, Leaf, Operand, RoleKind, Space, Var};
use crate::passes::{
    draft::{Draft, Flow, FlowId, Writer, read, write},
    shape::{
        chunks::Chunks,
        ranks::{block_rows, peer},
        tensor::Tensor,
    },
};
use crate::settings::Config;

/// Keys and values on their way.
pub(in crate::passes) struct Pushed {
    pub k_all: BufId,
    pub v_all: BufId,
    /// By chunk, batch and head.
    pub arrived: FlowId,
}

/// Rows of a piece: a multiple of this, where there are as many.
const PIECE: i32 = 64;

/// Whether rank `to` has queries that see the own chunk `half`; `None` where all have.
fn seen(draft: &mut Draft, chunks: &Chunks, causal: bool, half: &Expr, to: &Expr) -> Option<Expr> {
    let rank = Expr::from(Var::RANK);
    let ends = chunks.runs_out();
    let mut some = |chunk: &Expr| {
        let len = ends.then(|| chunks.len(&mut draft.extents, chunk));
        len.map_or(Expr::Const(1), |len| Expr::Const(0).lt(len))
    };
    match (causal, chunks.per_rank) {
        (false, _) => ends.then(|| some(to)),
        // A shard is seen by the ranks behind it.
        (true, 1) => Some(rank.lt(to.clone()).select(some(to), 0)),
        // The second chunk of a rank in zigzag is seen by the second ones of the ranks before it, the first by all second ones, and
        // by the first ones behind it.
        (true, _) => {
            let second = some(&chunks.mirror(to.clone()));
            let by_second = to.clone().lt(rank.clone()).select(second.clone(), 0);
            if !ends {
                return Some(half.clone().select(by_second, 1));
            }
            let first = rank.lt(to.clone()).select(some(to), second);
            Some(half.clone().select(by_second, first))
        }
    }
}

/// Adds the push of `k` and `v`, which the caller gives in `from`. Of a causal mask, chunks go only to ranks that see them. `together`:
/// heads that tiles attend to at the same time, a divisor of all.
pub(in crate::passes) fn push(
    draft: &mut Draft,
    [k, v]: [&Tensor; 2],
    from: [BufId; 2],
    chunks: &Chunks,
    causal: bool,
    together: i32,
    config: &Config,
) -> Pushed {
    let world = chunks.world();
    let batch = draft.dim(&k.shape[0]);
    let heads = draft.dim(&k.shape[2]);
    let wide = draft.dim(&k.shape[3]);
    let shape =
        vec![chunks.count.into(), batch.clone(), heads.clone(), chunks.rows.into(), wide.clone()];
    let mut all = |t: &Tensor| {
        let name = format!("{}_all", t.name);
        draft.buffer(&name, Space::Workspace, t.dtype, shape.clone(), None)
    };
    let (k_all, v_all) = (all(k), all(v));
    let row_bytes = (k.shape[3].value as u64 * k.dtype.size_bytes()).max(1);
    let rows = (u64::from(config.chunk_bytes) / row_bytes) as i32 / PIECE * PIECE;
    let height = rows.max(PIECE).min(chunks.rows.max(1));
    let pieces = (chunks.rows + height - 1) / height;

    // Batch, window of heads, own chunk, step to a peer, head of the window, keys or values, piece.
    let [b, w, half, s, g, c, p] = [0, 1, 2, 3, 4, 5, 6].map(|i| Expr::from(Var::domain(i)));
    let windows = k.shape[2].value / together;
    let to = peer(s, world);
    let head = w.clone() * together + g;
    let own = chunks.own(&half);
    let len = chunks.len(&mut draft.extents, &own);
    let at = p.clone() * height;
    let len = block_rows(len, p, height);
    let len = match seen(draft, chunks, causal, &half, &to) {
        Some(seen) => seen.select(len, 0),
        None => len,
    };
    let start = chunks.at(&mut draft.extents, &half);
    let one = |e: &Expr| (e.clone(), Expr::Const(1));
    let of = |buffer: BufId, values: i32| {
        let rows = (start.clone() + at.clone(), len.clone());
        let region = vec![one(&b), rows, one(&head), (0.into(), wide.clone())];
        Access { when: Some(c.clone().equals(values)), ..read(Operand::Src, buffer, region) }
    };
    let into = |buffer: BufId, values: i32| {
        let rows = (at.clone(), len.clone());
        let region = vec![one(&own), one(&b), one(&head), rows, (0.into(), wide.clone())];
        Access {
            rank: to.clone(),
            when: Some(c.clone().equals(values)),
            ..write(Operand::Dst, buffer, region)
        }
    };
    let accesses = vec![of(from[0], 0), of(from[1], 1), into(k_all, 0), into(v_all, 1)];
    let domain = vec![
        ("b", batch.clone()),
        ("w", windows.into()),
        ("half", chunks.per_rank.into()),
        ("s", (world - 1).into()),
        ("g", together.into()),
        ("c", 2.into()),
        ("p", pieces.into()),
    ];
    let leaf = Leaf::CopyTile { via: CopyVia::Bulk, stages: config.copy_stages };
    let push = draft.family("push", RoleKind::IntraComm, leaf, domain, vec![], accesses);
    let pushed = Writer::new(push, Operand::Dst, vec![own, b, head]).on(to);
    let shape = vec![chunks.count.into(), batch, heads];
    let arrived = draft.flow(Flow::new("arrived", shape, (2 * pieces).into(), vec![pushed]));
    Pushed { k_all, v_all, arrived }
}
