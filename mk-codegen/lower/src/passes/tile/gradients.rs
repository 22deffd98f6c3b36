//! Gradients of attention: statistics of queries, and tiles of keys and values, each against the chunks of queries in
//! turn.
//!
//! In the inner loop of keys are, chunk by chunk, the heads of queries that share them: local chunks first, those of
//! peers as their owners push them. Of a causal mask a tile begins with the queries at its own first key. Gradients of
//! queries are tiled as attention itself is.

use super::{
    attend_steps::{HEADS, Step, pass_on, together},
    documents::{self, Bounds},
    tiler::{Tiler, Value},
};
use crate::passes::{
    draft::{Draft, Source, one, read, write},
    shape::{
        attention::{Attention, along},
        chunks::Chunks,
        kernel::Dsinks,
        ranks::block_rows,
        tensor::Tensor,
    },
    strategies::push_chunks::{self, Meets, Part, Pushed, Wanted},
};
use crate::settings::Config;
use mk_plan::{
    Access, AttendGradTile, BufId, Expr, GradOf, Leaf, Mask, Operand, Point, Positions, RoleKind,
    Schedule, Side, SinkTile, StatsTile, Var,
};

/// Rows of a tile, and rows of a block of the other side, by what was measured fastest: scores, their gradients and
/// sums are in registers, and beside both sums so is what the slope of a cap takes, or what finds the documents of a
/// ring.
pub(super) fn block(a: &Attention, crowded: bool) -> [i32; 2] {
    match (a.heads()[0], crowded) {
        (64, false) => [128, 96],
        (64, true) => [128, 64],
        (128, true) => [128, 48],
        (128 | 192, _) => [128, 64],
        // All that shared memory has room for.
        _ => [128, 32],
    }
}

/// Blocks of the other side that a CTA has room for.
pub(super) fn stages(a: &Attention) -> u32 {
    if is_wide(a) { 2 } else { 3 }
}

/// Whether registers have no room for the gradients of keys beside those of values: tiles make one of both.
fn is_wide(a: &Attention) -> bool {
    a.heads()[0] > 128
}

/// Queries whose statistics a task makes.
const STATISTICS: i32 = 128;

/// Statistics of queries: heads that lie beside each other follow each other.
pub(super) fn statistics(
    draft: &mut Draft,
    a: &Attention,
    inputs: &[BufId],
    outputs: &[(Operand, BufId)],
    out: Option<&Tensor>,
) {
    let o = a.tensor(Operand::O);
    let rows = o.widest(1);
    let [b, i, h] = [0, 1, 2].map(|n| Expr::from(Var::domain(n)));
    let [batch, sequence, heads, wide] = [0, 1, 2, 3].map(|d| draft.own(o, d));
    let len = block_rows(sequence, i.clone(), STATISTICS);
    let rows_of = (i * STATISTICS, len);
    let tile = vec![one(&b), rows_of.clone(), one(&h), (0.into(), wide)];
    let four = out.map_or(Expr::Const(4), |t| draft.dim(&t.shape[3]));
    let of = |o| inputs[a.param(o)];
    let mut touched = vec![
        read(Operand::O, of(Operand::O), tile.clone()),
        read(Operand::Do, of(Operand::Do), tile),
        read(Operand::Lse, of(Operand::Lse), vec![one(&b), one(&h), rows_of.clone()]),
    ];
    for (_, buffer) in outputs {
        let region = vec![one(&b), one(&h), rows_of.clone(), (0.into(), four.clone())];
        touched.push(write(Operand::Dst, *buffer, region));
    }
    let tiles = (rows + STATISTICS - 1) / STATISTICS;
    let domain = vec![("b", batch), ("i", tiles.into()), ("h", heads)];
    let leaf = Leaf::StatsTile(StatsTile { block: [STATISTICS as u32, o.shape[3].value as u32] });
    draft.family("stats", RoleKind::Compute, leaf, domain, vec![], touched);
}

/// Gradients of sinks: a task goes through the queries of a head, 16 bytes each, batch by batch.
pub(super) fn of_sinks<'k>(t: &mut Tiler<'k>, x: &Dsinks) -> Value<'k> {
    let (kernel, draft) = (t.kernel, &mut t.draft);
    let stats = &kernel.params[x.stats];
    let [batch, heads, rows] = [0, 1, 2].map(|d| draft.own(stats, d));
    let four = draft.dim(&stats.shape[3]);
    let head = one(Var::domain(0));
    let region = vec![one(Var::INNER), head.clone(), (0.into(), rows), (0.into(), four)];
    let stats = read(Operand::Stats, t.params[x.stats], region);
    let touched = vec![
        Access { at: Point::Inner, ..stats },
        read(Operand::Sinks, t.params[x.sinks], vec![head.clone()]),
        write(Operand::Dst, t.results[x.result], vec![one(0), head]),
    ];
    let (leaf, domain) = (Leaf::SinkTile(SinkTile), vec![("h", heads)]);
    let family = draft.family("sinks", RoleKind::Compute, leaf, domain, vec![], touched);
    draft.plan.families[family].inner = Some(("b".into(), batch));
    Value::Result
}

/// Gradients of keys and values.
pub(super) fn of_keys(
    draft: &mut Draft,
    a: &Attention,
    inputs: &[BufId],
    outputs: &[(Operand, BufId)],
    config: &Config,
) {
    let [q, k] = [Operand::Q, Operand::K].map(|o| a.tensor(o));
    let (queries, keys) =
        (Chunks::of(&mut draft.extents, q, 1), Chunks::of(&mut draft.extents, k, 1));
    let ring = a.ring.is_some();
    let depth = k.shape[3].value;
    let crowded = depth == 128 && ring && a.causal() && a.documents.is_some();
    let block = block(a, a.scores.cap.is_some() || crowded);
    let tiles = (keys.rows + block[0] - 1) / block[0];
    let whole = !k.is_sharded(2);
    let heads = k.shape[2].value;
    let group = match ring {
        true => 1,
        false => (1..=HEADS).rev().find(|n| whole && heads % n == 0).unwrap_or(1),
    };
    let shared = q.shape[2].value / heads;
    let met = match ring {
        true => documents::meets(draft, a, (Side::Keys, &keys), &queries, inputs),
        false => None,
    };
    let pushed = ring.then(|| {
        let together = shared * together(draft, tiles * keys.per_rank, heads);
        let part =
            |o: Operand| Part { tensor: a.tensor(o), from: inputs[a.param(o)], along: along(o) };
        let wanted = if a.causal() { Wanted::Before } else { Wanted::Everywhere };
        // Few bytes, which all tiles want.
        let stats = [part(Operand::Stats)];
        let parts = [part(Operand::Q), part(Operand::Do)];
        let families = [("push_stats", &stats[..]), ("push", &parts[..])];
        push_chunks::push(
            draft,
            &families,
            &queries,
            (wanted, met.as_ref()),
            together,
            a.flops(queries.group.size),
            config,
        )
    });
    let bounds = documents::bounds(draft, a, (Side::Keys, &keys), inputs);
    let tile = Keys { a, queries, keys, block, tiles, group, shared, pushed, met, bounds };
    if !is_wide(a) {
        tile.family(draft, GradOf::Keys, inputs, outputs);
        return;
    }
    for (of, operand) in [(GradOf::KeysAlone, Operand::Dk), (GradOf::ValuesAlone, Operand::Dv)] {
        let made: Vec<_> = outputs.iter().filter(|(o, _)| *o == operand).copied().collect();
        if !made.is_empty() {
            tile.family(draft, of, inputs, &made);
        }
    }
}

struct Keys<'a> {
    a: &'a Attention,
    queries: Chunks,
    keys: Chunks,
    /// Keys of a tile, and queries of a block.
    block: [i32; 2],
    /// Tiles of a full chunk.
    tiles: i32,
    /// Heads whose tiles are dealt out together.
    group: i32,
    /// Heads of queries that share one of keys.
    shared: i32,
    pushed: Option<Pushed>,
    /// Of packed sequences over a ring, which chunks are pushed to whom.
    met: Option<Meets>,
    /// Of packed sequences, which queries see each key.
    bounds: Option<Bounds>,
}

impl Keys<'_> {
    /// Chunks of queries in turn, at step `s`: the own ones, of which that of the tile's keys comes first where
    /// positions mask; then first chunks of other ranks, and then their second ones.
    fn step(&self, s: &Expr, half: &Expr) -> Step {
        let group = self.queries.group;
        let (rank, world) = (group.place(), group.size);
        let s = s.clone();
        if !self.queries.cut() {
            return Step { steps: 1.into(), chunk: 0.into(), half: 0.into(), own: None };
        }
        if self.pushed.is_none() {
            // Keys that every rank has meet the local queries.
            let steps = Expr::Const(self.queries.per_rank);
            return Step { steps, chunk: self.queries.own(&s), half: s, own: None };
        }
        let before = |s: Expr| self.queries.nodes.before(s);
        let mirror = self.queries.mirror(rank.clone());
        match (self.queries.per_rank, self.a.causal()) {
            (1, false) => {
                let chunk = before(s.clone());
                Step { steps: world.into(), chunk, half: 0.into(), own: Some(s.equals(0)) }
            }
            (1, true) => {
                let (steps, chunk) = (Expr::Const(world) - rank.clone(), rank + s.clone());
                Step { steps, chunk, half: 0.into(), own: Some(s.equals(0)) }
            }
            (_, false) => {
                let first = before(s.clone() - 1);
                let second = self.queries.mirror(before(s.clone() - world));
                let theirs = s.clone().le(world).select(first, second);
                let own = s.clone().select(mirror, rank);
                let chunk = s.clone().lt(2).select(own, theirs);
                let steps = Expr::Const(self.queries.count);
                Step { steps, chunk, half: s.clone(), own: Some(s.lt(2)) }
            }
            (_, true) => {
                // Keys of a first chunk meet the first chunks of the ranks behind this one, and all second ones; those
                // of a second chunk the second ones of the ranks before it.
                let first = rank.clone() + s.clone() - 1;
                let behind = Expr::Const(world) - rank.clone();
                let second = self.queries.mirror(before(s.clone() - behind.clone()));
                let theirs = s.clone().le(behind).select(first, second);
                let own = s.clone().select(mirror.clone(), rank.clone());
                let of_first = s.clone().lt(2).select(own, theirs);
                let chunk = half.clone().select(mirror + s.clone(), of_first);
                let of_first = Expr::Const(2 * world) - rank.clone();
                let steps = half.clone().select(rank + 1, of_first);
                let own = s.clone().lt(Expr::Const(2) - half.clone());
                let of = half.clone().select(1, s);
                Step { steps, chunk, half: of, own: Some(own) }
            }
        }
    }

    fn family(
        &self,
        draft: &mut Draft,
        of: GradOf,
        inputs: &[BufId],
        outputs: &[(Operand, BufId)],
    ) {
        let a = self.a;
        let k = a.tensor(Operand::K);
        let [b, w, i, m] = [0, 1, 2, 3].map(|n| Expr::from(Var::domain(n)));
        let (halves, causal) = (self.keys.per_rank, a.causal());
        let tiles = halves * self.tiles;
        let (batch, heads) = (draft.own(k, 0), draft.own(k, 2));
        let (g, domain) = match self.group {
            1 => (w, vec![("b", batch), ("g", heads), ("i", tiles.into())]),
            n => {
                let groups = (k.shape[2].value / n).into();
                let domain =
                    vec![("b", batch), ("w", groups), ("i", tiles.into()), ("m", n.into())];
                (w * n + m, domain)
            }
        };
        // The first keys, and first chunks, meet the most queries.
        let (half, i) = match halves {
            1 => (Expr::Const(0), i),
            _ => (i.clone() / self.tiles, i % self.tiles),
        };
        let own = self.keys.own(&half);
        let len = self.keys.len(&mut draft.extents, &own);
        let (at, tile_of) = (i.clone() * self.block[0], i.clone());
        let rows = block_rows(len, i, self.block[0]);
        let start = self.keys.at(&mut draft.extents, &half) + at.clone();
        let [ahead, behind] = a.begins(&mut draft.extents);
        let place = self.keys.first(&own) + at.clone() + behind.clone();

        let depth = k.shape[3].value;
        // Of queries and keys, and of values and results.
        let columns = [k, a.tensor(Operand::V)].map(|t| (Expr::Const(0), draft.dim(&t.shape[3])));
        let wide = |o: Operand| match o {
            Operand::V | Operand::Do | Operand::Dv => columns[1].clone(),
            _ => columns[0].clone(),
        };
        let inner = Expr::from(Var::INNER);
        // A chunk is gone through head by head.
        let (s, h) = match self.shared {
            1 => (inner, g.clone()),
            n => (inner.clone() / n, g.clone() * n + inner % n),
        };
        let step = self.step(&s, &half);
        let len = self.queries.len(&mut draft.extents, &step.chunk);
        let first = self.queries.first(&step.chunk) + ahead.clone();
        // Queries before the tile's first key see none of it: in the chunk of these keys, which comes first; or
        // wherever they are.
        let from = match (causal, self.pushed.is_some(), self.queries.cut()) {
            (false, ..) => Expr::Const(0),
            (true, true, _) => s.clone().equals(0).select(at, 0),
            (true, false, false) if ahead == Expr::Const(0) => place.clone(),
            (true, false, _) => Expr::Const(0).max(place.clone() - first.clone()),
        };
        let met = match a.scores.mask {
            Mask::Full | Mask::Bounds => len,
            Mask::Causal => len - from.clone(),
            // The last query that sees the tile's last key is so far behind it.
            Mask::Window(keys) => {
                let last = place.clone() + rows.clone() + (keys as i32 - 1) - first.clone();
                Expr::Const(0).max(len.min(last) - from.clone())
            }
        };
        // A tile without keys has no queries.
        let met = Expr::Const(0).lt(rows.clone()).select(met, 0);
        let start_of_queries = self.queries.at(&mut draft.extents, &step.half) + from.clone();

        let own_rows = (place.clone(), rows.clone());
        let tile = |o| vec![one(&b), (start.clone(), rows.clone()), one(&g), wide(o)];
        let four = (Expr::Const(0), draft.dim(&a.tensor(Operand::Stats).shape[3]));
        let mut touched: Vec<Source> = Vec::new();
        for operand in [Operand::K, Operand::V] {
            touched.push(read(operand, inputs[a.param(operand)], tile(operand)).into());
        }
        if let Some(bounds) = &self.bounds {
            touched.extend(bounds.sources(&own_rows));
        }
        for operand in [Operand::Q, Operand::Do, Operand::Stats] {
            let rows = (start_of_queries.clone(), met.clone());
            let region = match operand {
                Operand::Stats => vec![one(&b), one(&h), rows, four.clone()],
                _ => vec![one(&b), rows, one(&h), wide(operand)],
            };
            let when = self.pushed.is_some().then(|| step.own.clone()).flatten();
            let access = read(operand, inputs[a.param(operand)], region);
            touched.push(Access { at: Point::Inner, when, ..access }.into());
        }
        if let (Some(pushed), Some(own)) = (&self.pushed, &step.own) {
            let word = vec![step.chunk.clone(), b.clone(), h.clone()];
            let place_of = self.keys.group.place();
            let of = [Operand::Stats, Operand::Q, Operand::Do];
            for (operand, all) in of.into_iter().zip(&pushed.all) {
                let wide = if operand == Operand::Stats { four.clone() } else { wide(operand) };
                let rows = (Expr::Const(0), met.clone());
                let region = vec![one(&step.chunk), one(&b), one(&h), rows, wide];
                let theirs = own.clone().equals(0);
                let when = Some(match &self.met {
                    Some(met) => met.also(&place_of, &step.chunk, Some(theirs.clone())),
                    None => theirs.clone(),
                });
                let access = Access { at: Point::Inner, when, ..read(operand, *all, region) };
                // A word stands for all three, and for none of them.
                touched.push(match operand {
                    Operand::Stats => {
                        let behind = Source::behind(access, pushed.arrived, word.clone());
                        if self.met.is_some() { behind.whether(theirs) } else { behind }
                    }
                    _ => access.into(),
                });
            }
        }
        for (made, buffer) in outputs {
            touched.push(write(*made, *buffer, tile(*made)).into());
        }
        let leaf = Leaf::AttendGradTile(AttendGradTile {
            of,
            block: [self.block[0] as u32, self.block[1] as u32, depth as u32],
            values: a.values(),
            scale: a.factor(depth),
            stages: stages(a),
            mask: documents::mask(a),
            cap: a.scores.cap,
        });
        let tasks = [&k.shape[0], &k.shape[2]].map(|n| i64::from(n.value)).iter().product::<i64>();
        let several = tasks * i64::from(tiles) > draft.sms();
        let name = match of {
            GradOf::KeysAlone => "attend.dk",
            GradOf::ValuesAlone => "attend.dv",
            _ => "attend",
        };
        let attend = draft.family(name, RoleKind::Compute, leaf, domain, vec![], touched);
        let family = &mut draft.plan.families[attend];
        family.inner = Some(("s".into(), step.steps * self.shared));
        if several {
            family.schedule = Schedule::Dynamic;
        }
        family.positions =
            (documents::mask(a) != Mask::Full).then_some(Positions { q: first + from, k: place });
        let blocks = (self.block[0], self.tiles);
        pass_on(draft, attend, k, a, (inputs, outputs), blocks, [b, g, tile_of]);
    }
}
