//! Sums partial results: every rank writes its part of a block of rows into the owner's slot, and the owner adds the slots
//! in the order of ranks; or, for an all-reduce in one shot, every rank reads the parts of all and adds them itself.
//!
//! Assumes rows cut by owner. Leaves: `slots`, a symmetric buffer `[world, rows, n]` of one slot per source rank, a flow
//! per tile, the ordered sum; for an all-reduce also `sums`, a symmetric buffer `[world, rows, n]` into which owners
//! push finished rows, and the copy from there to the caller's tensor.
//!
//! Deterministic: the sum is in f32, in rank order, rounded once. Parts are rounded to the slot's dtype on the way.

use super::{
    draft::{Covers, Draft, Flow, Reader, Writer, read, write},
    gather::{aligned, block_rows, every_peer},
    gemm::widest,
    product::Ring,
    rows::{RowBlock, Rows},
    select::{Kernel, Outcome, Reduce, Tensor},
};
use crate::ir::{
    Access, BinOp, BufId, CopyVia, EPILOGUE_OPERANDS, Each, EpilogueOp, Expr, FamId, Leaf, Operand,
    RoleKind, Space, Var,
};
use crate::settings::{Config, Reduction};
use crate::target::Target;

/// Rows of the flattest tile of a sum: fewer would not cover the latency of their loads.
const LEAST_ROWS: i32 = 8;

/// Rows of the flattest tile of a sum that shares a CTA with others: a task of fewer would mostly wait.
const SHARED_ROWS: i32 = 32;

/// The slots of a result's rows, one for each rank.
pub(super) fn slots(draft: &mut Draft, out: &Tensor, rows: &Rows) -> BufId {
    let world = draft.world();
    let n = draft.dim(&out.shape[1]);
    let shape = vec![world.into(), rows.capacity.into(), n];
    draft.buffer("slots", Space::Workspace, out.dtype, shape, pitch(out))
}

pub(super) fn pitch(out: &Tensor) -> Option<Expr> {
    let n = out.shape[1].value;
    let padded = aligned(n, out.dtype.size_bytes());
    (padded != n).then_some(Expr::Const(padded))
}

/// A result that is summed: what it is before and after, and what is done in between.
pub(super) struct Sum<'a> {
    /// Of one rank.
    pub summand: Tensor,
    pub out: &'a Tensor,
    pub result: BufId,
    /// Before sums are rounded.
    pub epilogue: &'a [EpilogueOp],
    /// Operands of that, which lie as the result does.
    pub extras: Vec<BufId>,
}

impl<'a> Sum<'a> {
    /// Result `r` of a kernel whose parameters and results are these.
    pub fn new(kernel: &'a Kernel, r: usize, params: &[BufId], results: &[BufId]) -> Sum<'a> {
        let Outcome { epilogue, extras, out, .. } = &kernel.results[r];
        let extras = extras.iter().map(|p| params[*p]).collect();
        Sum { summand: kernel.summand(r), out, result: results[r], epilogue, extras }
    }

    pub fn leaf(&self) -> Leaf {
        Leaf::ReduceTile { epilogue: self.epilogue.to_vec() }
    }

    /// What a task reads and writes that makes these rows and columns of the result.
    pub fn makes(&self, region: Vec<(Expr, Expr)>) -> Vec<Access> {
        let touching = self.epilogue.iter().filter(|op| op.operand().is_some());
        let mut all = Vec::new();
        for ((op, buffer), operand) in touching.zip(&self.extras).zip(EPILOGUE_OPERANDS) {
            let of = if *op == EpilogueOp::Bias { &region[1..] } else { &region[..] };
            all.push(read(operand, *buffer, of.to_vec()));
        }
        all.push(write(Operand::Dst, self.result, region));
        all
    }
}

/// Tiles of summands, and who writes them.
pub(super) struct Summands {
    pub rows: Rows,
    /// Rows and columns of a tile.
    pub block: [i32; 2],
    /// Blocks of a shard that are written side by side, column by column.
    pub together: i32,
    pub by: Vec<Covers>,
    /// What they are written through.
    pub operand: Operand,
}

/// Who adds up, and in which tiles.
#[derive(Clone, Copy)]
pub(super) struct Adders {
    pub kind: RoleKind,
    /// Rows and columns of a tile.
    pub tile: [i32; 2],
    /// Tiles in a row of tiles.
    pub across: i32,
    /// Tiles in a block of rows of those who write the summands.
    pub per_block: i32,
    /// Rows of tiles of a shard that are added up side by side, column by column, as their summands come.
    pub together: i32,
}

impl Adders {
    /// The order of tasks over these rows, of `across` in a row.
    fn order(&self, rows: &Rows, across: i32) -> Vec<Expr> {
        if self.together == 1 {
            return Vec::new();
        }
        rows.order(self.together * rows.count, across, 1)
    }
}

/// How many sums a CTA that has multiplied should have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// One: what follows, or comes over a link, is best in large pieces.
    One,
    /// Four, two for each of its teams, which are then done at about the same time: in tiles of [`SHARED_ROWS`] or more.
    Four,
}

/// Sums over tiles of `block`, `across` in a row: beside the products as they are; after them in flatter ones, until every CTA has
/// its share.
pub(super) fn adders(
    draft: &Draft,
    reduction: Reduction,
    share: Share,
    across: i32,
    rows: &Rows,
    block: [i32; 2],
    together: i32,
) -> Adders {
    let mut tile = block;
    let kind = match reduction {
        Reduction::DedicatedSms => RoleKind::IntraComm,
        // A ring needs no separate reduction.
        Reduction::AfterLastWave | Reduction::Ring => {
            let sms = draft.sms();
            // Three quarters of its share will do.
            let wanted = |height| match share {
                Share::Four if height > SHARED_ROWS => 4 * sms * 3 / 4,
                Share::Four | Share::One => sms * 3 / 4,
            };
            let tiles = |height| {
                let blocks = i64::from(rows.in_blocks(height).walked);
                blocks * i64::from(rows.count) * i64::from(across)
            };
            while tile[0] > LEAST_ROWS && tile[0] % 2 == 0 && tiles(tile[0]) < wanted(tile[0]) {
                tile[0] /= 2;
            }
            RoleKind::Compute
        }
    };
    let per_block = block[0] / tile[0];
    let together = match reduction {
        Reduction::DedicatedSms | Reduction::AfterLastWave => together * per_block,
        Reduction::Ring => 1,
    };
    Adders { kind, tile, across, per_block, together }
}

/// Tiles of so many columns in a row of tiles.
pub(super) fn tiles_across(draft: &Draft, out: &Tensor, width: i32) -> i32 {
    (widest(out, 1, draft.world()) + width - 1) / width
}

/// The tile of a task that adds up.
pub(super) struct Place {
    pub r: RowBlock,
    /// Column block.
    pub j: Expr,
    pub columns: (Expr, Expr),
}

pub(super) fn place(draft: &mut Draft, out: &Tensor, rows: &Rows, width: i32) -> Place {
    let n = draft.local(out, 1, Var::RANK);
    let (r, j) = (rows.block(draft), rows.column());
    let columns = (j.clone() * width, block_rows(n, j.clone(), width));
    Place { r, j, columns }
}

/// Adds up `slots`. Tasks of `from` write them; their last loop variable is the column block.
pub(super) fn sum(
    draft: &mut Draft,
    config: &Config,
    how: Reduce,
    of: &Sum<'_>,
    slots: BufId,
    from: Summands,
) {
    let out = of.out;
    let Summands { rows, block, together, by, operand } = from;
    let world = draft.world();
    let n = draft.dim(&out.shape[1]);
    let across = tiles_across(draft, out, block[1]);
    let share = if how == Reduce::All { Share::One } else { Share::Four };
    let adders = adders(draft, config.reduction, share, across, &rows.own(), block, together);
    let Adders { kind, tile, per_block, .. } = adders;
    let own = rows.in_blocks(tile[0]).own();
    let Place { r, j, columns } = place(draft, out, &own, tile[1]);
    let here = (r.at.clone(), r.len.clone());
    let each = Each { var: "s".into(), extent: world.into() };
    let src = Access {
        each: Some(each.clone()),
        ..read(
            Operand::Src,
            slots,
            vec![(Var::EACH.into(), 1.into()), here.clone(), columns.clone()],
        )
    };
    let first = if how == Reduce::All {
        Expr::from(Var::RANK) * rows.per_shard.clone()
    } else {
        Expr::Const(0)
    };
    let region = vec![(first + r.at.clone(), r.len.clone()), columns.clone()];
    let mut accesses = vec![src];
    accesses.extend(of.makes(region));
    let all = how == Reduce::All && world > 1;
    let sums = all.then(|| {
        let shape = vec![world.into(), rows.capacity.into(), n.clone()];
        draft.buffer("sums", Space::Workspace, out.dtype, shape, pitch(out))
    });
    if let Some(sums) = sums {
        let theirs = vec![(Var::RANK.into(), 1.into()), here, columns];
        accesses.push(to_peers(write(Operand::Dst, sums, theirs), world));
    }
    let (domain, order) = (own.domain(across), adders.order(&own, across));
    let family = draft.family("reduce", kind, of.leaf(), domain, order, accesses);
    let post = |c: Covers| {
        let column = draft.plan.families[c.family].domain.len() - 1;
        Writer {
            family: c.family,
            operand,
            word: vec![Var::RANK.into(), c.block, Var::domain(column).into()],
            rank: if world > 1 { c.shard } else { Var::RANK.into() },
            each: None,
            when: None,
        }
    };
    let block = r.block / per_block;
    draft.flows.push(Flow {
        name: "partial",
        shape: vec![world.into(), rows.blocks.into(), across.into()],
        from: by.into_iter().map(post).collect(),
        count: 1.into(),
        to: vec![Reader {
            family,
            operand: Operand::Src,
            word: vec![Var::EACH.into(), block, j],
            each: Some(each),
            when: None,
        }],
    });
    if let Some(sums) = sums {
        collect(draft, sums, of.result, family, out, &rows, adders);
    }
}

/// A write of the own memory, as one of every peer's.
pub(super) fn to_peers(access: Access, world: i32) -> Access {
    let (rank, each) = every_peer(world);
    Access { rank, each: Some(each), ..access }
}

/// The own summands of a result, where every rank can read them.
pub(super) fn parts(draft: &mut Draft, out: &Tensor, rows: &Rows) -> BufId {
    let n = draft.dim(&out.shape[1]);
    let shape = vec![rows.shards.into(), rows.capacity.into(), n];
    draft.buffer("parts", Space::Workspace, out.dtype, shape, pitch(out))
}

/// Adds the sums that every rank makes for itself, from the `parts` of all ranks. Tasks of `from` write those; their last
/// loop variable is the column block.
pub(super) fn pull(draft: &mut Draft, config: &Config, of: &Sum<'_>, parts: BufId, from: Summands) {
    let Summands { rows, block, by, operand, .. } = from;
    let world = draft.world();
    let across = tiles_across(draft, of.out, block[1]);
    let Adders { kind, tile, per_block, .. } =
        adders(draft, config.reduction, Share::One, across, &rows, block, 1);
    let (blocks, rows) = (rows.blocks, rows.in_blocks(tile[0]));
    let Place { r, j, columns } = place(draft, of.out, &rows, tile[1]);
    let each = Each { var: "q".into(), extent: world.into() };
    let here = vec![(r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone()), columns.clone()];
    let src = Access {
        rank: Var::EACH.into(),
        each: Some(each.clone()),
        ..read(Operand::Src, parts, here)
    };
    let mut accesses = vec![src];
    accesses.extend(of.makes(vec![(rows.global(&r), r.len.clone()), columns]));
    let domain = rows.domain(across);
    let family = draft.family("pull", kind, of.leaf(), domain, vec![], accesses);
    let post = |c: Covers| {
        let last = draft.plan.families[c.family].domain.len() - 1;
        Writer {
            family: c.family,
            operand,
            word: vec![Var::RANK.into(), c.shard, c.block, Var::domain(last).into()],
            rank: Var::EACH.into(),
            each: Some(Each { var: "p".into(), extent: world.into() }),
            when: None,
        }
    };
    let from = by.into_iter().map(post).collect();
    draft.hand_over(Flow {
        name: "part",
        shape: vec![world.into(), rows.shards.into(), blocks.into(), across.into()],
        from,
        count: 1.into(),
        to: vec![Reader {
            family,
            operand: Operand::Src,
            word: vec![Var::EACH.into(), r.shard, r.block / per_block, j],
            each: Some(each),
            when: None,
        }],
    });
}

/// Bytes of a row that are copied at once, at most: shorter pieces would not keep the lane that copies them ahead, longer ones would
/// leave more to be copied behind the last sum.
const COPIED_ROW_BYTES: i32 = 8 * 1024;

/// Rows that are copied at once beside the products, at most: several CTAs share those of a sum.
pub(super) const COPIED_ROWS: i32 = 32;

/// Every rank copies what its peers have pushed to where the caller wants it, in the order in which it is summed: beside the products
/// some tiles' columns at once in bulk, after them tile by tile.
fn collect(
    draft: &mut Draft,
    sums: BufId,
    result: BufId,
    reduce: FamId,
    out: &Tensor,
    rows: &Rows,
    adders: Adders,
) {
    let world = draft.world();
    let n = draft.dim(&out.shape[1]);
    let Adders { kind, tile, across, together, .. } = adders;
    let by_tile = kind == RoleKind::Compute;
    // Rows without gaps, or through registers.
    let bulk = !by_tile && pitch(out).is_none();
    // Tiles of a row of tiles that are copied at once.
    let tile_bytes = tile[1] * out.dtype.size_bytes() as i32;
    let tiles = match (by_tile, bulk) {
        (true, _) => 1,
        (false, true) => (COPIED_ROW_BYTES / tile_bytes).clamp(1, across),
        (false, false) => across,
    };
    let copies = (across + tiles - 1) / tiles;
    let height = if by_tile { tile[0] } else { tile[0].min(COPIED_ROWS) };
    let per_sum = tile[0] / height;
    let blocks = rows.in_blocks(tile[0]).blocks;
    let theirs = rows.in_blocks(height).peers();
    let r = theirs.block(draft);
    let c = theirs.column();
    let width = tiles * tile[1];
    let cols = match copies {
        1 => (Expr::Const(0), n),
        _ => (c.clone() * width, block_rows(n, c.clone(), width)),
    };
    let here = vec![(r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone()), cols.clone()];
    let src = read(Operand::Src, sums, here);
    let to = (theirs.global(&r), r.len.clone());
    let dst = write(Operand::Dst, result, vec![to, cols]);
    let order = Adders { together: together * per_sum, ..adders }.order(&theirs, copies);
    let via = if bulk { CopyVia::Bulk } else { CopyVia::Ldst };
    let leaf = Leaf::CopyTile { via, stages: draft.copy_stages };
    let copy = draft.family("collect", kind, leaf, theirs.domain(copies), order, vec![src, dst]);
    let (rank, peers) = every_peer(world);
    // A word for each thing that is copied, or some blocks of rows of it.
    draft.flows.push(Flow {
        name: "summed",
        shape: vec![world.into(), blocks.into(), copies.into()],
        from: vec![Writer {
            family: reduce,
            operand: Operand::Dst,
            word: vec![Var::RANK.into(), Var::domain(0).into(), Expr::from(Var::domain(1)) / tiles],
            rank,
            each: Some(peers),
            when: None,
        }],
        count: Expr::Const(tiles).min(Expr::Const(across) - c.clone() * tiles),
        to: vec![Reader {
            family: copy,
            operand: Operand::Src,
            word: vec![r.shard, r.block / per_sum, c],
            each: None,
            when: None,
        }],
    });
}

/// Where sums are on their way from rank to rank.
pub(super) fn ring(draft: &mut Draft, out: &Tensor, rows: &Rows, result: BufId) -> Ring {
    let hops = draft.world() - 1;
    let shape = vec![hops.into(), rows.capacity.into(), draft.dim(&out.shape[1])];
    let passed = draft.buffer("passed", Space::Workspace, out.dtype, shape, pitch(out));
    Ring { passed, last: result }
}

/// Hands sums on to the rank before. A tile waits for the sum so far at its start, or before iteration `late` of its inner loop. The last
/// loop variable of the family `adding` is the column block, of which there are `across`.
pub(super) fn hand_on(
    draft: &mut Draft,
    ring: Ring,
    rows: &Rows,
    adding: &Covers,
    across: i32,
    late: Option<i32>,
) {
    let world = draft.world();
    let (hop, j) = (rows.hop(), rows.column());
    let word = |hop: Expr| vec![hop, adding.block.clone(), j.clone()];
    let passed = Expr::Const(0).lt(hop.clone());
    let when = match late {
        Some(q) => Expr::bin(BinOp::And, passed, Expr::from(Var::INNER).equals(q)),
        None => passed,
    };
    draft.flows.push(Flow {
        name: "passed",
        shape: vec![(world - 1).into(), rows.blocks.into(), across.into()],
        from: vec![Writer {
            family: adding.family,
            operand: Operand::C,
            word: word(hop.clone()),
            rank: ring.next(world),
            each: None,
            when: Some(hop.clone().lt(world - 1)),
        }],
        count: 1.into(),
        to: vec![Reader {
            family: adding.family,
            operand: Operand::AccIn,
            word: word((hop - 1).max(0)),
            each: None,
            when: Some(when),
        }],
    });
}

/// A reduction that is the whole pipeline: each rank copies its summands to their owners.
pub(super) fn alone(
    kernel: &Kernel,
    how: Reduce,
    config: &Config,
    target: &'static Target,
) -> Draft {
    const BLOCK: [i32; 2] = [128, 256];
    let mut draft = Draft::new(&kernel.name, &kernel.axis, config, target);
    let world = draft.world();
    let params: Vec<_> = kernel.params.iter().map(|t| draft.tensor(t, Space::In)).collect();
    let result = draft.tensor(&kernel.results[0].out, Space::Out);
    let of = Sum::new(kernel, 0, &params, &[result]);
    let source = kernel.sources[0].param;
    let (x, from) = (&kernel.params[source], params[source]);
    let rows = Rows::new(&mut draft, x, true, BLOCK[0]).peers_first();
    let col_blocks = (x.shape[1].value + BLOCK[1] - 1) / BLOCK[1];
    let to = slots(&mut draft, &of.summand, &rows);
    let n = draft.dim(&x.shape[1]);
    let r = rows.block(&mut draft);
    let j = rows.column();
    let columns = (j.clone() * BLOCK[1], block_rows(n, j, BLOCK[1]));
    let src = read(Operand::Src, from, vec![(rows.global(&r), r.len.clone()), columns.clone()]);
    let dst = Access {
        rank: if world > 1 { r.shard.clone() } else { Var::RANK.into() },
        ..write(
            Operand::Dst,
            to,
            vec![(Var::RANK.into(), 1.into()), (r.at.clone(), r.len.clone()), columns],
        )
    };
    let leaf = Leaf::CopyTile { via: CopyVia::Ldst, stages: 1 };
    let domain = rows.domain(col_blocks);
    let push = draft.family("scatter", RoleKind::Compute, leaf, domain, vec![], vec![src, dst]);
    let by = vec![Covers { family: push, shard: r.shard, block: r.block }];
    let from = Summands { rows, block: BLOCK, together: 1, by, operand: Operand::Dst };
    let beside = Config { reduction: Reduction::DedicatedSms, ..config.clone() };
    sum(&mut draft, &beside, how, &of, to, from);
    draft
}
