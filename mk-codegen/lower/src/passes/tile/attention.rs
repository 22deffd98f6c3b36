//! Attention forward, and gradients of queries: a task is a tile of queries, its inner loop runs over the chunks of the
//! sequence.
//!
//! Local chunks come first and are read in place; then those of peers, in the order in which their owners push them. A
//! causal tile stops at its own chunk, of which it reads the keys up to its last query. Tasks are ordered by groups of
//! a few heads, so that keys stay in the L2 cache; within a group tiles with most keys come first (dynamic scheduler).
//! Tiles of few queries are cut into parts of their keys ([`key_parts`](super::key_parts)).

use super::{
    attend_steps::{self, HEADS, STAGES, Step, together},
    documents::{self, Bounds},
    gradients,
    key_parts::{Cut, Parts},
    tiler::{Tiler, Value},
    ulysses,
};
use crate::passes::{
    draft::{Draft, Source, one, read, write},
    error::LowerError,
    shape::{
        attention::{Attention, Makes},
        chunks::Chunks,
        ranks::block_rows,
    },
    strategies::push_chunks::{self, Meets, Part, Pushed, Wanted},
};
use crate::settings::Config;
use mk_plan::{
    Access, AttendGradTile, AttendTile, BufId, Carry, Expr, GradOf, Leaf, Mask, Operand, Point,
    Positions, RoleKind, Schedule, Side, Store, Var,
};

fn block_of(a: &Attention, ring: bool) -> [i32; 2] {
    match a.makes {
        Makes::Results => attend_steps::block(a, ring),
        _ => gradients::block(a, false),
    }
}

/// The families of an attention.
///
/// # Errors
/// As those of an exchange.
pub(super) fn families<'k>(t: &mut Tiler<'k>, a: &Attention) -> Result<Value<'k>, LowerError> {
    let Tiler { kernel, config, draft, params: inputs, results, .. } = t;
    let of = |list: &[(Operand, usize)]| list.iter().map(|(o, r)| (*o, results[*r])).collect();
    let (mut outputs, kept): (Vec<_>, Vec<_>) = (of(&a.made), of(&a.kept));
    outputs.extend(a.passed.iter().map(|(operand, param)| (*operand, inputs[*param])));
    match a.makes {
        _ if a.exchange.is_some() => {
            ulysses::families(draft, a, inputs, [&outputs, &kept], config)?
        }
        Makes::Statistics => {
            let out = a.made.first().map(|(_, r)| &kernel.results[*r].out);
            gradients::statistics(draft, a, inputs, &outputs, out);
        }
        Makes::Results | Makes::Gradients(GradOf::Queries) => {
            of_queries(draft, a, inputs, &outputs, config);
        }
        Makes::Gradients(_) => gradients::of_keys(draft, a, inputs, &outputs, config),
    }
    Ok(Value::Result)
}

fn of_queries(
    draft: &mut Draft,
    a: &Attention,
    inputs: &[BufId],
    outputs: &[(Operand, BufId)],
    config: &Config,
) {
    let [q, k, v] = [Operand::Q, Operand::K, Operand::V].map(|o| a.tensor(o));
    let queries = Chunks::of(&mut draft.extents, q, 1);
    let keys = Chunks::of(&mut draft.extents, k, 1);
    let ring = a.ring.is_some();
    let mut block = block_of(a, ring);
    // Few queries have two consumers.
    let few = attend_steps::block(a, true);
    let cut = Cut::of(draft, a, (queries.rows + few[0] - 1) / few[0], few);
    if cut.is_some() {
        block = few;
    }
    let tiles = (queries.rows + block[0] - 1) / block[0];
    let whole = !q.is_sharded(2);
    let group = match ring || cut.is_some() {
        // Chunks arrive head by head.
        true => 1,
        false => (1..=HEADS).rev().find(|n| whole && q.shape[2].value % n == 0).unwrap_or(1),
    };
    let met = match ring {
        true => documents::meets(draft, a, (Side::Queries, &queries), &keys, inputs),
        false => None,
    };
    let pushed = ring.then(|| {
        let per_head = tiles * queries.per_rank * (q.shape[2].value / k.shape[2].value);
        let together = together(draft, per_head, k.shape[2].value);
        let from = |o| inputs[a.param(o)];
        let parts = [(k, Operand::K), (v, Operand::V)];
        let parts = parts.map(|(tensor, o)| Part { tensor, from: from(o), along: 1 });
        let wanted = if a.causal() { Wanted::Behind } else { Wanted::Everywhere };
        let flops = a.flops(keys.group.size);
        let wanted = (wanted, met.as_ref());
        push_chunks::push(draft, &[("push", &parts)], &keys, wanted, together, flops, config)
    });
    let bounds = documents::bounds(draft, a, (Side::Queries, &queries), inputs);
    let parts = cut.map(|cut| (cut, Parts::new(draft, a, cut)));
    let tile = Tile { a, queries, keys, block, tiles, group, pushed, met, bounds, parts };
    tile.family(draft, inputs, outputs);
}

struct Tile<'a> {
    a: &'a Attention,
    queries: Chunks,
    keys: Chunks,
    /// Queries of a tile, and keys of a block.
    block: [i32; 2],
    /// Tiles of a full chunk.
    tiles: i32,
    /// Heads whose tiles are dealt out together.
    group: i32,
    pushed: Option<Pushed>,
    /// Of packed sequences over a ring, which chunks are pushed to whom.
    met: Option<Meets>,
    /// Of packed sequences, which keys each query sees.
    bounds: Option<Bounds>,
    /// Of few queries, in which parts their keys are.
    parts: Option<(Cut, Parts)>,
}

impl Tile<'_> {
    /// The chunk of each inner step: local chunks (if causal, the diagonal one first), then the first chunks of the
    /// preceding ranks, then their second chunks. With two chunks per rank, rank r holds chunks r and 2R - 1 - r.
    fn step(&self, half: &Expr) -> Step {
        let s = Expr::from(Var::INNER);
        let group = self.keys.group;
        let (rank, world) = (group.place(), group.size);
        if !self.keys.cut() {
            return Step { steps: 1.into(), chunk: 0.into(), half: 0.into(), own: None };
        }
        let before = |s: Expr| self.keys.nodes.before(s);
        if self.keys.per_rank == 1 {
            let (steps, chunk) = match self.a.causal() {
                true => (rank.clone() + 1, rank.clone() - s.clone()),
                false => (world.into(), before(s.clone())),
            };
            return Step { steps, chunk, half: 0.into(), own: Some(s.equals(0)) };
        }
        let mirror = self.keys.mirror(rank.clone());
        // After the two local chunks.
        let first = before(s.clone() - 1);
        if !self.a.causal() {
            let second = self.keys.mirror(before(s.clone() - world));
            let theirs = s.clone().le(world).select(first, second);
            let own = s.clone().select(mirror, rank.clone());
            let chunk = s.clone().lt(2).select(own, theirs);
            let steps = Expr::Const(self.keys.count);
            return Step { steps, chunk, half: s.clone(), own: Some(s.lt(2)) };
        }
        // Of the second chunks, a second chunk attends to those of higher ranks; the last rank's comes first in the
        // sequence.
        let theirs = s.clone().le(world).select(first, s.clone() - 1);
        let own = s.clone().select(rank.clone(), mirror);
        let later = s.clone().lt(2).select(own, theirs);
        let chunk = half.clone().select(later, rank.clone() - s.clone());
        let steps = half.clone().select(Expr::Const(2 * world) - rank.clone(), rank + 1);
        let of = half.clone().select(Expr::Const(1) - s.clone(), 0);
        Step { steps, chunk, half: of, own: Some(s.lt(half.clone() + 1)) }
    }

    fn family(&self, draft: &mut Draft, inputs: &[BufId], outputs: &[(Operand, BufId)]) {
        let a = self.a;
        let [q, k] = [Operand::Q, Operand::K].map(|o| a.tensor(o));
        let [b, w, i, m] = [0, 1, 2, 3].map(|n| Expr::from(Var::domain(n)));
        let (halves, causal) = (self.queries.per_rank, a.causal());
        let tiles = halves * self.tiles;
        let (batch, heads) = (draft.own(q, 0), draft.own(q, 2));
        let part = Expr::from(Var::domain(3));
        // Heads of each query that are rows of one tile.
        let together = self.parts.as_ref().map_or(1, |(cut, _)| cut.heads);
        let (h, domain) = match self.group {
            _ if let Some((cut, _)) = &self.parts => {
                let groups = heads / together;
                let parts = cut.parts.into();
                (w, vec![("b", batch), ("h", groups), ("i", tiles.into()), ("c", parts)])
            }
            1 => (w, vec![("b", batch), ("h", heads), ("i", tiles.into())]),
            n => {
                let groups = (q.shape[2].value / n).into();
                let domain =
                    vec![("b", batch), ("w", groups), ("i", tiles.into()), ("m", n.into())];
                (w * n + m, domain)
            }
        };
        // The last rows of a chunk, and the second chunk, have the most keys.
        let mut i = if causal && tiles > 1 { Expr::Const(tiles - 1) - i } else { i };
        let mut half = Expr::Const(0);
        if halves > 1 {
            (half, i) = (i.clone() / self.tiles, i % self.tiles);
        }
        let own = self.queries.own(&half);
        let len = self.queries.len(&mut draft.extents, &own);
        let at = i.clone() * self.block[0];
        let rows = match self.parts {
            Some(_) => len,
            None => block_rows(len, i.clone(), self.block[0]),
        };
        let start = self.queries.at(&mut draft.extents, &half) + at.clone();
        let [ahead, behind] = a.begins(&mut draft.extents);
        let place = self.queries.first(&own) + at + ahead;

        let depth = q.shape[3].value;
        // Of queries and keys, and of values and results.
        let columns = [q, a.tensor(Operand::V)].map(|t| (Expr::Const(0), draft.dim(&t.shape[3])));
        let [wide, of_values] = columns;
        let g = h.clone() / (q.shape[2].value / k.shape[2].value / together);
        let step = self.step(&half);
        let keys = self.keys.len(&mut draft.extents, &step.chunk);
        let first = self.keys.first(&step.chunk) + behind.clone();
        // Keys after the last query are not read. Only the diagonal chunk (step 0), or the only chunk, has such keys.
        let seen = match (causal, self.keys.cut()) {
            (false, _) => keys,
            (true, false) if behind == Expr::Const(0) => keys.min(place.clone() + rows.clone()),
            // The first queries attend to no keys.
            (true, false) => {
                Expr::Const(0).max(keys.min(place.clone() + rows.clone() - first.clone()))
            }
            (true, true) => {
                let seen = keys.clone().min(place.clone() - first.clone() + rows.clone());
                Expr::from(Var::INNER).equals(0).select(seen, keys)
            }
        };
        // A tile without queries has no keys.
        let seen = Expr::Const(0).lt(rows.clone()).select(seen, 0);
        let (mut from, mut seen) = a.window(&place, &first, seen);
        if let Some((cut, _)) = &self.parts {
            (from, seen) = cut.part(&part, (from, seen), self.block[1]);
        }
        let start_of_keys = self.keys.at(&mut draft.extents, &step.half) + from.clone();

        let of_heads = (h.clone() * together, Expr::Const(together));
        let tile = vec![one(&b), (start.clone(), rows.clone()), of_heads.clone(), wide.clone()];
        let results = [&tile[..3], std::slice::from_ref(&of_values)].concat();
        let stats = |rows: &[(Expr, Expr)], wide: (Expr, Expr)| {
            vec![rows[0].clone(), rows[2].clone(), rows[1].clone(), wide]
        };
        let mut touched: Vec<Source> =
            vec![read(Operand::Q, inputs[a.param(Operand::Q)], tile.clone()).into()];
        if a.makes != Makes::Results {
            let region = stats(&tile, (0.into(), draft.dim(&a.tensor(Operand::Stats).shape[3])));
            touched.push(read(Operand::Do, inputs[a.param(Operand::Do)], results.clone()).into());
            touched.push(read(Operand::Stats, inputs[a.param(Operand::Stats)], region).into());
        }
        if let Some(bounds) = &self.bounds {
            touched.extend(bounds.sources(&(place.clone(), rows.clone())));
        }
        for (operand, wide) in [(Operand::K, &wide), (Operand::V, &of_values)] {
            let rows = (start_of_keys.clone(), seen.clone());
            let region = vec![one(&b), rows, one(&g), wide.clone()];
            let when = self.pushed.is_some().then(|| step.own.clone()).flatten();
            let access = read(operand, inputs[a.param(operand)], region);
            touched.push(Access { at: Point::Inner, when, ..access }.into());
        }
        if let (Some(pushed), Some(own)) = (&self.pushed, &step.own) {
            let (theirs, place_of) = (own.clone().equals(0), self.queries.group.place());
            let word = vec![step.chunk.clone(), b.clone(), g.clone()];
            let of = [(Operand::K, &wide), (Operand::V, &of_values)];
            for ((operand, wide), all) in of.into_iter().zip(&pushed.all) {
                let rows = (from.clone(), seen.clone());
                let region = vec![one(&step.chunk), one(&b), one(&g), rows, wide.clone()];
                let when = Some(match &self.met {
                    Some(met) => met.also(&place_of, &step.chunk, Some(theirs.clone())),
                    None => theirs.clone(),
                });
                let access = Access { at: Point::Inner, when, ..read(operand, *all, region) };
                // One flag announces the keys and the values, and that there are none.
                touched.push(match operand {
                    Operand::K => {
                        let behind = Source::behind(access, pushed.arrived, word.clone());
                        if self.met.is_some() { behind.whether(theirs.clone()) } else { behind }
                    }
                    _ => access.into(),
                });
            }
        }
        if a.scores.sinks && self.parts.is_none() {
            let sink = read(Operand::Sinks, inputs[a.param(Operand::Sinks)], vec![one(&h)]);
            touched.push(sink.into());
        }
        if let Some((_, parts)) = &self.parts {
            let own = (start.clone(), rows.clone());
            let at = [one(&b), one(&h), own, (0.into(), together.into())];
            touched.extend(parts.written(&part, at));
        }
        for (made, buffer) in outputs.iter().filter(|_| self.parts.is_none()) {
            let region = match made {
                Operand::Lse => vec![one(&b), one(&h), (start.clone(), rows.clone())],
                Operand::O => results.clone(),
                _ => tile.clone(),
            };
            touched.push(write(*made, *buffer, region).into());
        }
        let block = [self.block[0] as u32, self.block[1] as u32, depth as u32];
        let (scale, values) = (a.factor(depth), a.values());
        // A query alone sees all keys that are read.
        let alone = self.parts.is_some() && rows == Expr::Const(1);
        let mask = if alone { Mask::Full } else { documents::mask(a) };
        let cap = a.scores.cap;
        let leaf = match a.makes {
            Makes::Results => {
                let (carry, stages, store) = (Carry::Registers, STAGES, Store::Direct);
                Leaf::AttendTile(AttendTile {
                    block,
                    values,
                    heads: together as u32,
                    carry,
                    scale,
                    stages,
                    mask,
                    cap,
                    store,
                })
            }
            _ => {
                let (of, stages) = (GradOf::Queries, gradients::stages(a));
                Leaf::AttendGradTile(AttendGradTile { of, block, values, scale, stages, mask, cap })
            }
        };
        let tasks = [&q.shape[0], &q.shape[2]].map(|n| i64::from(n.value)).iter().product::<i64>();
        let several = self.parts.is_none() && tasks * i64::from(tiles) > draft.sms();
        let attend = draft.family("attend", RoleKind::Compute, leaf, domain, vec![], touched);
        let family = &mut draft.plan.families[attend];
        family.inner = Some(("s".into(), step.steps));
        if several {
            family.schedule = Schedule::Dynamic;
        }
        family.positions = (mask != Mask::Full).then_some(Positions { q: place, k: first + from });
        let blocks = (self.block[0], self.tiles);
        if let Some((_, parts)) = &self.parts {
            parts.merge(draft, a, attend, blocks, (inputs, outputs));
        }
        attend_steps::pass_on(draft, attend, q, a, (inputs, outputs), blocks, [b, h, i]);
    }
}
