//! Attention of few queries, with split keys: tasks attend to different parts of the keys in parallel, and further
//! tasks of the same kernel wait for all parts of a row and merge their partial results.
//!
//! Heads that share their keys are rows of a tile, which then reads these once, where its queries leave room for them.

use crate::passes::{
    draft::{Draft, Flow, Source, Writer, one, read, write},
    shape::{
        attention::{Attention, Makes},
        ranks::block_rows,
    },
};
use mk_abi::DType;
use mk_plan::{Access, BufId, Expr, FamId, Leaf, MergeTile, Operand, Point, RoleKind, Space, Var};

/// Queries of a task that puts parts together: a row for each of its warps, twice.
const ROWS: i32 = 16;

/// What a further wave of tiles, and what the tasks behind them take, in blocks of keys.
const WAVE: i64 = 2;
const MERGE: i64 = 8;

/// The most parts that are looked at.
const MOST: i64 = 64;

/// How an attention is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Parts of the keys.
    pub parts: i32,
    /// Heads of each query that are rows of a tile: some that share keys, or one.
    pub heads: i32,
}

/// What parts give, `[parts, batch, groups of heads, queries, heads, columns]` in f32: results as they are summed up,
/// and a maximum and a sum of each row.
pub(super) struct Parts {
    cut: Cut,
    acc: (BufId, Expr),
    stat: (BufId, Expr),
}

impl Cut {
    /// The cut that takes the fewest blocks of keys in turn, if one takes fewer than none: of attentions whose rank has
    /// all keys and all queries, which are one tile of each head, of so many rows and blocks of so many keys.
    pub fn of(draft: &Draft, a: &Attention, tiles: i32, [rows, block]: [i32; 2]) -> Option<Cut> {
        let [q, k] = [Operand::Q, Operand::K].map(|o| a.tensor(o));
        let cut = [q, k].iter().any(|t| t.is_sharded(1)) || a.ring.is_some();
        let takes = a.makes == Makes::Results && a.documents.is_none() && a.passed.is_empty();
        if !takes || cut || tiles > 1 {
            return None;
        }
        let shared = q.shape[2].value / k.shape[2].value;
        let fits = |n: &i32| {
            shared % n == 0 && i64::from(q.shape[1].capacity()) * i64::from(*n) <= i64::from(rows)
        };
        let heads = (1..=shared).rev().find(fits).unwrap_or(1);
        let tasks = i64::from(q.shape[0].value) * i64::from(q.widest(2) / heads);
        let keys = i64::from(k.shape[1].capacity());
        let seen = a.scores.mask.window().map_or(keys, |window| {
            keys.min(i64::from(window) + i64::from(q.shape[1].capacity()) - 1)
        });
        let blocks = (seen + i64::from(block) - 1) / i64::from(block);
        let sms = draft.sms().max(1);
        let turns = |tasks: i64, parts: i64, merge: i64| {
            let waves = (tasks * parts + sms - 1) / sms;
            waves * ((blocks + parts - 1) / parts + WAVE) + merge
        };
        // Tiles of several heads are in f32 until they are put together, in one part, too.
        let all = (1..=MOST.min(blocks)).map(|n| (turns(tasks, n, MERGE), n));
        let (least, parts) = all.min()?;
        let whole = turns(tasks * i64::from(heads), 1, 0);
        (least < whole).then_some(Cut { parts: parts as i32, heads })
    }

    /// Of keys that a tile sees, from `from` on: those of part `part`, in whole blocks.
    pub fn part(&self, part: &Expr, (from, seen): (Expr, Expr), block: i32) -> (Expr, Expr) {
        let all = self.parts * block;
        let each = (seen.clone() + (all - 1)) / all * block;
        let first = part.clone() * each.clone();
        let left = Expr::Const(0).max(seen - first.clone());
        (from + first, each.min(left))
    }
}

impl Parts {
    pub fn new(draft: &mut Draft, a: &Attention, cut: Cut) -> Parts {
        let q = a.tensor(Operand::Q);
        let [batch, rows, heads] = [0, 1, 2].map(|d| draft.own(q, d));
        let wide = draft.dim(&a.tensor(Operand::V).shape[3]);
        let [acc, stat] = [("parts", wide), ("sums", 2.into())].map(|(name, columns)| {
            let groups = heads.clone() / cut.heads;
            let (batch, rows, together) = (batch.clone(), rows.clone(), cut.heads.into());
            let shape = [cut.parts.into(), batch, groups, rows, together, columns.clone()];
            let buffer = draft.buffer(name, Space::Scratch, DType::F32, shape.to_vec(), None);
            (buffer, columns)
        });
        Parts { cut, acc, stat }
    }

    /// What lies of a part: of a batch, a group, queries, and heads of each.
    fn regions(&self, part: Expr, at: &[(Expr, Expr); 4]) -> [(BufId, Vec<(Expr, Expr)>); 2] {
        [&self.acc, &self.stat].map(|(buffer, columns)| {
            let mut region = vec![(part.clone(), 1.into())];
            region.extend(at.iter().cloned());
            region.push((0.into(), columns.clone()));
            (*buffer, region)
        })
    }

    /// What a tile of a part writes.
    pub fn written(&self, part: &Expr, at: [(Expr, Expr); 4]) -> [Source; 2] {
        let [acc, stat] = self.regions(part.clone(), &at);
        [(Operand::AccOut, acc), (Operand::StatOut, stat)]
            .map(|(operand, (buffer, region))| write(operand, buffer, region).into())
    }

    /// Puts together what the tiles of `attend` give, of a batch, heads and a block of so many queries each.
    pub fn merge(
        &self,
        draft: &mut Draft,
        a: &Attention,
        attend: FamId,
        (block, tiles): (i32, i32),
        (inputs, outputs): (&[BufId], &[(Operand, BufId)]),
    ) {
        let q = a.tensor(Operand::Q);
        let [batch, rows, heads] = [0, 1, 2].map(|d| draft.own(q, d));
        let shape = vec![batch.clone(), (q.widest(2) / self.cut.heads).into(), tiles.into()];
        let [b, h, i] = [0, 1, 2].map(|n| Expr::from(Var::domain(n)));
        let made = vec![b.clone(), h.clone(), i.clone()];
        let made = Writer::new(attend, Operand::AccOut, made);
        let made = draft.flow(Flow::new("parts", shape, self.cut.parts.into(), vec![made]));
        let own = (i.clone() * ROWS, block_rows(rows, i.clone(), ROWS));
        let group = h.clone() / self.cut.heads;
        let at = [one(&b), one(&group), own.clone(), one(&(h.clone() % self.cut.heads))];
        let [acc, stat] = self.regions(Var::INNER.into(), &at).map(|(buffer, region)| Access {
            at: Point::Inner,
            ..read(Operand::AccIn, buffer, region)
        });
        let word = vec![b.clone(), group, i * ROWS / block];
        let stat = Access { operand: Operand::StatIn, ..stat };
        let mut touched = vec![Source::behind(acc, made, word), stat.into()];
        if a.scores.sinks {
            let sink = read(Operand::Sinks, inputs[a.param(Operand::Sinks)], vec![one(&h)]);
            touched.push(sink.into());
        }
        for (operand, buffer) in outputs {
            let region = match operand {
                Operand::Lse => vec![one(&b), one(&h), own.clone()],
                _ => vec![one(&b), own.clone(), one(&h), (0.into(), self.acc.1.clone())],
            };
            touched.push(write(*operand, *buffer, region).into());
        }
        let leaf = Leaf::MergeTile(MergeTile { block: [ROWS as u32, a.heads()[1] as u32] });
        let blocks = (q.widest(1) + ROWS - 1) / ROWS;
        let domain = vec![("b", batch), ("h", heads), ("i", blocks.into())];
        let merge = draft.family("merge", RoleKind::Compute, leaf, domain, vec![], touched);
        draft.plan.families[merge].inner = Some(("p".into(), self.cut.parts.into()));
    }
}
