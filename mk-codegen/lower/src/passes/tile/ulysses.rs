//! Attention between exchanges of heads for parts of the sequence (Ulysses): ranks have a part of the sequence of all
//! heads, and each computes all of it of some heads.
//!
//! Ranks push queries, keys and values to the rank that computes their heads, own ones included, piece by piece and
//! head by head, with a word for each chunk, batch and head of keys. Where ranks along another axis share the sequence,
//! too (a ring), keys and values go at once to all of those that compute their heads and see them. A tile waits for its
//! queries, and at each step of its inner loop for a chunk of keys, its own rank's first. Results stay in workspace,
//! from which the rank that has their part of the sequence copies them to the caller. They are written again behind the
//! next launch's push of that rank.

use super::{
    attend_steps::{STAGES, block},
    documents,
};
use crate::passes::{
    draft::{Draft, Flow, Source, Writer, one, read, write},
    error::LowerError,
    shape::{
        attention::Attention,
        chunks::Chunks,
        ranks::{RankGrid, block_rows},
        tensor::Tensor,
    },
    strategies::deliver::mapped,
};
use crate::settings::Config;
use mk_plan::{
    Access, AttendTile, BufId, Carry, CopyVia, Expr, Leaf, Mask, Operand, Point, Positions,
    RoleKind, Schedule, Side, Space, Store, Var,
};

/// The sequence as the ranks along both axes have it: of the shard of each place in the ring, a chunk for each place in
/// the exchange. One ring place where there is no ring.
struct Shares {
    grid: RankGrid,
    /// Chunks of a shard.
    of_shard: Chunks,
    /// Places of both, in the order of the sequence.
    count: i32,
    causal: bool,
}

impl Shares {
    /// The number of the chunk that the ranks of a ring place compute, and push, as number `chunk` of their shard.
    fn number(&self, ring: Expr, chunk: Expr) -> Expr {
        match self.grid.outer.size {
            1 => chunk,
            _ => ring * self.of_shard.count + chunk,
        }
    }

    /// Where chunk `chunk` of the shard of a ring place begins in the sequence.
    fn first(&self, ring: Expr, chunk: &Expr) -> Expr {
        let first = self.of_shard.first(chunk);
        match self.grid.outer.size {
            1 => first,
            _ => ring * self.of_shard.whole.value + first,
        }
    }

    /// Ring place and chunk of its shard.
    fn place(&self, number: &Expr) -> [Expr; 2] {
        let n = self.of_shard.count;
        match self.grid.outer.size {
            1 => [0.into(), number.clone()],
            _ => [number.clone() / n, number.clone() % n],
        }
    }

    /// The chunk of keys at a step, for queries of chunk `number`: its number, its ring place and the chunk of its
    /// shard; and how many steps there are.
    fn keys(&self, number: &Expr, step: &Expr) -> (Expr, [Expr; 2], Expr) {
        let (ring, group) = (self.grid.outer, self.grid.inner);
        if self.causal {
            let of = number.clone() - step.clone();
            let place = self.place(&of);
            return (of, place, number.clone() + 1);
        }
        let (back, chunk) = match ring.size {
            1 => (Expr::Const(0), step.clone()),
            _ => (step.clone() / group.size, step.clone() % group.size),
        };
        let from = match ring.size {
            1 => 0.into(),
            n => ring.place_after(Expr::Const(n) - back),
        };
        let chunk = group.place_after(chunk);
        (self.number(from.clone(), chunk.clone()), [from, chunk], self.count.into())
    }
}

/// The families of such an attention.
///
/// # Errors
/// For ranks on several nodes.
pub(super) fn families(
    draft: &mut Draft,
    a: &Attention,
    inputs: &[BufId],
    [outputs, kept]: [&[(Operand, BufId)]; 2],
    config: &Config,
) -> Result<(), LowerError> {
    let along = |axis: Option<usize>| axis.map(|axis| draft.along(axis));
    let group = mapped(along(a.exchange.map(|e| e.axis)).unwrap_or(draft.nodes), "all_to_all")?;
    let ring = along(a.ring).map(|nodes| mapped(nodes, "ring behind all_to_all")).transpose()?;
    let ring = ring.unwrap_or(group.alone());
    let back = a.exchange.is_some_and(|e| e.back);
    let [q, k, v] = [Operand::Q, Operand::K, Operand::V].map(|o| a.tensor(o));
    let [from_q, from_k, from_v] = [Operand::Q, Operand::K, Operand::V].map(|o| inputs[a.param(o)]);
    let chunks = Chunks::of(&mut draft.extents, q, 1);
    let shares = Shares {
        grid: RankGrid { outer: ring, inner: group },
        count: ring.size * chunks.count,
        causal: a.causal(),
        of_shard: chunks.clone(),
    };
    // Heads of queries for each of keys, and heads of keys of a rank.
    let ratio = q.shape[2].value / k.shape[2].value;
    let heads = k.shape[2].value / group.size;
    let (batch, wide) = (draft.dim(&q.shape[0]), draft.dim(&q.shape[3]));
    let columns = (Expr::Const(0), wide.clone());
    let buffer = |draft: &mut Draft, t: &Tensor, count: i32, heads: i32| {
        let rows = chunks.rows.into();
        let shape = vec![count.into(), batch.clone(), heads.into(), rows, wide.clone()];
        draft.buffer(&format!("{}_all", t.name), Space::Workspace, t.dtype, shape, None)
    };
    let q_all = buffer(draft, q, chunks.count, heads * ratio);
    let [k_all, v_all] = [k, v].map(|t| buffer(draft, t, shares.count, heads));

    let row_bytes = (q.shape[3].value as u64 * q.dtype.size_bytes()).max(1);
    let height = chunks.height(row_bytes, config.chunk_bytes);
    let pieces = (chunks.rows + height - 1) / height;
    let bytes = |t: &Tensor| {
        let all: f64 = t.shape.iter().map(|e| f64::from(e.value)).product();
        all * t.dtype.size_bytes() as f64
    };
    let (world, places) = (f64::from(group.size), f64::from(ring.size));
    let exchanged = bytes(q) * if back { 2.0 } else { 1.0 } * (world - 1.0) / world / world;
    let wanted = if a.causal() { (places + 1.0) / 2.0 } else { places };
    let passed = (bytes(k) + bytes(v)) * (wanted - 1.0 / world) / world;
    draft.bytes_per_flop = Some((exchanged + passed) / (a.flops(group.size) * places).max(1.0));

    let own = chunks.own(&0.into());
    let len = chunks.len(&mut draft.extents, &own);
    let mut arrivals = Vec::new();
    // Of queries one for each of these heads, of keys those of all places in the ring that see them.
    for (name, signal, heads, per_word, places, parts) in [
        ("push.q", "arrived.q", heads * ratio, ratio, 1, &[(from_q, q_all)][..]),
        ("push", "arrived", heads, 1, ring.size, &[(from_k, k_all), (from_v, v_all)][..]),
    ] {
        let vars = if places > 1 { [0, 1, 2, 3, 4, 5] } else { [0, 1, 0, 2, 3, 4] };
        let [b, h, r, s, c, p] = vars.map(|i| Expr::from(Var::domain(i)));
        let (to, mut rank) = (group.place_after(s.clone()), group.rank_after(s));
        let (mut chunk, mut wanted) = (own.clone(), len.clone());
        if places > 1 {
            let (of, at) = (ring.place(), ring.place_after(r));
            rank = shares.grid.rank_of(at.clone(), to.clone());
            chunk = shares.number(of.clone(), chunk);
            if a.causal() {
                wanted = at.lt(of).select(0, wanted);
            }
        }
        let rows = (p.clone() * height, block_rows(wanted, p, height));
        let theirs = to * heads + h.clone();
        let when = |i: i32| (parts.len() > 1).then(|| c.clone().equals(i));
        let mut touched = Vec::new();
        for (i, (from, _)) in (0..).zip(parts) {
            let region = vec![one(&b), rows.clone(), one(&theirs), columns.clone()];
            touched.push(Access { when: when(i), ..read(Operand::Src, *from, region) });
        }
        for (i, (_, into)) in (0..).zip(parts) {
            let region = vec![one(&chunk), one(&b), one(&h), rows.clone(), columns.clone()];
            let dst = write(Operand::Dst, *into, region);
            touched.push(Access { rank: rank.clone(), when: when(i), ..dst });
        }
        let mut domain = vec![("b", batch.clone()), ("h", heads.into())];
        domain.extend((places > 1).then(|| ("r", places.into())));
        domain.extend([
            ("s", group.size.into()),
            ("c", (parts.len() as i32).into()),
            ("p", pieces.into()),
        ]);
        let leaf = CopyVia::Bulk.leaf(config.copy_stages);
        let push = draft.family(name, RoleKind::IntraComm, leaf, domain, vec![], touched);
        let word = vec![chunk, b, h / per_word];
        let from = vec![Writer::new(push, Operand::Dst, word).on(rank)];
        let words = vec![(places * chunks.count).into(), batch.clone(), (heads / per_word).into()];
        let count = pieces * per_word * parts.len() as i32;
        arrivals.push(draft.flow(Flow::new(signal, words, count.into(), from)));
    }
    let [queries_arrived, keys_arrived] = [arrivals[0], arrivals[1]];

    // A rank has all queries of its place in the ring.
    let of_ring = match a.ring {
        Some(axis) => chunks.shards(draft.along(axis)),
        None => chunks.together(),
    };
    let bounds = documents::bounds(draft, a, (Side::Queries, &of_ring), inputs);
    let depth = q.shape[3].value;
    let block = block(a, true);
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
    // In the own shard, and in the sequence.
    let local = chunks.first(&chunk) + at.clone();
    let place = shares.first(ring.place(), &chunk) + at.clone();
    let tile_at = vec![chunk.clone(), b.clone(), h.clone(), i.clone()];
    let step = Expr::from(Var::INNER);
    let number = shares.number(ring.place(), chunk.clone());
    let (of_keys, [from, part], steps) = shares.keys(&number, &step);
    let keys = chunks.len(&mut draft.extents, &part);
    let first = shares.first(from, &part);
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
    let mut touched =
        vec![Source::behind(read(Operand::Q, q_all, tile), queries_arrived, word(&chunk))];
    if let Some(bounds) = bounds {
        touched.extend(bounds.sources(&(place.clone(), rows.clone())));
    }
    for (operand, all) in [(Operand::K, k_all), (Operand::V, v_all)] {
        let rows = (from.clone(), seen.clone());
        let region = vec![one(&of_keys), one(&b), one(&g), rows, columns.clone()];
        let access = Access { at: Point::Inner, ..read(operand, all, region) };
        // One word announces the keys and the values.
        touched.push(match operand {
            Operand::K => Source::behind(access, keys_arrived, word(&of_keys)),
            _ => access.into(),
        });
    }
    if a.scores.sinks {
        touched.push(read(Operand::Sinks, inputs[a.param(Operand::Sinks)], vec![one(&h)]).into());
    }
    let own_heads = heads * ratio;
    let o_all = back.then(|| {
        let rows = chunks.rows.into();
        let shape = vec![chunks.count.into(), batch.clone(), own_heads.into(), rows, wide.clone()];
        draft.buffer("o_all", Space::Workspace, q.dtype, shape, None)
    });
    for (made, out) in outputs {
        let (in_all, rows) = ((local.clone(), rows.clone()), (at.clone(), rows.clone()));
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
        heads: 1,
        block: [block[0] as u32, block[1] as u32, depth as u32],
        values: None,
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
    // By heads, as the tiles read and make them.
    for (operand, out) in kept {
        let [b, h, l, p] = [0, 1, 2, 3].map(|i| Expr::from(Var::domain(i)));
        let of_keys = shares.number(ring.place(), l.clone());
        let (all, number, n, height, behind) = match operand {
            Operand::Q => {
                let word = vec![l.clone(), b.clone(), h.clone() / ratio];
                (q_all, l.clone(), own_heads, height, (queries_arrived, word))
            }
            Operand::K | Operand::V => {
                let word = vec![of_keys.clone(), b.clone(), h.clone()];
                let all = if *operand == Operand::K { k_all } else { v_all };
                (all, of_keys, heads, height, (keys_arrived, word))
            }
            _ => {
                let made = vec![Writer::new(attend, Operand::O, tile_at.clone())];
                let shape = vec![group.size.into(), batch.clone(), own_heads.into(), tiles.into()];
                let made = draft.flow(Flow::new("made", shape, 1.into(), made));
                let word = vec![l.clone(), b.clone(), h.clone(), p.clone()];
                (o_all.unwrap_or(*out), l.clone(), own_heads, block[0], (made, word))
            }
        };
        let part = chunks.len(&mut draft.extents, &l);
        let rows = block_rows(part, p.clone(), height);
        let at = (p.clone() * height, rows.clone());
        let src = vec![one(&number), one(&b), one(&h), at, columns.clone()];
        let src = Source::behind(read(Operand::Src, all, src), behind.0, behind.1);
        let at = (chunks.first(&l) + p * height, rows);
        let dst = write(Operand::Dst, *out, vec![one(&b), at, one(&h), columns.clone()]);
        let pieces = (chunks.rows + height - 1) / height;
        let domain = vec![
            ("b", batch.clone()),
            ("h", n.into()),
            ("l", group.size.into()),
            ("p", pieces.into()),
        ];
        let leaf = CopyVia::Bulk.leaf(config.copy_stages);
        let name = format!("keep.{operand}");
        draft.family(&name, RoleKind::IntraComm, leaf, domain, vec![], vec![src, dst.into()]);
    }
    let (Some(all), Some((_, out))) = (o_all, outputs.iter().find(|(o, _)| *o == Operand::O))
    else {
        return Ok(());
    };

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
