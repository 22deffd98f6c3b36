//! Tiles matrix products, one after the other.
//!
//! Assumes fused epilogues. Leaves: tiles of each product in an L2-friendly order, those with local operands first, then
//! those whose rows arrive from peers; a product that another one reads goes to scratch (or to the caller, who wants it,
//! too), with a flow per block of rows; a product that is reduced goes to its owners' slots; operands whose rows TMA cannot
//! take (pitch not a multiple of 16 bytes) are repacked first.

mod sizes;

use super::{
    columns::Columns,
    draft::{Covers, Draft, Flow, Reader, Writer, read, shard_extent, write},
    fold,
    gather::{self, Gathered, Slices, aligned},
    pack::{self, Packed},
    product::{Cut, Destination, Product},
    reduce::{self, Sum, Summands},
    roles::DEFAULT_COPY_SMS,
    rows::Rows,
    select::{Extra, Gemm, Kernel, Made, Reduce, Tensor},
};
use crate::ir::{
    ALayout, BLayout, BufId, CopyVia, Dim, EpilogueOp, Expr, Leaf, Operand, RoleKind, Space, Store,
    Var,
};
use crate::settings::{AllReduce, Config, Reduction};
use crate::target::Target;
use mk_syntax::Placement;

/// A left operand from the caller, ready to be read.
struct Source {
    rows: Rows,
    left: Left,
    packed: Option<Packed>,
    /// Extent along k, on the own rank.
    depth: Expr,
}

/// The left operand of a product.
enum Left {
    /// On the own rank: `[rows, k]`, or `[k, rows]`.
    Local(BufId, ALayout),
    /// On the own rank: `[k, shards, rows]`.
    ByOwner(BufId),
    /// Own rows in the caller's shard, peers' rows through the gather.
    Gathered(Gathered),
}

/// A product that others read: where it is, its families, and the tiles of a row of blocks.
struct Hidden {
    buffer: BufId,
    /// `[shards, rows, n]`; else `[rows, n]`, the caller's.
    in_shards: bool,
    by: Vec<Covers>,
    tiles: i32,
    /// Extent along n, on the own rank.
    depth: Expr,
}

/// The kernel's buffers and what has been made so far.
struct Tiler<'k> {
    kernel: &'k Kernel,
    config: &'k Config,
    draft: Draft,
    params: Vec<BufId>,
    results: Vec<BufId>,
    sources: Vec<Source>,
    /// Of each product that others read.
    hidden: Vec<Option<Hidden>>,
    /// Repacked right operands, by parameter.
    packed: Vec<Option<Packed>>,
}

/// Runs the pass.
pub(super) fn tile(kernel: &Kernel, config: &Config, target: &'static Target) -> Draft {
    let mut draft = Draft::new(&kernel.name, &kernel.axis, config, target);
    // Arguments come in the order of the program: parameters, then results.
    let params = kernel.params.iter().map(|t| draft.tensor(t, Space::In)).collect();
    let results = kernel.results.iter().map(|r| draft.tensor(&r.out, Space::Out)).collect();
    let packed = kernel.params.iter().map(|_| None).collect();
    let (sources, hidden) = (Vec::new(), Vec::new());
    let mut t = Tiler { kernel, config, draft, params, results, sources, hidden, packed };
    (0..kernel.sources.len()).for_each(|s| t.source(s));
    (0..kernel.gemms.len()).for_each(|g| t.gemm(g));
    (0..kernel.sources.len()).for_each(|s| t.collect(s));
    t.draft
}

/// The most elements of a dimension that any rank has.
pub(super) fn widest(t: &Tensor, dim: usize, world: i32) -> i32 {
    let e = &t.shape[dim];
    if t.placement == Placement::Shard(dim) { shard_extent(e, world) } else { e.capacity() }
}

/// Whether all ranks have equally many elements of a dimension.
pub(super) fn even(t: &Tensor, dim: usize, world: i32) -> bool {
    t.placement != Placement::Shard(dim) || t.shape[dim].value % world == 0
}

/// Whether rows of the last dimension are what TMA takes, on every rank.
pub(super) fn tma_rows(t: &Tensor, world: i32) -> bool {
    let last = t.shape.len() - 1;
    let cols = widest(t, last, world);
    aligned(cols, t.dtype.size_bytes()) == cols && even(t, last, world)
}

impl<'k> Tiler<'k> {
    /// Gathers or repacks a left operand.
    fn source(&mut self, s: usize) {
        let kernel = self.kernel;
        let source = kernel.sources[s];
        let x = &kernel.params[source.param];
        let draft = &mut self.draft;
        let world = draft.world();
        let height = self.config.block[0] as i32;
        let mine = (0..kernel.gemms.len()).filter(|g| kernel.root(*g) == s);
        let scattered = |how| how != Reduce::All || self.config.all_reduce == AllReduce::TwoShot;
        let reduced =
            mine.clone().any(|g| kernel.reduce_of(g).is_some_and(|(_, how)| scattered(how)));
        let gathered = source.gathered && world > 1;
        // Rows of the product, not of the operand: a transposed one has them along its last dimension.
        let of = match mine.clone().next() {
            Some(g) if !source.gathered => &kernel.gemms[g].out,
            _ => x,
        };
        let rows = Rows::new(draft, of, world > 1 && (gathered || reduced), height).peers_first();
        let buffer = self.params[source.param];
        let (left, packed, depth);
        if gathered {
            let first = mine.clone().next();
            let slices = self.slices(s, x, &rows, first);
            let draft = &mut self.draft;
            let pushed = gather::push(draft, x, buffer, &rows, slices, self.config);
            (left, packed, depth) = (Left::Gathered(pushed), None, draft.dim(&x.shape[1]));
        } else {
            let read = mine.count() > 0;
            let by_owner = match source.transposed {
                true => pack::columns_by_owner(draft, x, buffer, &rows),
                false => None,
            };
            let dim = usize::from(!source.transposed);
            if let Some(p) = by_owner {
                left = Left::ByOwner(p.buffer);
                packed = Some(p);
            } else {
                packed = if read { pack::matrix(draft, x, buffer) } else { None };
                let from = packed.as_ref().map_or(buffer, |p| p.buffer);
                left = Left::Local(from, if dim == 0 { ALayout::Km } else { ALayout::Mk });
            }
            depth = if source.gathered {
                draft.dim(&x.shape[1])
            } else {
                draft.local(x, dim, Var::RANK)
            };
        }
        self.sources.push(Source { rows, left, packed, depth });
    }

    /// In which slices of K a gathered operand travels, and how many blocks of a shard side by side: as many as the SMs that are
    /// not at the own rows multiply at a time, for the first product.
    fn slices(&self, s: usize, x: &Tensor, rows: &Rows, product: Option<usize>) -> Option<Slices> {
        let fixed = |t: &Tensor| t.shape.iter().all(|e| e.runtime_max.is_none());
        let wanted = self.kernel.result_of(Made::Source(s)).is_none()
            && self.kernel.params.iter().all(fixed);
        let (Some(g), true) = (product, wanted) else { return None };
        let out = &self.kernel.gemms[g].out;
        let width = i64::from(self.config.block[1]);
        let across = (i64::from(widest(out, 1, self.draft.world())) + width - 1) / width;
        let copying = self.config.intra_comm_sms.unwrap_or(DEFAULT_COPY_SMS);
        let (free, blocks) = (self.draft.sms() - i64::from(copying), i64::from(rows.blocks));
        let own = blocks * across;
        let free = if own < free { free - own } else { free };
        let together = free / (across * i64::from(rows.shards - 1)).max(1);
        // A rest of less than half a wave fits in where the own rows end.
        let together = if blocks * 2 < together * 3 { blocks } else { together };
        let together = i32::try_from(together.clamp(1, blocks.max(1))).unwrap_or(1);
        let step = self.config.block[2] as i32;
        Slices::new(x.shape[1].value, x.dtype.size_bytes(), self.config.k_slices, step, together)
    }

    /// All tiles of one product, and what becomes of them.
    fn gemm(&mut self, n: usize) {
        let kernel = self.kernel;
        let g = &kernel.gemms[n];
        let rows = self.sources[kernel.root(n)].rows.clone();
        let reduce = kernel.reduce_of(n);
        let result = kernel.result_of(Made::Gemm(n));
        let readers = kernel.readers(n);
        let world = self.draft.world();
        let own_b = self.right(g.b);
        let ring = self.config.reduction == Reduction::Ring;
        if let (Some((r, _)), true, true) = (reduce, ring, world > 1) {
            self.ring(n, r, &rows, own_b);
            self.hidden.push(None);
            return;
        }
        let cut = reduce
            .and_then(|(r, _)| self.cut(n, &kernel.results[r].out, &rows, self.config.split_k));
        let target = match (reduce, result) {
            (Some((r, how)), _) => {
                let (draft, out) = (&mut self.draft, &kernel.summand(r));
                match (how, self.config.all_reduce) {
                    _ if ring => Destination::Out(self.results[r]),
                    (Reduce::All, AllReduce::OneShot) if world > 1 => {
                        Destination::Parts(reduce::parts(draft, out, &rows))
                    }
                    (Reduce::All, AllReduce::ByColumns) if world > 1 => {
                        let width = self.config.block[1] as i32;
                        Destination::Columns(Columns::new(draft, out, &rows, width))
                    }
                    _ => Destination::Slots(reduce::slots(draft, out, &rows)),
                }
            }
            // The next product reads the caller's rows, if TMA can.
            (None, Some(r)) if !readers || tma_rows(&g.out, world) => {
                Destination::Out(self.results[r])
            }
            (None, _) => Destination::Hidden(self.scratch(g, &rows, n)),
        };
        let mut product = self.product(n, rows.clone(), target, own_b);
        product.cut = cut;
        let mut by = Vec::new();
        by.extend(match (self.config.last_wave, result) {
            (Some(tail), Some(r)) if !readers => self.with_tail(n, r, &mut product, tail),
            _ if product.rows.walked == 0 => Vec::new(),
            _ => self.tiles(&product),
        });
        self.unpack(n, &by);
        // Shard by shard, a group is of one.
        let together = match self.gathered(n) {
            Some(Gathered { slices: Some(s), .. }) => s.together,
            Some(Gathered { by_shard: true, .. }) => product.group,
            _ => (product.group / rows.count).max(1),
        };
        let Product { leaf, col_blocks, n: depth, cut, .. } = product;
        let mut tiles = Summands {
            rows: rows.clone(),
            block: [self.config.block[0] as i32, leaf.out_columns() as i32],
            together,
            by: by.clone(),
            operand: Operand::C,
        };
        let sum = |r| Sum::new(kernel, r, &self.params, &self.results);
        let draft = &mut self.draft;
        if let (Some(Cut { into, parts, .. }), Some((r, _))) = (cut, reduce) {
            let out = &kernel.results[r].out;
            tiles = fold::fold(draft, self.config.reduction, out, (parts, into), target, tiles);
        }
        match (target, reduce) {
            (Destination::Slots(slots), Some((r, how))) => {
                reduce::sum(draft, self.config, how, &sum(r), slots, tiles);
            }
            (Destination::Parts(parts), Some((r, _))) => {
                reduce::pull(draft, self.config, &sum(r), parts, tiles);
            }
            (Destination::Columns(columns), Some((r, _))) => {
                columns.sum(draft, self.config.reduction, &sum(r), tiles);
            }
            (Destination::Hidden(buffer), _) | (Destination::Out(buffer), _) if readers => {
                let in_shards = matches!(target, Destination::Hidden(_));
                let hidden = Hidden { buffer, in_shards, by, tiles: col_blocks, depth };
                if let (true, Some(r)) = (in_shards, result) {
                    self.copy_out(&hidden, &g.out, self.results[r], &rows);
                }
                self.hidden.push(Some(hidden));
                return;
            }
            _ => {}
        }
        self.hidden.push(None);
    }

    /// The families `by` of a product wait for operands that are repacked.
    fn unpack(&mut self, n: usize, by: &[Covers]) {
        let g = &self.kernel.gemms[n];
        let packed = match g.left {
            Made::Source(s) => self.sources[s].packed.clone(),
            Made::Gemm(_) => None,
        };
        for (p, operand) in [(packed, Operand::A), (self.packed[g.b].clone(), Operand::B)] {
            if let Some(p) = p {
                pack::flow(&mut self.draft, &p, operand, by);
            }
        }
    }

    /// A product whose tiles add to sums that go from rank to rank, or stay with their owner.
    fn ring(&mut self, n: usize, r: usize, rows: &Rows, b: BufId) {
        let out = &self.kernel.results[r].out;
        let ring = reduce::ring(&mut self.draft, out, rows, self.results[r]);
        let mut product = self.product(n, rows.clone(), Destination::Ring(ring), b);
        if let Leaf::MmaTile { epilogue, .. } = &mut product.leaf {
            epilogue.push(EpilogueOp::Carry);
        }
        // Halves of whole steps, the same in all launches.
        let mut extents = self.kernel.params.iter().flat_map(|t| &t.shape);
        let fixed = extents.all(|e| e.runtime_max.is_none());
        let steps = 2 * self.config.block[2] as i32;
        product.half = self.fixed_depth(n).filter(|k| fixed && k % steps == 0).map(|k| k / 2);
        let by = self.tiles(&product);
        self.unpack(n, &by);
        let (across, late) = (product.col_blocks, product.half.map(|_| 1));
        for adding in by {
            reduce::hand_on(&mut self.draft, ring, rows, &adding, across, late);
        }
    }

    /// Cuts a product's inner dimension for some of its rows, into so many parts at most, with memory for them.
    /// Each part has whole steps, on every rank.
    fn cut(&mut self, n: usize, out: &Tensor, rows: &Rows, parts: u32) -> Option<Cut> {
        if !self.kernel.can_cut(n, self.draft.world()) {
            return None;
        }
        let depth = self.fixed_depth(n)?;
        // A part of what comes in slices is some of them.
        let step = match self.gathered(n).and_then(|g| g.slices) {
            Some(slices) => slices.depth,
            None => self.config.block[2] as i32,
        };
        let steps = (depth + step - 1) / step;
        let wanted = parts.clamp(1, steps.max(1) as u32) as i32;
        let each = (steps + wanted - 1) / wanted;
        let parts = (steps + each - 1) / each.max(1);
        (parts > 1).then(|| Cut {
            parts,
            depth: each * step,
            into: fold::splits(&mut self.draft, out, rows, parts),
        })
    }

    /// Extent of a product's inner dimension, if it is the same on all ranks, and in all launches.
    fn fixed_depth(&self, n: usize) -> Option<i32> {
        match self.depth(n) {
            Expr::Const(depth) => Some(depth),
            // An extent under its name.
            Expr::Dim(d) => match &self.draft.plan.dims[d] {
                Dim { runtime_max: None, value, .. } => Some(*value),
                _ => None,
            },
            _ => None,
        }
    }

    fn extra(&self, x: Extra) -> BufId {
        match x {
            Extra::Param(p) => self.params[p],
            Extra::Result(r) => self.results[r],
        }
    }

    /// Extent of a product's inner dimension, on the own rank.
    fn depth(&self, n: usize) -> Expr {
        match self.kernel.gemms[n].left {
            Made::Source(s) => self.sources[s].depth.clone(),
            Made::Gemm(i) => self.hidden[i].as_ref().map_or(0.into(), |h| h.depth.clone()),
        }
    }

    /// A product's left operand, if it is gathered.
    fn gathered(&self, n: usize) -> Option<&Gathered> {
        match self.kernel.gemms[n].left {
            Made::Source(s) => match &self.sources[s].left {
                Left::Gathered(g) => Some(g),
                Left::Local(..) | Left::ByOwner(_) => None,
            },
            Made::Gemm(_) => None,
        }
    }

    /// A right operand, repacked once if it must be.
    fn right(&mut self, b: usize) -> BufId {
        if self.packed[b].is_none() {
            self.packed[b] = pack::matrix(&mut self.draft, &self.kernel.params[b], self.params[b]);
        }
        self.packed[b].as_ref().map_or(self.params[b], |p| p.buffer)
    }

    /// Scratch between two products.
    fn scratch(&mut self, g: &Gemm, rows: &Rows, n: usize) -> BufId {
        let world = self.draft.world();
        let cols = self.draft.local(&g.out, 1, Var::RANK);
        let padded = aligned(widest(&g.out, 1, world), g.out.dtype.size_bytes());
        let pitch = (!tma_rows(&g.out, world)).then_some(Expr::Const(padded));
        let shape = vec![rows.shards.into(), rows.capacity.into(), cols];
        self.draft.buffer(&format!("hidden{n}"), Space::Scratch, g.out.dtype, shape, pitch)
    }

    fn product(&mut self, n: usize, rows: Rows, target: Destination, b: BufId) -> Product<'k> {
        let g = &self.kernel.gemms[n];
        let world = self.draft.world();
        let a_layout = match g.left {
            Made::Source(s) => match self.sources[s].left {
                Left::Local(_, layout) => layout,
                Left::ByOwner(_) => ALayout::Km,
                Left::Gathered(_) => ALayout::Mk,
            },
            Made::Gemm(_) => ALayout::Mk,
        };
        // Scratch and slots are padded; the caller's rows are as they are.
        let direct = matches!(target, Destination::Out(_)) && !tma_rows(&g.out, world);
        let leaf = Leaf::MmaTile {
            block: self.config.block,
            stages: self.config.stages_on(self.draft.target),
            a_layout,
            b_layout: if g.b_transposed { BLayout::Nk } else { BLayout::Kn },
            store: if direct { Store::Direct } else { Store::Tma },
            consumers: self.config.consumers,
            epilogue: g.epilogue.clone(),
        };
        let columns = leaf.out_columns() as i32;
        let k = self.depth(n);
        // More than there are is all of them.
        let group = self.config.group_m.clamp(1, rows.blocks.max(8) as u32) as i32;
        Product {
            own: Some(rows.own()),
            g,
            name: if self.kernel.gemms.len() > 1 { format!("gemm{n}") } else { "gemm".into() },
            leaf,
            rows,
            group,
            k,
            n: self.draft.local(&g.out, 1, Var::RANK),
            col_blocks: (widest(&g.out, 1, world) + columns - 1) / columns,
            b,
            extras: g.extras.iter().map(|x| self.extra(*x)).collect(),
            target,
            cut: None,
            half: None,
            by_shard: self.gathered(n).is_some_and(|g| g.by_shard),
        }
    }

    /// All tiles: each family with the shard and block of rows that its tasks cover.
    fn tiles(&mut self, p: &Product<'_>) -> Vec<Covers> {
        let draft = &mut self.draft;
        match p.g.left {
            Made::Source(s) => match &self.sources[s].left {
                Left::Local(a, layout) => vec![p.family(draft, &p.name, &p.rows, None, |r| {
                    let (row, k) = ((p.rows.global(r), r.len.clone()), p.depth(r));
                    (*a, if *layout == ALayout::Mk { vec![row, k] } else { vec![k, row] })
                })],
                Left::ByOwner(a) => vec![p.family(draft, &p.name, &p.rows, None, |r| {
                    let k = p.depth(r);
                    (*a, vec![k, (r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone())])
                })],
                Left::Gathered(x) => {
                    let mut out = Vec::new();
                    if let Some(own) = p.own.as_ref().filter(|_| !x.own_rows) {
                        out.push(p.own_family(draft, own, x.shard));
                    }
                    let name =
                        if x.own_rows { p.name.clone() } else { format!("{}.peers", p.name) };
                    let count = if x.own_rows { p.rows.shards } else { p.rows.shards - 1 };
                    let theirs = Rows { first: 1, count, ..p.rows.clone() };
                    let r = theirs.block(draft);
                    let slice = x.slices.map(|s| p.slice(&r, s));
                    let covers = p.family(draft, &name, &theirs, x.slices, |r| match x.slices {
                        None => (x.all, p.in_shards(r)),
                        Some(s) => (x.all, p.in_slices(r, s)),
                    });
                    gather::flow(draft, x, Operand::A, covers.clone(), slice);
                    out.push(covers);
                    out
                }
            },
            Made::Gemm(i) => {
                let Some(h) = &self.hidden[i] else { return Vec::new() };
                let covers = p.family(draft, &p.name, &p.rows, None, |r| {
                    let rows = if h.in_shards {
                        p.in_shards(r)
                    } else {
                        vec![(p.rows.global(r), r.len.clone()), p.depth(r)]
                    };
                    (h.buffer, rows)
                });
                hand_over(draft, h, &p.rows, Operand::A, covers.clone());
                vec![covers]
            }
        }
    }

    /// A product in scratch that the caller wants, too.
    fn copy_out(&mut self, h: &Hidden, out: &Tensor, result: BufId, rows: &Rows) {
        let r = rows.block(&mut self.draft);
        let cols = (Expr::Const(0), self.draft.local(out, 1, Var::RANK));
        let from = vec![(r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone()), cols.clone()];
        let src = read(Operand::Src, h.buffer, from);
        let dst = write(Operand::Dst, result, vec![(rows.global(&r), r.len.clone()), cols]);
        let mut domain = rows.domain(1);
        domain.pop();
        let leaf = Leaf::CopyTile { via: CopyVia::Ldst, stages: 1 };
        let name = format!("save.{}", out.name);
        let copy =
            self.draft.family(&name, RoleKind::Compute, leaf, domain, vec![], vec![src, dst]);
        let covers = Covers { family: copy, shard: r.shard, block: r.block };
        hand_over(&mut self.draft, h, rows, Operand::Src, covers);
    }

    /// A gathered operand that is a result.
    fn collect(&mut self, s: usize) {
        let Some(r) = self.kernel.result_of(Made::Source(s)) else { return };
        let Source { rows, left, .. } = &self.sources[s];
        let gathered = match left {
            Left::Gathered(g) => Some(g),
            Left::Local(..) | Left::ByOwner(_) => None,
        };
        let param = self.kernel.sources[s].param;
        let (x, shard) = (&self.kernel.params[param], self.params[param]);
        // Through registers: the bulk ring would not fit beside that of the products.
        let leaf = Leaf::CopyTile { via: CopyVia::Ldst, stages: 1 };
        let out = self.results[r];
        gather::collect(&mut self.draft, x, shard, gathered, out, rows, &leaf);
    }
}

/// Hands blocks of a product's rows to a family that reads them.
fn hand_over(draft: &mut Draft, h: &Hidden, rows: &Rows, operand: Operand, to: Covers) {
    let writer = |c: &Covers| Writer {
        family: c.family,
        operand: Operand::C,
        word: vec![c.shard.clone(), c.block.clone()],
        rank: Var::RANK.into(),
        each: None,
        when: None,
    };
    draft.hand_over(Flow {
        name: "hidden",
        shape: vec![rows.shards.into(), rows.blocks.into()],
        from: h.by.iter().map(writer).collect(),
        count: h.tiles.into(),
        to: vec![Reader {
            family: to.family,
            operand,
            word: vec![to.shard, to.block],
            each: None,
            when: None,
        }],
    });
}
