//! Attention between exchanges of heads for parts of the sequence (Ulysses): ranks have a part of the sequence of all
//! heads, and each computes all of it of some heads.
//!
//! Ranks push queries, keys and values to the rank that computes their heads, own ones included, piece by piece and
//! head by head, with a word for each chunk, batch and head of keys. A tile waits for its queries, and at each step of
//! its inner loop for a chunk of keys, its own rank's first. Results stay in workspace, from which the rank that has
//! their part of the sequence copies them to the caller. They are written again behind the next launch's push of that
//! rank.

use super::{
    attend_steps::{STAGES, block},
    documents,
};
use crate::passes::{
    draft::{Draft, Flow, Source, Writer, read, write},
    error::LowerError,
    shape::{
        attention::{Attention, Exchange},
        chunks::Chunks,
        ranks::block_rows,
        tensor::Tensor,
    },
    strategies::deliver::mapped,
};
use crate::settings::Config;
use mk_plan::{
    Access, AttendTile, BufId, Carry, CopyVia, Expr, Leaf, Mask, Operand, Point, Positions,
    RoleKind, Schedule, Side, Space, Store, Var,
};

/// Rows of a piece: a multiple of this, where there are as many.
const PIECE: i32 = 64;

fn one(e: &Expr) -> (Expr, Expr) {
    (e.clone(), 1.into())
}

/// The families of such an attention.
///
/// # Errors
/// For ranks on several nodes.
pub(super) fn families(
    draft: &mut Draft,
    a: &Attention,
    inputs: &[BufId],
    outputs: &[(Operand, BufId)],
    config: &Config,
) -> Result<(), LowerError> {
    let group = mapped(draft.nodes, "all_to_all")?;
    let [q, k, v] = [Operand::Q, Operand::K, Operand::V].map(|o| a.tensor(o));
    let [from_q, from_k, from_v] = [Operand::Q, Operand::K, Operand::V].map(|o| inputs[a.param(o)]);
    let chunks = Chunks::of(&mut draft.extents, q, 1);
    // Heads of queries for each of keys, and heads of keys of a rank.
    let ratio = q.shape[2].value / k.shape[2].value;
    let heads = k.shape[2].value / group.size;
    let (batch, wide) = (draft.dim(&q.shape[0]), draft.dim(&q.shape[3]));
    let columns = (Expr::Const(0), wide.clone());
    let buffer = |draft: &mut Draft, t: &Tensor, heads: i32| {
        let rows = chunks.rows.into();
        let shape = vec![chunks.count.into(), batch.clone(), heads.into(), rows, wide.clone()];
        draft.buffer(&format!("{}_all", t.name), Space::Workspace, t.dtype, shape, None)
    };
    let q_all = buffer(draft, q, heads * ratio);
    let [k_all, v_all] = [k, v].map(|t| buffer(draft, t, heads));

    let row_bytes = (q.shape[3].value as u64 * q.dtype.size_bytes()).max(1);
    let rows = (u64::from(config.chunk_bytes) / row_bytes) as i32 / PIECE * PIECE;
    let height = rows.max(PIECE).min(chunks.rows.max(1));
    let pieces = (chunks.rows + height - 1) / height;
    let bytes = |t: &Tensor| {
        let all: f64 = t.shape.iter().map(|e| f64::from(e.value)).product();
        all * t.dtype.size_bytes() as f64
    };
    let world = f64::from(group.size);
    let back = if a.exchange == Exchange::Both { bytes(q) } else { 0.0 };
    let sent = (bytes(q) + bytes(k) + bytes(v) + back) * (world - 1.0) / world / world;
    draft.bytes_per_flop = Some(sent / a.flops(group.size).max(1.0));

    let own = chunks.own(&0.into());
    let len = chunks.len(&mut draft.extents, &own);
    let mut pushed = Vec::new();
    for (name, heads, per_word, parts) in [
        ("push.q", heads * ratio, ratio, &[(from_q, q_all)][..]),
        ("push", heads, 1, &[(from_k, k_all), (from_v, v_all)][..]),
    ] {
        let [b, h, s, c, p] = [0, 1, 2, 3, 4].map(|i| Expr::from(Var::domain(i)));
        let (to, rank) = (group.place_after(s.clone()), group.rank_after(s));
        let rows = (p.clone() * height, block_rows(len.clone(), p, height));
        let theirs = to * heads + h.clone();
        let when = |i: i32| (parts.len() > 1).then(|| c.clone().equals(i));
        let mut touched = Vec::new();
        for (i, (from, _)) in (0..).zip(parts) {
            let region = vec![one(&b), rows.clone(), one(&theirs), columns.clone()];
            touched.push(Access { when: when(i), ..read(Operand::Src, *from, region) });
        }
        for (i, (_, into)) in (0..).zip(parts) {
            let region = vec![one(&own), one(&b), one(&h), rows.clone(), columns.clone()];
            let dst = write(Operand::Dst, *into, region);
            touched.push(Access { rank: rank.clone(), when: when(i), ..dst });
        }
        let domain = vec![
            ("b", batch.clone()),
            ("h", heads.into()),
            ("s", group.size.into()),
            ("c", (parts.len() as i32).into()),
            ("p", pieces.into()),
        ];
        let leaf = CopyVia::Bulk.leaf(config.copy_stages);
        let push = draft.family(name, RoleKind::IntraComm, leaf, domain, vec![], touched);
        let word = vec![own.clone(), b, h / per_word];
        pushed.push(Writer::new(push, Operand::Dst, word).on(rank));
    }
    let shape = vec![chunks.count.into(), batch.clone(), heads.into()];
    let count = (pieces * (ratio + 2)).into();
    let arrived = draft.flow(Flow::new("arrived", shape, count, pushed));

    let bounds = documents::bounds(draft, a, (Side::Queries, &chunks.together()), inputs);
    let depth = q.shape[3].value;
    let block = block(a, depth, true);
    let tiles = (chunks.rows + block[0] - 1) / block[0];
    let [b, h, i] = [0, 1, 2].map(|i| Expr::from(Var::domain(i)));
    let g = h.clone() / ratio;
    // The last queries of a causal mask have the most keys; of others, the own ones come first.
    let (chunk, i) = match a.causal() {
        true => {
            let i = Expr::Const(tiles * group.size - 1) - i;
            (i.clone() / tiles, i % tiles)
        }
        false => (group.place_after(i.clone() / tiles), i % tiles),
    };
    let of_chunk = chunks.len(&mut draft.extents, &chunk);
    let at = i.clone() * block[0];
    let rows = block_rows(of_chunk, i.clone(), block[0]);
    let place = chunks.first(&chunk) + at.clone();
    let step = Expr::from(Var::INNER);
    let (steps, of_keys) = match a.causal() {
        true => (chunk.clone() + 1, chunk.clone() - step.clone()),
        false => (group.size.into(), group.place_after(step.clone())),
    };
    let keys = chunks.len(&mut draft.extents, &of_keys);
    let first = chunks.first(&of_keys);
    let seen = match a.causal() {
        true => {
            let upto = keys.clone().min(place.clone() - first.clone() + rows.clone());
            step.equals(0).select(upto, keys)
        }
        false => keys,
    };
    let seen = Expr::Const(0).lt(rows.clone()).select(seen, 0);
    let (from, seen) = a.window(&place, &first, seen);
    let tile = vec![one(&chunk), one(&b), one(&h), (at.clone(), rows.clone()), columns.clone()];
    let word = |chunk: &Expr| vec![chunk.clone(), b.clone(), g.clone()];
    let mut touched = vec![Source::behind(read(Operand::Q, q_all, tile), arrived, word(&chunk))];
    if let Some(bounds) = bounds {
        touched.extend(bounds.sources(&(place.clone(), rows.clone())));
    }
    for (operand, all) in [(Operand::K, k_all), (Operand::V, v_all)] {
        let rows = (from.clone(), seen.clone());
        let region = vec![one(&of_keys), one(&b), one(&g), rows, columns.clone()];
        let access = Access { at: Point::Inner, ..read(operand, all, region) };
        // One word announces the keys and the values.
        touched.push(match operand {
            Operand::K => Source::behind(access, arrived, word(&of_keys)),
            _ => access.into(),
        });
    }
    if a.scores.sinks {
        touched.push(read(Operand::Sinks, inputs[a.param(Operand::Sinks)], vec![one(&h)]).into());
    }
    let own_heads = heads * ratio;
    let o_all = (a.exchange == Exchange::Both).then(|| {
        let rows = chunks.rows.into();
        let shape = vec![chunks.count.into(), batch.clone(), own_heads.into(), rows, wide.clone()];
        draft.buffer("o_all", Space::Workspace, q.dtype, shape, None)
    });
    for (made, out) in outputs {
        let (in_all, rows) = ((place.clone(), rows.clone()), (at.clone(), rows.clone()));
        touched.push(Source::from(match (made, o_all) {
            (Operand::Lse, _) => write(*made, *out, vec![one(&b), one(&h), in_all]),
            (_, None) => write(*made, *out, vec![one(&b), in_all, one(&h), columns.clone()]),
            (_, Some(all)) => {
                let region = vec![one(&chunk), one(&b), one(&h), rows, columns.clone()];
                write(*made, all, region)
            }
        }));
    }
    let tile = AttendTile {
        block: [block[0] as u32, block[1] as u32, depth as u32],
        carry: Carry::Registers,
        scale: a.factor(depth),
        stages: STAGES,
        mask: documents::mask(a),
        cap: a.scores.cap,
        store: Store::Direct,
    };
    let count = (tiles * group.size).into();
    let domain = vec![("b", batch.clone()), ("h", own_heads.into()), ("i", count)];
    let leaf = Leaf::AttendTile(tile);
    let attend = draft.family("attend", RoleKind::Compute, leaf, domain, vec![], touched);
    let tasks = i64::from(q.shape[0].value) * i64::from(own_heads * tiles * group.size);
    let several = tasks > draft.sms();
    let family = &mut draft.plan.families[attend];
    family.inner = Some(("s".into(), steps));
    if several {
        family.schedule = Schedule::Dynamic;
    }
    let masks = documents::mask(a) != Mask::Full;
    family.positions = masks.then_some(Positions { q: place, k: first + from });
    let (Some(all), Some((_, out))) = (o_all, outputs.first()) else { return Ok(()) };

    let word = vec![group.place(), b, i];
    let done = Writer::new(attend, Operand::O, word).on(group.rank_of(chunk));
    let shape = vec![group.size.into(), batch.clone(), tiles.into()];
    let done = draft.flow(Flow::new("done", shape, own_heads.into(), vec![done]));
    let [b, i, s, h] = [0, 1, 2, 3].map(|i| Expr::from(Var::domain(i)));
    let by = group.place_after(s);
    let head = by.clone() * own_heads + h.clone();
    let rows = (i.clone() * block[0], block_rows(len, i.clone(), block[0]));
    let region = vec![one(&own), one(&b), one(&h), rows.clone(), columns.clone()];
    let src = Access { rank: group.rank_of(by.clone()), ..read(Operand::Src, all, region) };
    let src = Source::behind(src, done, vec![by, b.clone(), i]);
    let dst = write(Operand::Dst, *out, vec![one(&b), rows, one(&head), columns]);
    let domain =
        vec![("b", batch), ("i", tiles.into()), ("s", group.size.into()), ("h", own_heads.into())];
    let leaf = CopyVia::Bulk.leaf(config.copy_stages);
    let touched = vec![src, dst.into()];
    draft.family("collect", RoleKind::IntraComm, leaf, domain, vec![], touched);
    Ok(())
}
