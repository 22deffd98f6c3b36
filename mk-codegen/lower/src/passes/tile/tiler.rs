//! A kernel on its way to families: its buffers, the values that are made so far, and the tiles of a product.

use super::{
    blocks::{Begins, Blocks, MadeBlocks},
    dispatch::{Derived, Dispatch},
    product::{Cut, LeftRows, Product},
};
use crate::passes::{
    draft::{Draft, FlowId, Source, TileRows, read},
    error::{LowerError, internal},
    shape::{
        ids::OpId,
        kernel::{self, Kernel, Op},
        rows::Rows,
        tensor::Tensor,
    },
    strategies::{gathered::Gathered, pack::Packed, split_k},
    world::World,
};
use crate::settings::Config;
use mk_plan::{ALayout, BufId, Expr, Operand, Space, mma_step};

/// An operand A from the caller, ready to be read.
pub(super) struct Given {
    pub rows: Rows,
    pub left: Left,
    pub packed: Option<Packed>,
    /// Extent along k, on this rank.
    pub depth: Expr,
}

/// Operand A of a product.
pub(super) enum Left {
    /// On this rank: `[rows, k]`, or `[k, rows]`.
    Local(BufId, ALayout),
    /// On this rank: `[k, shards, rows]`.
    ByOwner(BufId),
    /// Own rows in the caller's shard, peers' rows through the gather.
    Gathered(Gathered),
}

/// A GEMM that others read: where it is, and the words of its blocks of rows, by shard.
pub(super) struct Hidden {
    pub buffer: BufId,
    /// `[shards, rows, n]`; else `[rows, n]`, the caller's.
    pub in_shards: bool,
    pub done: FlowId,
    /// Extent along n, on this rank.
    pub depth: Expr,
}

/// Rows of experts: the table of their blocks, and what a routing says of them.
pub(super) struct RaggedRows<'k> {
    pub blocks: Blocks,
    /// Where the rows of each expert begin, once that is asked for.
    pub begins: Option<Begins>,
    /// Rows that were dispatched, and the words of their blocks.
    pub dispatched: Option<(BufId, FlowId)>,
    /// Factors of these.
    pub factors: Option<BufId>,
    /// Where the rows of a rank's tokens are, for those that go back.
    pub route: Option<(Dispatch<'k>, Option<Derived>)>,
}

/// The value of an operation, for those that read it.
pub(super) enum Value<'k> {
    Operand(Box<Given>),
    /// A GEMM that another one reads.
    Hidden(Hidden),
    /// Rows of experts.
    Ragged(Box<RaggedRows<'k>>),
    /// What a grouped GEMM makes of them.
    Blocks(MadeBlocks),
    /// A value that only the caller gets.
    Result,
}

/// The kernel's buffers, and the values of its first operations.
pub(super) struct Tiler<'k> {
    pub kernel: &'k Kernel,
    pub config: &'k Config,
    pub draft: Draft,
    pub params: Vec<BufId>,
    pub results: Vec<BufId>,
    /// By operation.
    pub made: Vec<Value<'k>>,
    /// Repacked operands B, by parameter.
    pub packed: Vec<Option<Packed>>,
}

impl<'k> Tiler<'k> {
    pub fn new(kernel: &'k Kernel, config: &'k Config, world: &World) -> Tiler<'k> {
        let mut draft = Draft::new(&kernel.name, world, config);
        // Arguments come in the order of the program: parameters, then results.
        let (given, made) = kernel.params.split_at(kernel.given);
        let mut params: Vec<_> = given.iter().map(|t| draft.tensor(t, Space::In)).collect();
        let results: Vec<_> =
            kernel.results.iter().map(|r| draft.tensor(&r.out, Space::Out)).collect();
        for ((_, result), t) in kernel.maps().flat_map(|map| map.made()).zip(made) {
            params.push(match result {
                Some(r) => results[r],
                // Tables of the launch say which rows are read here: there is room for the most.
                None if kernel.grouped().next().is_some() => {
                    let extent = |d: usize| match t.shape[d].runtime_max {
                        Some(_) => t.widest(d).into(),
                        None => draft.own(t, d),
                    };
                    let shape = (0..t.shape.len()).map(extent).collect();
                    draft.buffer(&t.name, Space::Scratch, t.dtype, shape, None)
                }
                None => draft.tensor(t, Space::Scratch),
            });
        }
        // What an attention makes for an exchange behind it.
        let rest = kernel.params.iter().skip(params.len());
        let rest: Vec<_> = rest.map(|t| draft.tensor(t, Space::Scratch)).collect();
        params.extend(rest);
        let packed = kernel.params.iter().map(|_| None).collect();
        Tiler { kernel, config, draft, params, results, made: Vec::new(), packed }
    }

    /// The operand at the head of a chain of GEMMs.
    ///
    /// # Errors
    /// [`LowerError::Internal`] if there is none.
    pub fn given(&self, op: OpId) -> Result<&Given, LowerError> {
        match self.made.get(self.kernel.root(op)) {
            Some(Value::Operand(given)) => Ok(given),
            _ => Err(internal(format!("operation {op} does not begin with an operand"))),
        }
    }

    /// Operand A of a GEMM, if it is gathered.
    pub fn gathered(&self, product: &kernel::Product) -> Option<&Gathered> {
        match self.made.get(product.left) {
            Some(Value::Operand(given)) => match &given.left {
                Left::Gathered(g) => Some(g),
                Left::Local(..) | Left::ByOwner(_) => None,
            },
            _ => None,
        }
    }

    /// Extent of a GEMM's K, on this rank.
    ///
    /// # Errors
    /// [`LowerError::Internal`] if its operand A is not made.
    pub fn depth(&self, product: &kernel::Product) -> Result<Expr, LowerError> {
        match self.made.get(product.left) {
            Some(Value::Operand(given)) => Ok(given.depth.clone()),
            Some(Value::Hidden(hidden)) => Ok(hidden.depth.clone()),
            _ => Err(not_made(product)),
        }
    }

    /// Cuts a GEMM's K for some of its rows, into so many parts at most, with memory for them.
    /// Each part has whole steps, on every rank.
    ///
    /// # Errors
    /// As [`Tiler::depth`].
    pub fn cut(
        &mut self,
        op: OpId,
        out: &Tensor,
        rows: &Rows,
        parts: u32,
    ) -> Result<Option<Cut>, LowerError> {
        let Op::Product(product) = &self.kernel.ops[op] else {
            return Err(internal(format!("operation {op} is cut, and no product")));
        };
        if !self.kernel.is_divisible(product) {
            return Ok(None);
        }
        let Some(depth) = self.draft.extents.fixed(&self.depth(product)?) else { return Ok(None) };
        // A part of slices is some of them.
        let step = match self.gathered(product).and_then(|g| g.slices) {
            Some(slices) => slices.depth,
            None => mma_step(self.kernel.params[product.b].dtype) as i32,
        };
        let steps = (depth + step - 1) / step;
        let wanted = parts.clamp(1, steps.max(1) as u32) as i32;
        let each = (steps + wanted - 1) / wanted;
        let parts = (steps + each - 1) / each.max(1);
        Ok((parts > 1).then(|| Cut {
            parts,
            depth: each * step,
            into: split_k::splits(&mut self.draft, out, rows, parts),
        }))
    }

    /// All tiles: each family with the shard and block of rows that its tasks cover.
    ///
    /// # Errors
    /// [`LowerError::Internal`] if operand A is not made.
    pub fn tiles(&mut self, p: &Product<'_>) -> Result<Vec<TileRows>, LowerError> {
        let draft = &mut self.draft;
        match self.made.get(p.g.left) {
            Some(Value::Operand(given)) => Ok(of_operand(draft, p, &given.left)),
            Some(Value::Hidden(h)) => Ok(vec![p.family(draft, &p.name, &p.rows, None, |r| {
                let rows = match h.in_shards {
                    true => p.in_shards(r),
                    false => vec![(p.rows.global(r), r.len.clone()), p.depth(r)],
                };
                let word = vec![r.shard.clone(), r.block.clone()];
                Source::behind(read(Operand::A, h.buffer, rows), h.done, word).into()
            })]),
            _ => Err(not_made(p.g)),
        }
    }
}

fn not_made(product: &kernel::Product) -> LowerError {
    internal(format!("operand A of {:?} is not made before it", product.out.name))
}

fn of_operand(draft: &mut Draft, p: &Product<'_>, left: &Left) -> Vec<TileRows> {
    match left {
        Left::Local(a, layout) => vec![p.family(draft, &p.name, &p.rows, None, |r| {
            let (row, k) = ((p.rows.global(r), r.len.clone()), p.depth(r));
            let region = if *layout == ALayout::Mk { vec![row, k] } else { vec![k, row] };
            read(Operand::A, *a, region).into()
        })],
        Left::ByOwner(a) => vec![p.family(draft, &p.name, &p.rows, None, |r| {
            let k = p.depth(r);
            let region = vec![k, (r.shard.clone(), 1.into()), (r.at.clone(), r.len.clone())];
            read(Operand::A, *a, region).into()
        })],
        Left::Gathered(x) if x.whole.is_some() => {
            let rows = x.whole.unwrap_or(1);
            vec![p.family(draft, &p.name, &p.rows, None, |r| {
                let here = (r.at.clone(), r.len.clone());
                let access = read(Operand::A, x.all, vec![here.clone(), p.depth(r)]);
                let factors = x.factors.as_ref().map(|f| f.of_several(here.clone()));
                LeftRows { rows: x.span(access, here, p.rows.height, rows), factors }
            })]
        }
        Left::Gathered(x) => {
            let mut out = Vec::new();
            if let Some(own) = p.own.as_ref().filter(|_| !x.own_rows) {
                out.push(p.own_family(draft, own, x));
            }
            let name = if x.own_rows { p.name.clone() } else { format!("{}.peers", p.name) };
            let count = if x.own_rows { p.rows.shards } else { p.rows.shards - 1 };
            let theirs = Rows { first: 1, count, ..p.rows.clone() };
            out.push(p.family(draft, &name, &theirs, x.slices, |r| {
                let region = match x.slices {
                    None => p.in_shards(r),
                    Some(s) => p.in_slices(r, s),
                };
                let slice = x.slices.map(|s| p.slice(r, s));
                let rows = read(Operand::A, x.all, region);
                let rows = match &p.rows.pieces {
                    Some(pieces) => x.rows(rows, (pieces, p.rows.height), r, slice),
                    None => x.source(rows, r.shard.clone(), r.block.clone(), slice),
                };
                let here = (r.at.clone(), r.len.clone());
                let factors = x.factors.as_ref().map(|f| f.of_shard(r.shard.clone(), here));
                LeftRows { rows, factors }
            }));
            out
        }
    }
}
