//! Rows that are sharded over two axes, with shards of different sizes.
//!
//! A *piece* is the intersection of a shard along one axis and a shard along the other. Along either axis, every shard
//! is the same number of consecutive pieces, some of which may be empty.

use super::ranks::RankGroup;
use mk_plan::Expr;

/// The pieces of shards along an axis.
#[derive(Clone)]
pub(in crate::passes) struct Pieces {
    /// All rows.
    whole: i32,
    /// Along this axis, and along the other one: rows of a shard, ranks, and the axis.
    pub per: [i32; 2],
    pub groups: [RankGroup; 2],
    pub axes: [usize; 2],
    /// Pieces of a shard along this axis, and along the other one.
    pub count: i32,
    others: i32,
    /// Rows of a piece, in whole blocks.
    pub rows: i32,
    /// Whether each piece of a shard is also a piece of a shard of the other axis, even if empty.
    pub exact: bool,
}

impl Pieces {
    /// In blocks of `height`, or of what divides it.
    pub fn new(
        whole: i32,
        per: [i32; 2],
        groups: [RankGroup; 2],
        axes: [usize; 2],
        height: i32,
    ) -> Pieces {
        let pieces = |[own, other]: [i32; 2], ranks: i32| {
            let of = |q: i32| ((q * own + own).min(whole) - 1) / other - q * own / other + 1;
            (0..ranks).map(of).max().unwrap_or(1).max(1)
        };
        let [a, b] = per;
        let (count, others) = (pieces([a, b], groups[0].size), pieces([b, a], groups[1].size));
        let exact = (b % a == 0 || a % b == 0)
            && i64::from(count) * i64::from(groups[0].size)
                == i64::from(others) * i64::from(groups[1].size);
        let rows = (a.min(b) + height - 1) / height * height;
        Pieces { whole, per, groups, axes, count, others, rows, exact }
    }

    /// The same, seen from the other axis.
    pub fn turned(&self) -> Pieces {
        let turn = |[a, b]: [usize; 2]| [b, a];
        let [a, b] = self.per;
        let [own, other] = self.groups;
        Pieces {
            per: [b, a],
            groups: [other, own],
            axes: turn(self.axes),
            count: self.others,
            others: self.count,
            ..self.clone()
        }
    }

    /// Piece of a shard, and block in the piece.
    fn split(&self, block: &Expr, height: i32) -> (Expr, Expr) {
        let blocks = self.rows / height;
        match self.count {
            1 => (0.into(), block.clone()),
            _ => (block.clone() / blocks, block.clone() % blocks),
        }
    }

    /// The owner along the other axis of a block's rows; past the last one for empty blocks.
    fn other(&self, shard: &Expr, piece: &Expr) -> Expr {
        let [a, b] = self.per;
        match () {
            () if b % a == 0 => shard.clone() / (b / a) + piece.clone(),
            () if a % b == 0 => shard.clone() * (a / b) + piece.clone(),
            () => shard.clone() * a / b + piece.clone(),
        }
    }

    /// The first row of a piece.
    fn first(&self, shard: &Expr, other: &Expr) -> Expr {
        let [a, b] = self.per;
        match () {
            () if self.exact && b % a == 0 => shard.clone() * a,
            () if self.exact => other.clone() * b,
            () => (shard.clone() * a).max(other.clone() * b),
        }
    }

    /// First row in the shard, and rows, of a block; 0 or less past the end.
    pub fn rows_of(&self, shard: &Expr, block: &Expr, height: i32) -> (Expr, Expr) {
        let [a, b] = self.per;
        let (piece, i) = self.split(block, height);
        let other = self.other(shard, &piece);
        let begin = self.first(shard, &other);
        let (own_end, other_end) = ((shard.clone() + 1) * a, (other.clone() + 1) * b);
        let end = match () {
            () if self.exact && b % a == 0 => own_end,
            () if self.exact => other_end,
            () => own_end.min(other_end),
        };
        let even = self.exact
            && self.groups[0].size * a == self.whole
            && self.groups[1].size * b == self.whole;
        let end = if even { end } else { end.min(self.whole) };
        let at = match () {
            () if self.exact && b % a == 0 => i.clone() * height,
            () if self.exact => piece * b + i.clone() * height,
            () => begin.clone() + i.clone() * height - shard.clone() * a,
        };
        let len = match even {
            true if a.min(b) == self.rows => height.into(),
            true => Expr::Const(height).min(Expr::Const(a.min(b)) - i * height),
            false => Expr::Const(height).min(end - begin - i * height),
        };
        (at, len)
    }

    /// Whether blocks of this height lie in blocks of `unit` rows of the shard.
    pub fn within(&self, unit: i32, height: i32) -> bool {
        let [a, b] = self.per;
        self.exact && unit % height == 0 && (b % a == 0 || b % unit == 0)
    }

    /// A block as the other axis has it: place, block, and first row in the shard there.
    pub fn theirs(&self, shard: &Expr, block: &Expr, height: i32) -> (Expr, Expr, Expr) {
        let [a, b] = self.per;
        let (piece, i) = self.split(block, height);
        let other = self.other(shard, &piece);
        let first = match () {
            () if a % b == 0 => other.clone() / (a / b),
            () if b % a == 0 => other.clone() * (b / a),
            () => other.clone() * b / a,
        };
        let theirs = match self.others {
            1 => i.clone(),
            _ => (shard.clone() - first) * (self.rows / height) + i.clone(),
        };
        let at = self.first(shard, &other) + i * height - other.clone() * b;
        let place = if self.exact { other } else { other.min(self.groups[1].size - 1) };
        (place, theirs, at)
    }
}
