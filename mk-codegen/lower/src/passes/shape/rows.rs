//! Blocks of rows: how the rows of a result are cut, and in which order they are walked.

use super::{
    extents::Extents,
    pieces::Pieces,
    ranks::{RankGroup, block_rows},
    tensor::{Tensor, shard_extent},
};
use mk_plan::{Expr, Var};

/// The rows that a family's tiles cover.
#[derive(Clone)]
pub(in crate::passes) struct Rows {
    /// The tensor whose dimension 0 is cut into shards: rows of shard `q` are its rows at place `q`.
    pub of: Tensor,
    /// The ranks that have them, along this axis of the kernel.
    pub axis: usize,
    pub group: RankGroup,
    /// Rows of a full shard, or of the whole where there is one shard.
    pub per_shard: Expr,
    /// The most that `per_shard` can be.
    pub capacity: i32,
    /// Rows of a block.
    pub height: i32,
    /// Blocks of `capacity` rows. Tasks of blocks that a launch does not fill are there all the same, and raise their
    /// signals: words must count up by the same amount in every launch.
    pub blocks: i32,
    /// Shards that exist; 1 means that rows are not cut by rank.
    pub shards: i32,
    /// Shards that are covered: `count` of them, from `first` places after this rank.
    pub first: i32,
    pub count: i32,
    /// Blocks of each shard that are covered: `walked` of them, from `from` on.
    pub from: i32,
    pub walked: i32,
    /// Where other ranks share the rows, too: blocks are of rows of one of them.
    pub pieces: Option<Pieces>,
}

/// One block of rows, as expressions over a task's variables.
#[derive(Clone)]
pub(in crate::passes) struct RowBlock {
    /// The shard: the place of the rank that owns it.
    pub shard: Expr,
    /// Block in the shard.
    pub block: Expr,
    /// First row in the shard.
    pub at: Expr,
    /// Rows; 0 or less past the end.
    pub len: Expr,
    /// Loops over rows: the next is that over columns.
    pub loops: usize,
}

impl Rows {
    /// The rows of `of` in blocks of `height`, by owner along an axis or as this rank has them.
    pub fn new(extents: &mut Extents, of: &Tensor, owner: Option<usize>, height: i32) -> Rows {
        let e = &of.shape[0];
        let cut = of.cut(0).filter(|cut| !cut.zigzag);
        let axis = owner.or(cut.map(|cut| cut.axis)).unwrap_or(0);
        let group = extents.along(axis).group;
        let owners = owner.map(|_| group.size).filter(|ranks| *ranks > 1);
        let shards = owners.unwrap_or(1);
        let (per_shard, capacity) = match owners.or(cut.map(|cut| cut.ranks)) {
            Some(ranks) => (extents.part_of(e, ranks), shard_extent(e, ranks)),
            None => (extents.dim(e), e.capacity()),
        };
        let blocks = (capacity + height - 1) / height;
        let (of, first, count, from, walked) = (of.clone(), 0, shards, 0, blocks);
        let pieces = None;
        Rows {
            of,
            axis,
            group,
            per_shard,
            capacity,
            height,
            blocks,
            shards,
            first,
            count,
            from,
            walked,
            pieces,
        }
    }

    /// All rows of `of`, in blocks of `height` that hold rows of several ranks.
    pub fn whole(extents: &mut Extents, of: &Tensor, height: i32) -> Rows {
        let of = Tensor { cuts: Vec::new(), ..of.clone() };
        Rows::new(extents, &of, None, height)
    }

    /// Peers first, local rows last: those need no link, and nobody waits for them.
    pub fn peers_first(self) -> Rows {
        Rows { first: i32::from(self.shards > 1), ..self }
    }

    /// The same rows in blocks of another height, which divides theirs, or of which theirs is a divisor if all blocks
    /// are walked.
    pub fn in_blocks(&self, height: i32) -> Rows {
        if let Some(pieces) = &self.pieces {
            let blocks = pieces.count * (pieces.rows / height);
            return Rows { height, blocks, walked: blocks, ..self.clone() };
        }
        let blocks = (self.capacity + height - 1) / height;
        let (from, end) = (self.from * self.height / height, self.end() / height);
        let walked = if end * height < self.end() { blocks } else { end } - from;
        Rows { height, blocks, from, walked, ..self.clone() }
    }

    /// The end of the covered rows of a full shard.
    fn end(&self) -> i32 {
        self.capacity.min((self.from + self.walked) * self.height)
    }

    /// Covered rows of a full shard.
    pub fn covered(&self) -> i32 {
        self.end() - self.from * self.height
    }

    /// The first row of a task in the covered rows of all shards.
    pub fn in_covered(&self, r: &RowBlock) -> Expr {
        let at = r.shard.clone() * self.covered() + r.at.clone();
        if self.from > 0 { at - self.from * self.height } else { at }
    }

    /// The same rows, of a number that is the same in all launches, in blocks each of which is also of one of the ranks
    /// along another axis that share them.
    pub fn shared_with(&self, axis: usize, group: RankGroup) -> Rows {
        let whole = self.of.shape[0].value;
        let per = [self.capacity, (whole + group.size - 1) / group.size];
        let pieces = Pieces::new(whole, per, [self.group, group], [self.axis, axis], self.height);
        let blocks = pieces.count * (pieces.rows / self.height);
        Rows { blocks, walked: blocks, pieces: Some(pieces), ..self.clone() }
    }

    /// The same rows, in blocks as if nobody else shared them.
    pub fn unshared(&self) -> Rows {
        match self.pieces {
            Some(_) => Rows { pieces: None, ..self.clone() }.in_blocks(self.height),
            None => self.clone(),
        }
    }

    /// The same rows, by owner along the other axis.
    pub fn by_others(&self) -> Rows {
        let Some(pieces) = &self.pieces else { return self.clone() };
        let theirs = pieces.turned();
        let [group, _] = theirs.groups;
        let [capacity, _] = theirs.per;
        let blocks = theirs.count * (theirs.rows / self.height);
        Rows {
            axis: theirs.axes[0],
            group,
            per_shard: capacity.into(),
            capacity,
            blocks,
            shards: group.size,
            first: i32::from(self.first > 0 && group.size > 1),
            count: group.size,
            from: 0,
            walked: blocks,
            pieces: Some(theirs),
            ..self.clone()
        }
    }

    /// A block as one of those have it who share the rows; as it is where nobody else does. And whether there is
    /// something in it, where blocks are without rows that those do not know.
    pub fn owned(&self, r: &RowBlock) -> (RowBlock, Option<Expr>) {
        let Some(pieces) = &self.pieces else { return (r.clone(), None) };
        let (shard, block, at) = pieces.theirs(&r.shard, &r.block, self.height);
        let when = self.exists(&r.len);
        (RowBlock { shard, block, at, ..r.clone() }, when)
    }

    /// The rows of the local shard.
    pub fn own(&self) -> Rows {
        Rows { first: 0, count: 1, ..self.clone() }
    }

    /// The rows of all shards but the own.
    pub fn peers(&self) -> Rows {
        Rows { first: 1, count: self.shards - 1, ..self.clone() }
    }

    /// Loop variables: block, shard (if there are several), column block.
    pub fn domain(&self, col_blocks: i32) -> Vec<(&'static str, Expr)> {
        let mut domain = vec![("i", self.walked.into())];
        if self.count > 1 {
            domain.push(("s", self.count.into()));
        }
        domain.push(("j", col_blocks.into()));
        domain
    }

    /// The column block of a task.
    pub fn column(&self) -> Expr {
        Var::domain(if self.count > 1 { 2 } else { 1 }).into()
    }

    /// The rows of a task.
    pub fn block(&self, extents: &mut Extents) -> RowBlock {
        let height = self.height;
        let mut i = Expr::from(Var::domain(0));
        if self.from > 0 {
            i = i + self.from;
        }
        let loops = if self.count > 1 { 2 } else { 1 };
        let shard = if self.shards == 1 {
            Expr::Const(0)
        } else if self.count > 1 {
            self.group.place_after(Expr::from(Var::domain(1)) + self.first)
        } else if self.first == 0 {
            self.group.place()
        } else {
            self.group.place_after(self.first.into())
        };
        let (at, len) = match self.shards {
            1 if self.pieces.is_none() => {
                let rows = extents.own(&self.of, 0);
                (i.clone() * height, block_rows(rows, i.clone(), height))
            }
            _ => self.of_shard(extents, &shard, &i),
        };
        RowBlock { shard, block: i, at, len, loops }
    }

    /// Block `i` of a rank's shard: its first row in the shard, and rows; 0 or less past the end.
    pub fn of_shard(&self, extents: &mut Extents, shard: &Expr, i: &Expr) -> (Expr, Expr) {
        if let Some(pieces) = &self.pieces {
            return pieces.rows_of(shard, i, self.height);
        }
        let rows = extents.shard(&self.of.shape[0], self.group.size, shard.clone());
        (i.clone() * self.height, block_rows(rows, i.clone(), self.height))
    }

    /// Whether a block has rows, where some are without that the ranks who share them do not know.
    pub fn exists(&self, len: &Expr) -> Option<Expr> {
        let exact = self.pieces.as_ref().is_none_or(|pieces| pieces.exact);
        (!exact).then(|| Expr::Const(0).lt(len.clone()))
    }

    /// The first row of a task in all rows of the result.
    pub fn global(&self, r: &RowBlock) -> Expr {
        if self.shards > 1 {
            r.shard.clone() * self.per_shard.clone() + r.at.clone()
        } else {
            r.at.clone()
        }
    }

    /// The place of a task's shard in the walk over all shards that starts behind this rank and ends with it.
    pub fn hop(&self) -> Expr {
        Var::domain(1).into()
    }

    /// Order of tiles of sums that go from rank to rank: groups of `group` row blocks, in each one hop after the other.
    /// So a tile is as far behind the one that a neighbour adds to as a group has tiles, and what does not leave the
    /// rank alternates with what does.
    pub fn order_by_hop(&self, group: i32, col_blocks: i32) -> Vec<Expr> {
        let t = Expr::from(Var::LINEAR);
        let group = group.min(self.walked.max(1));
        let of_group = group * col_blocks * self.count;
        let first = t.clone() / of_group * group;
        let height = Expr::Const(group).min(Expr::Const(self.walked) - first.clone());
        let within = t % of_group;
        let of_hop = height.clone() * col_blocks;
        let at = within.clone() % of_hop.clone();
        vec![first + at.clone() % height.clone(), within / of_hop, at / height]
    }

    /// As [`Rows::order`], but all blocks of one shard before those of the next: they arrive so.
    pub fn order_by_shard(&self, group: i32, col_blocks: i32, times: i32) -> Vec<Expr> {
        let t = Expr::from(Var::LINEAR) / times;
        let of_shard = self.walked.max(1) * col_blocks;
        let (block, column) = in_groups(t.clone() % of_shard, self.walked, group, col_blocks);
        let mut order = vec![block];
        if self.count > 1 {
            order.push(t / of_shard);
        }
        order.push(column);
        order
    }

    /// Order of tiles: groups of `group` row blocks, column by column, so that both operands stay in L2. Row blocks of
    /// all covered shards alternate, block by block: they arrive, or are sent, at the same time. Each tile comes
    /// `times` times on end.
    pub fn order(&self, group: i32, col_blocks: i32, times: i32) -> Vec<Expr> {
        let t = Expr::from(Var::LINEAR) / times;
        let (row, column) = in_groups(t, self.walked * self.count, group, col_blocks);
        let mut order = vec![row.clone() / self.count];
        if self.count > 1 {
            order.push(row % self.count);
        }
        order.push(column);
        order
    }
}

/// Row and column of tile `t` of `rows` rows of tiles, `across` in each: groups of `group` rows, column by column.
pub(in crate::passes) fn in_groups(t: Expr, rows: i32, group: i32, across: i32) -> (Expr, Expr) {
    // One group: divisors that the compiler knows, and no tile begins behind a division that it does not.
    if (1..=group).contains(&rows) {
        return (t.clone() % rows, t / rows);
    }
    let first = t.clone() / (group * across) * group;
    let height = match rows % group {
        0 => Expr::Const(group),
        _ => Expr::Const(group).min(Expr::Const(rows) - first.clone()),
    };
    let within = t % (group * across);
    (first + within.clone() % height.clone(), within / height)
}
