//! Grouped GEMMs: tiles of blocks of rows, each multiplied by the matrix of its expert.
//!
//! A table says whose rows a block has, and how many; one task makes it from the rows of each expert, in the launch.
//! Blocks without rows come last, and have nothing to do. Every write is where the block is: tables only decide which
//! matrix is read, and how many rows there are.

use super::{
    blocks::{self, BLOCK, Blocks, MadeBlocks},
    dispatch::Dispatch,
    tiler::{RaggedRows, Tiler, Value},
};
use crate::passes::{
    draft::{Draft, Flow, FlowId, Source, Writer, one, read, write},
    error::{LowerError, internal, unsupported},
    shape::{
        grouped::{Combine, Combined, Grads, Grouped, Ragged, Rows},
        ids::Extra,
        kernel::{Kernel, Op},
        ranks::block_rows,
        rows::in_groups,
        tensor::Tensor,
    },
    strategies::deliver::mapped,
};
use crate::settings::{Config, Returns};
use mk_abi::DType;
use mk_plan::{
    ALayout, Access, BLayout, BufId, EpilogueOp, Expr, FamId, Leaf, MMA_STEP_BYTES, MmaTile,
    Operand, Point, QuantTile, RoleKind, Schedule, Space, Store, TabId, Table, TableSource, Var,
    gate_bias, gated, gates_operand, mma_narrow, mma_step, named_operands, quantized,
};

/// The rows, and what follows from a routing.
///
/// # Errors
/// For what goes to several nodes, and what of it does not.
pub(super) fn rows<'k>(t: &mut Tiler<'k>, ragged: &'k Ragged) -> Result<Value<'k>, LowerError> {
    let kernel = t.kernel;
    if kernel.params[ragged.counts].own_rows() && t.draft.nodes.count() > 1 {
        let why = "each rank's number of tokens is its own, over several nodes";
        let (op, help) = match kernel.params[ragged.counts].shape[0].of_launch {
            true => ("dispatch", "let their number be fixed, or leave weights out of `dispatch`"),
            false => {
                ("own", "declare them `dyn`, the same on all ranks, and fill `ids` up with -1")
            }
        };
        return Err(unsupported(op, why, help));
    }
    let (draft, inputs) = (&mut t.draft, &t.params);
    let Some(route) = &ragged.route else {
        let counts = given_counts(draft, kernel, ragged, inputs[ragged.counts]);
        let blocks = blocks::blocks(draft, ragged, counts);
        let rows =
            RaggedRows { blocks, begins: None, dispatched: None, factors: None, route: None };
        return Ok(Value::Ragged(Box::new(rows)));
    };
    let combined = kernel.combined();
    let alone = draft.nodes.group.by_node(1).filter(|_| {
        let sums =
            t.config.combine == Returns::Sums && combined.is_some_and(|c| c.parts(&kernel.params));
        sums && draft.nodes.count() == 1
    });
    let (tensors, sums) = ((inputs.clone(), t.results.clone()), alone.unwrap_or(draft.nodes));
    let mut dispatch = Dispatch::new(draft, &kernel.params, ragged, route, tensors, sums);
    dispatch.weigh(draft, combined.map(|c| c.how));
    let blocks = dispatch.blocks();
    let (dispatched, factors) = match dispatch.rows(draft, blocks) {
        Some((rows, factors, arrived)) => (Some((rows, arrived)), factors),
        None => (None, None),
    };
    let weights = kernel.ops.iter().find_map(|op| match op {
        Op::Grads(grads) => Some(grads.weights),
        _ => None,
    });
    if let Some(weights) = weights {
        dispatch.weigh_rows(draft, blocks, weights);
    }
    dispatch.dropped(draft);
    let places = route.combines.then(|| dispatch.places(draft, blocks));
    let route = Some((dispatch, places));
    Ok(Value::Ragged(Box::new(RaggedRows { blocks, begins: None, dispatched, factors, route })))
}

/// The tiles of a GEMM of such rows.
///
/// # Errors
/// [`LowerError::Internal`] for rows that are made behind it.
pub(super) fn gemm<'k>(t: &mut Tiler<'k>, p: &Grouped) -> Result<Value<'k>, LowerError> {
    let several = t.kernel.grouped().count() > 1;
    let before = &t.kernel.ops[..t.made.len()];
    let i = before.iter().filter(|op| matches!(op, Op::Grouped(_))).count();
    // Beside dense ones, which have these names.
    let of = if t.kernel.products().next().is_some() { "grouped_gemm" } else { "gemm" };
    let name = if several { format!("{of}{}", i + 1) } else { of.into() };
    let Some(Value::Ragged(ragged)) = t.made.get(p.ragged) else {
        return Err(internal(format!("{name} has no table of blocks")));
    };
    let (blocks, draft) = (ragged.blocks, &mut t.draft);
    let buffer = match p.result {
        Some(r) => t.results[r],
        None => {
            let shape = draft.extents.local_shape(&p.out);
            let apart =
                ragged.route.as_ref().is_some_and(|(dispatch, _)| dispatch.sums_alone(draft));
            let (name, space) = match p.combined {
                true if apart => ("y".into(), Space::Scratch),
                // Every rank reads rows of its tokens.
                true => ("y".into(), Space::Workspace),
                false => (format!("h{}", i + 1), Space::Scratch),
            };
            draft.buffer(&name, space, p.out.dtype, shape, None)
        }
    };
    // Factors of its results, which only the next GEMM reads.
    let own = p.extras.iter().any(|x| matches!(x, Extra::OwnFactors)).then(|| {
        let [rows, columns] = [0, 1].map(|d| p.out.widest(d));
        let shape = vec![((columns + QuantTile::BLOCK - 1) / QuantTile::BLOCK).into(), rows.into()];
        draft.buffer(&format!("h{}_factors", i + 1), Space::Scratch, DType::F32, shape, None)
    });
    let rows = match p.rows {
        Rows::Given(param) => (t.params[param], None),
        Rows::Dispatched => match ragged.dispatched {
            Some((rows, arrived)) => (rows, Some(arrived)),
            None => return Err(internal(format!("{name} reads rows that nobody dispatches"))),
        },
        Rows::Made(from) => match t.made.get(from) {
            Some(Value::Blocks(made)) => (made.buffer, Some(made.done)),
            _ => return Err(internal(format!("{name} reads rows that are not made before it"))),
        },
    };
    let arriving = match p.rows {
        Rows::Given(_) => None,
        Rows::Dispatched => ragged.factors,
        Rows::Made(from) => match t.made.get(from) {
            Some(Value::Blocks(made)) => made.factors,
            _ => None,
        },
    };
    let (inputs, results) = (&t.params, &t.results);
    let extra = |x: &Extra| match x {
        Extra::Param(param) => Ok(inputs[*param]),
        Extra::Result(r) => Ok(results[*r]),
        Extra::OwnHalf => Ok(buffer),
        Extra::Arriving => {
            arriving.ok_or_else(|| internal(format!("{name} has no factors of its rows")))
        }
        Extra::OwnFactors => {
            own.ok_or_else(|| internal(format!("{name} has no factors of its results")))
        }
    };
    let extras = p.extras.iter().map(extra).collect::<Result<_, LowerError>>()?;
    let params = &t.kernel.params;
    let pairs = t.kernel.grouped().any(|p| gated(&p.epilogue));
    let tiles = Tiles { params, p, name: &name, blocks, rows, into: buffer, inputs, extras, pairs };
    let (family, tiles) = tiles.family(draft, t.config);
    let done = Writer::new(family, Operand::C, vec![Var::domain(0).into()]);
    let name = if i == 0 { "hidden" } else { "hidden_more" };
    let done = draft.flow(Flow::new(name, vec![blocks.count.into()], tiles.into(), vec![done]));
    Ok(Value::Blocks(MadeBlocks { buffer, factors: own, done, family, tiles, slots: None }))
}

/// What follows from gradients of rows that have weights.
///
/// # Errors
/// [`LowerError::Internal`] for rows that no routing names.
pub(super) fn grads<'k>(t: &mut Tiler<'k>, grads: &Grads) -> Result<Value<'k>, LowerError> {
    let Some(Value::Blocks(made)) = t.made.get(grads.of) else {
        return Err(internal("gradients of rows are not made before what follows from them"));
    };
    let made = *made;
    let Some(Value::Ragged(ragged)) = t.made.get_mut(grads.ragged) else {
        return Err(internal("rows that have weights have no table of blocks"));
    };
    let blocks = ragged.blocks;
    let Some((dispatch, _)) = &mut ragged.route else {
        return Err(internal("nobody knows whose rows have which weights"));
    };
    Ok(Value::Blocks(dispatch.grads(&mut t.draft, grads, &made, blocks)))
}

/// Rows on their way back to tokens.
///
/// # Errors
/// [`LowerError::Internal`] for rows that no routing names.
pub(super) fn combine<'k>(t: &mut Tiler<'k>, combine: &Combine) -> Result<Value<'k>, LowerError> {
    let Some(Value::Blocks(y)) = t.made.get(combine.of) else {
        return Err(internal("the rows that are combined are not made"));
    };
    let route = t.made.iter().find_map(|value| match value {
        Value::Ragged(ragged) => ragged.route.as_ref(),
        _ => None,
    });
    let Some((dispatch, Some(places))) = route else {
        return Err(internal("nobody knows where the rows of tokens are"));
    };
    let y = match (combine.how, y.slots) {
        (Combined::Elements, Some(made)) => (made.of_rows, made.family, Operand::E2, 1),
        _ => (y.buffer, y.family, Operand::C, y.tiles),
    };
    let further = t.draft.along(1);
    if combine.summed.is_some() && further.group.size > 1 {
        mapped(further, "sum of combined rows")?;
        if t.draft.nodes.count() > 1 && matches!(combine.how, Combined::Products(_)) {
            let why = "its products are summed along an axis, and its experts are on several nodes";
            return Err(unsupported("combine_grad", why, "use one node"));
        }
    }
    dispatch.combine(&mut t.draft, combine, y, t.results[combine.result], *places);
    Ok(Value::Result)
}

/// The rows of each expert that the caller gives: the table, and its memory.
fn given_counts(
    draft: &mut Draft,
    kernel: &Kernel,
    ragged: &Ragged,
    counts: BufId,
) -> (TabId, BufId) {
    let (experts, rows) = (kernel.params[ragged.counts].widest(0), ragged.rows.widest(0));
    let given = draft.plan.tables.push(Table {
        name: "counts".into(),
        shape: vec![experts as u32],
        source: TableSource::Runtime { min: 0, max: rows },
        stored: Some(counts),
        routed: None,
    });
    // A table's extents are numbers.
    draft.plan.buffers[counts].shape = vec![experts.into()];
    (given, counts)
}

/// Columns of the tiles whose epilogues keep most.
const NARROW: u32 = 128;

/// Tiles of a grouped GEMM.
struct Tiles<'a> {
    params: &'a [Tensor],
    p: &'a Grouped,
    name: &'a str,
    blocks: Blocks,
    /// Where its rows are, and the words of their blocks if they are made in this launch.
    rows: (BufId, Option<FlowId>),
    into: BufId,
    inputs: &'a [BufId],
    /// Operands of its epilogue.
    extras: Vec<BufId>,
    /// Whether the kernel has gates and ups.
    pairs: bool,
}

impl Tiles<'_> {
    /// Their family, and how many there are of a block.
    fn family(&self, draft: &mut Draft, config: &Config) -> (FamId, i32) {
        let p = self.p;
        let b = &self.params[p.b];
        let tile = MmaTile {
            block: self.block(config, mma_step(b.dtype)),
            stages: config.stages_on(draft.target, false),
            a_layout: ALayout::Mk,
            b_layout: if p.transposed { BLayout::Nk } else { BLayout::Kn },
            shifted: false,
            store: self.store(),
            consumers: config.consumers,
            cluster: 1,
            multicast: [1, 1],
            epilogue: p.epilogue.clone(),
        };
        let gated = gated(&p.epilogue);
        let (of_depth, of_columns) = p.dims(b);
        let (height, width) = (config.block[0] as i32, tile.task_columns() as i32);
        let columns = b.widest(of_columns);
        let [parts, across] = [(BLOCK, height), (columns, width)].map(|(n, of)| (n + of - 1) / of);
        let [block, part] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let j = Expr::from(Var::domain(if parts > 1 { 2 } else { 1 }));
        let of =
            |column: i32| Expr::Table(self.blocks.table, vec![block.clone(), Expr::Const(column)]);
        let rows = if parts > 1 {
            let at = block.clone() * BLOCK + part.clone() * height;
            (at, (of(1) - part * height).min(height))
        } else {
            (block.clone() * BLOCK, of(1))
        };
        // Gates, then ups, in whole steps.
        let halves = p.sums_halves(b);
        let depth = match halves {
            true => (Expr::Const(0), b.widest(of_depth).into()),
            false => (Expr::Const(0), draft.own(b, of_depth)),
        };
        let n = draft.own(b, of_columns);
        let cols = (j.clone() * width, block_rows(n, j, width));
        // No block has rows of an expert that the last rank does not have, and proofs need not know it.
        let own = draft.own(b, 0);
        let expert = one(if b.even(0) { of(0) } else { of(0).min(own - 1) });
        let mut matrix = match p.transposed {
            true => vec![expert.clone(), cols.clone(), depth.clone()],
            false => vec![expert.clone(), depth.clone(), cols.clone()],
        };
        if gated {
            matrix.insert(if p.transposed { 1 } else { 2 }, (0.into(), 2.into()));
        }
        let mut left = vec![rows.clone(), depth.clone()];
        let at = if halves { Point::Inner } else { Point::Start };
        if halves {
            left.insert(1, one(Var::INNER));
            matrix.insert(2, one(Var::INNER));
        }
        let in_blocks =
            |(at, len): (Expr, Expr), block: i32| (at / block, (len + (block - 1)) / block);
        let steps = in_blocks(depth.clone(), MMA_STEP_BYTES as i32);
        let entry = vec![one(block.clone()), (0.into(), 2.into())];
        let tab = read(Operand::Tab, self.blocks.memory, entry);
        let a = Access { at, ..read(Operand::A, self.rows.0, left) };
        let mut touched = vec![
            Source::behind(tab, self.blocks.built, vec![0.into()]),
            match self.rows.1 {
                Some(done) => Source::behind(a, done, vec![block]),
                None => a.into(),
            },
            Access { at, ..read(Operand::B, self.inputs[p.b], matrix) }.into(),
        ];
        let half = |ups: bool| (Expr::Const(ups.into()), Expr::Const(1));
        for ((op, operand), buffer) in named_operands(&p.epilogue).zip(&self.extras) {
            let mut region = match op {
                EpilogueOp::ScaleSteps => vec![steps.clone(), rows.clone()],
                EpilogueOp::ScaleBlocks => {
                    let columns = in_blocks(cols.clone(), MMA_STEP_BYTES as i32);
                    let mut region = vec![expert.clone(), columns, steps.clone()];
                    if gated {
                        region.insert(1, (0.into(), 2.into()));
                    }
                    region
                }
                EpilogueOp::Quantize(_) => {
                    vec![in_blocks(cols.clone(), QuantTile::BLOCK), rows.clone()]
                }
                EpilogueOp::Bias if gate_bias(&p.epilogue) == Some(operand) => {
                    vec![expert.clone(), (0.into(), 2.into()), cols.clone()]
                }
                EpilogueOp::Bias => vec![expert.clone(), cols.clone()],
                _ => vec![rows.clone(), cols.clone()],
            };
            if gates_operand(&p.epilogue) == Some(operand) {
                region.insert(1, (0.into(), 2.into()));
            }
            if p.halves() && op != EpilogueOp::Bias {
                // Of gates, their gradients, and ups, the last two lie behind the first.
                region.insert(1, half(matches!(op, EpilogueOp::Save | EpilogueOp::Mul)));
            }
            touched.push(match op {
                EpilogueOp::Save | EpilogueOp::Quantize(_) => {
                    write(operand, *buffer, region).into()
                }
                _ => Access { at: Point::End, ..read(operand, *buffer, region) }.into(),
            });
        }
        let mut made = vec![rows, cols];
        if p.halves() {
            made.insert(1, half(false));
        }
        touched.push(write(Operand::C, self.into, made).into());
        let mut domain = vec![("b", self.blocks.count.into()), ("j", across.into())];
        if parts > 1 {
            domain.insert(1, ("i", parts.into()));
        }
        let leaf = Leaf::MmaTile(tile);
        let order = self.order(config, parts, across);
        let family = draft.family(self.name, RoleKind::Compute, leaf, domain, order, touched);
        // The loader looks a tile up and tells the others; and the last blocks may have no rows.
        draft.plan.families[family].schedule = Schedule::Dynamic;
        draft.plan.families[family].inner = halves.then(|| ("q".into(), 2.into()));
        (family, parts * across)
    }

    /// Tiles of gradients of gates and ups are narrow: of 256 columns they spill 32 bytes, of 128 none (CUDA 13, a
    /// layer of 512 columns on two ranks). So are those of eight bits without gates and ups in the kernel, whose
    /// consumers have more registers: of 256 columns they spill 12 bytes.
    fn block(&self, config: &Config, k: u32) -> [u32; 3] {
        let [m, n, _] = config.block;
        let narrow = self.p.halves() || mma_narrow(k) && !self.pairs;
        [m, if narrow { n.min(NARROW) } else { n }, k]
    }

    /// Halves of a result that TMA has no panels for are stored element by element, and so are eight bits.
    fn store(&self) -> Store {
        let (_, columns) = self.p.depth_and_columns(&self.params[self.p.b]);
        let odd = self.p.halves() && columns % 64 != 0 || quantized(&self.p.epilogue).is_some();
        if odd { Store::Direct } else { Store::Tma }
    }

    /// Blocks that are walked together, so that those of an expert share its matrix in the cache; blocks without rows
    /// stay behind all others.
    fn order(&self, config: &Config, parts: i32, across: i32) -> Vec<Expr> {
        let t = Expr::from(Var::LINEAR);
        let group = config.group_blocks().clamp(1, self.blocks.count.max(1) as u32) as i32;
        let tall = parts > 1;
        let at = if tall { t.clone() / parts } else { t.clone() };
        let (block, column) = in_groups(at, self.blocks.count, group, across);
        let part = tall.then(|| t % parts);
        [Some(block), part, Some(column)].into_iter().flatten().collect()
    }
}
