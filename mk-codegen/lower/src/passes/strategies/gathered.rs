//! Gathered rows on their way: where they arrive, and the words that announce them.

use super::{
    deliver,
    factors::{OwnFactors, RailFactors},
};
use crate::passes::{
    draft::{Arrival, Draft, FlowId, Source, Writer, on_each, write},
    shape::{
        pieces::Pieces,
        rows::{RowBlock, Rows},
    },
};
use mk_plan::{Access, BufId, COPY_STAGE_BYTES, Each, Expr, Operand, RoleKind, Var};

/// A gather, for the families that read it.
pub(in crate::passes) struct Gathered {
    /// The caller's shard.
    pub shard: BufId,
    /// `[world, rows, K]`, or `[slices, world, rows, K / slices]`; `[world * rows, K]` if `whole` is set. Holds the own
    /// rows, too, if `own_rows` is set.
    pub all: BufId,
    /// Rows of a shard, where tiles hold rows of several.
    pub whole: Option<i32>,
    pub slices: Option<Slices>,
    /// Whether local rows are in `all`; else they are read from `shard`.
    pub own_rows: bool,
    /// Whether shards arrive one after the other.
    pub by_shard: bool,
    /// Factors of the rows, which come with them.
    pub factors: Option<Factors>,
    /// Words by shard, and by blocks of so many rows, of which one covers several; and by slice.
    pub arrived: FlowId,
    pub height: i32,
    pub blocks: i32,
    pub per_word: i32,
}

/// Factors of gathered rows: those of the own ones, and `[ranks, rows]`, or `[1, ranks * rows]` where tiles hold rows
/// of several; with steps, `[ranks, steps, rows]` and `[steps, ranks * rows]`.
#[derive(Clone)]
pub(in crate::passes) struct Factors {
    pub own: OwnFactors,
    pub all: BufId,
}

impl Factors {
    /// Rows of the own ones.
    pub fn own(&self, rows: (Expr, Expr)) -> (BufId, Vec<(Expr, Expr)>) {
        let steps = self.own.steps.clone().map(|n| (0.into(), n));
        (self.own.buffer, steps.into_iter().chain([rows]).collect())
    }

    /// Rows of a shard.
    pub fn of_shard(&self, shard: Expr, rows: (Expr, Expr)) -> (BufId, Vec<(Expr, Expr)>) {
        let steps = self.own.steps.clone().map(|n| (0.into(), n));
        (self.all, [(shard, 1.into())].into_iter().chain(steps).chain([rows]).collect())
    }

    /// Sends the own ones to the rails, and copies those that come from them to each rank of the node: the writer of
    /// words `[shard, block]`.
    pub fn over_rail(&self, draft: &mut Draft, name: &str, rows: &Rows) -> Writer {
        let nodes = draft.along(rows.axis);
        let near = (nodes.local() > 1).then(|| nodes.near.everyone());
        let factors = RailFactors {
            name,
            rows: &rows.of,
            own: &self.own,
            nodes,
            kind: RoleKind::IntraComm,
            cut: deliver::Pieces::whole(rows.height, rows.blocks),
        };
        let (of, ranks) = (&rows.of.shape[0], rows.group.size);
        let theirs = |draft: &mut Draft, place| draft.extents.shard(of, ranks, place);
        let (forward, source) = factors.bring(draft, theirs, |source, block| {
            let (to, there) = self.of_shard(source, block);
            let dst = write(Operand::Dst, to, there);
            on_each(dst, near.clone())
        });
        let come = Writer::new(forward, Operand::Dst, vec![source, Var::domain(0).into()]);
        come.on_each(near)
    }

    /// Rows of several shards.
    pub fn of_several(&self, rows: (Expr, Expr)) -> (BufId, Vec<(Expr, Expr)>) {
        let steps = self.own.steps.clone().map_or((0.into(), 1.into()), |n| (0.into(), n));
        (self.all, vec![steps, rows])
    }
}

/// More slices would only add signals.
const MAX_SLICES: u32 = 256;

/// How rows are cut along K on their way.
#[derive(Clone, Copy)]
pub(in crate::passes) struct Slices {
    pub count: i32,
    /// Elements of a row in one.
    pub depth: i32,
    /// Blocks of a shard whose slices leave side by side, and are multiplied so.
    pub together: i32,
}

impl Slices {
    /// At most so many of `k` elements, all of them equal, whole steps of a GEMM, and of rows that a copy's stage
    /// holds.
    pub fn new(k: i32, size_bytes: u64, most: u32, step: i32, together: i32) -> Option<Slices> {
        let steps = if k % step == 0 { k / step } else { return None };
        let most = most.min(MAX_SLICES) as i32;
        let most = most.min(steps);
        let fits = |n: &i32| (k / n) as u64 * size_bytes <= u64::from(COPY_STAGE_BYTES);
        let count = (2..=most).rev().find(|n| steps % n == 0)?;
        let count = Some(count).filter(fits)?;
        Some(Slices { count, depth: k / count, together })
    }
}

impl Gathered {
    /// Rows from `at` on of all shards, `len` of them and at most `most`, each shard of which is awaited.
    pub fn span(&self, access: Access, (at, len): (Expr, Expr), most: i32, rows: i32) -> Source {
        let first = at.clone() / rows;
        let last = (at + len - 1) / rows;
        // Fewer where rows end: then the last one again.
        let shard = (first + Var::EACH).min(last);
        let extent = if most % rows == 0 { most / rows } else { (most + rows - 1) / rows + 1 };
        let each = Some(Each { var: "q".into(), extent: extent.into() });
        let arrival = Arrival { flow: self.arrived, word: vec![shard, 0.into()], each, when: None };
        Source { access, arrivals: vec![arrival] }
    }

    /// Some rows of a shard, at most as many as a block has, which `access` reads; in slices, the one that is named.
    pub fn rows(
        &self,
        access: Access,
        (pieces, height): (&Pieces, i32),
        r: &RowBlock,
        slice: Option<Expr>,
    ) -> Source {
        let unit = self.height * self.per_word;
        if pieces.within(unit, height) {
            let word = vec![r.shard.clone(), r.at.clone() / unit];
            return Source::behind(access, self.arrived, word.into_iter().chain(slice).collect());
        }
        let words = (self.blocks + self.per_word - 1) / self.per_word;
        // Where rows end between two blocks of the gather, both.
        let first = r.at.clone() / unit;
        let last = ((r.at.clone() + r.len.clone() - 1) / unit).max(0).min(words - 1);
        let word = vec![r.shard.clone(), (first + Var::EACH).min(last)];
        let each = Some(Each { var: "q".into(), extent: 2.into() });
        let word = word.into_iter().chain(slice).collect();
        let arrival = Arrival { flow: self.arrived, word, each, when: None };
        Source { access, arrivals: vec![arrival] }
    }

    /// A block of a shard's rows, which `access` reads; in slices, the one that is named.
    pub fn source(&self, access: Access, shard: Expr, block: Expr, slice: Option<Expr>) -> Source {
        let mut word = vec![shard, block / self.per_word];
        word.extend(slice);
        Source::behind(access, self.arrived, word)
    }
}
