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

/// Adds the push of `k` and `v`, which the caller gives in `from`. Of a causal mask, chunks go only to ranks that see them. `together`:
/// heads that tiles attend to at the same time.
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
    let windows = (k.shape[2].value + together - 1) / together;
    let rank = Expr::from(Var::RANK);
    // The second chunk of a rank in zigzag is seen by the ranks before it, the first by all; a shard by the ranks behind it.
    let all_peers = Expr::Const(world - 1);
    let (steps, to) = match (causal, chunks.per_rank) {
        (false, _) => (all_peers, peer(s, world)),
        (true, 1) => (all_peers - rank.clone(), rank.clone() + s + 1),
        (true, _) => (
            half.clone().select(rank.clone(), all_peers),
            half.clone().select(rank.clone() - s.clone() - 1, peer(s, world)),
        ),
    };
    let head = w.clone() * together + g;
    let left = heads.clone() - w * together;
    let own = chunks.own(&half);
    let len = chunks.len(&mut draft.extents, &own);
    let at = p.clone() * height;
    let mut len = block_rows(len, p, height);
    if chunks.runs_out() {
        // A rank without queries that see the chunk does not get it.
        let first = chunks.len(&mut draft.extents, &to);
        let queries = match (causal, chunks.per_rank) {
            (true, 2) => {
                let mirror = chunks.mirror(to.clone());
                let second = chunks.len(&mut draft.extents, &mirror);
                let of_first = rank.clone().le(to.clone()).select(first, second.clone());
                half.clone().select(second, of_first)
            }
            _ => first,
        };
        len = Expr::Const(0).lt(queries).select(len, 0);
    }
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
        ("s", steps),
        ("g", Expr::Const(together).min(left)),
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
