//! Products of ragged rows: tiles of blocks, each with the matrix of its expert.
//!
//! A table says whose rows a block has, and how many; one task makes it from the rows of each expert, in the launch. Blocks without rows come
//! last, and have nothing to do. Every write is where the block is: tables only decide which matrix is read, and how many rows there are.

use super::{dispatch::Dispatch, product::MmaTile};
use crate::ir::{
    ALayout, Access, BLayout, BufId, EPILOGUE_OPERANDS, Expr, FamId, Leaf, Operand, Point,
    RoleKind, Schedule, Space, Store, TabId, Table, TableSource, Tabulation, Var,
};
use crate::passes::{
    draft::{Draft, Flow, FlowId, Source, Writer, read, write},
    error::{LowerError, internal},
    shape::{
        grouped::{Grouped, Product, Route, Rows},
        ranks::block_rows,
        rows::in_groups,
    },
};
use crate::settings::Config;
use crate::target::Target;
use mk_abi::DType;
use mk_syntax::RAGGED_BLOCK;

/// Rows of a block.
pub(in crate::passes) const BLOCK: i32 = RAGGED_BLOCK as i32;

/// A table of blocks in memory, and the flow that says that it is there.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub table: TabId,
    pub memory: BufId,
    pub count: i32,
    pub built: FlowId,
}

/// A product that another one reads: where it is, and the words of its blocks.
pub(super) struct Hidden {
    pub buffer: BufId,
    pub done: FlowId,
}

/// The families of products of ragged rows.
///
/// # Errors
/// [`LowerError::Internal`] for a product of rows that are made behind it.
pub(in crate::passes) fn families(
    g: &Grouped,
    config: &Config,
    target: &'static Target,
) -> Result<Draft, LowerError> {
    let mut draft = Draft::new(&g.name, &g.axis, config, target);
    let inputs: Vec<BufId> = g.params.iter().map(|t| draft.tensor(t, Space::In)).collect();
    let outputs: Vec<BufId> = g.results.iter().map(|t| draft.tensor(t, Space::Out)).collect();
    let (blocks, dispatched) = routed(&mut draft, g, &inputs);
    let mut made: Vec<Option<Hidden>> = Vec::new();
    for (i, p) in g.products.iter().enumerate() {
        let name = if g.products.len() == 1 { "gemm".into() } else { format!("gemm{}", i + 1) };
        let into = match p.result {
            Some(r) => outputs[r],
            None => {
                let shape = draft.extents.local_shape(&p.out);
                draft.buffer(&format!("h{}", i + 1), Space::Scratch, p.out.dtype, shape, None)
            }
        };
        let rows = match p.rows {
            Rows::Given(param) => (inputs[param], None),
            Rows::Dispatched => match &dispatched {
                Some(rows) => (rows.buffer, Some(rows.done)),
                None => return Err(internal(format!("{name} reads rows that nobody dispatches"))),
            },
            Rows::Made(from) => match made.get(from) {
                Some(Some(hidden)) => (hidden.buffer, Some(hidden.done)),
                _ => {
                    return Err(internal(format!("{name} reads rows that are not made before it")));
                }
            },
        };
        let tiles = Tiles { g, p, name: &name, blocks, rows, into, inputs: &inputs };
        let (family, count) = tiles.family(&mut draft, config);
        made.push(p.read.then(|| {
            let word = vec![Var::domain(0).into()];
            let done = Writer::new(family, Operand::C, word);
            let shape = vec![blocks.count.into()];
            let name = if i == 0 { "hidden" } else { "hidden_more" };
            let done = draft.flow(Flow::new(name, shape, count.into(), vec![done]));
            Hidden { buffer: into, done }
        }));
    }
    Ok(draft)
}

/// The table of blocks, and the rows that tokens are copied to.
fn routed(draft: &mut Draft, g: &Grouped, inputs: &[BufId]) -> (Blocks, Option<Hidden>) {
    let world = draft.world();
    let rows = g.products[0].out.widest(0, world);
    match g.route {
        Route::Counts(counts) => {
            let (experts, memory) = (g.params[counts].widest(0, world), inputs[counts]);
            let given = draft.plan.tables.push(Table {
                name: "counts".into(),
                shape: vec![experts as u32],
                source: TableSource::Runtime { min: 0, max: rows },
                stored: Some(memory),
            });
            // A table's extents are numbers.
            draft.plan.buffers[memory].shape = vec![experts.into()];
            (blocks(draft, Counts { table: given, memory, experts, counted: None }, rows), None)
        }
        Route::Ids { tokens, ids } => {
            let dispatch = Dispatch::new(draft, g, [(tokens, inputs[tokens]), (ids, inputs[ids])]);
            let counts = dispatch.count(draft);
            let blocks = blocks(draft, counts, rows);
            let listed = dispatch.list(draft, blocks);
            (blocks, Some(dispatch.pull(draft, blocks, listed)))
        }
    }
}

/// Rows of each expert, and the flow that says that they are there, unless the caller has them.
pub(super) struct Counts {
    pub table: TabId,
    pub memory: BufId,
    pub experts: i32,
    pub counted: Option<FlowId>,
}

/// The table of blocks, from the rows of each expert.
fn blocks(draft: &mut Draft, of: Counts, rows: i32) -> Blocks {
    let Counts { table: given, memory: counts, experts, counted } = of;
    let count = rows / BLOCK;
    let shape = vec![count.into(), 2.into()];
    let memory = draft.buffer("blocks", Space::Scratch, DType::I32, shape, None);
    let table = draft.plan.tables.push(Table {
        name: "blocks".into(),
        shape: vec![count as u32, 2],
        source: TableSource::Blocks { of: given, rows: BLOCK },
        stored: Some(memory),
    });
    let whole = |n: i32| (Expr::Const(0), Expr::Const(n));
    let src = read(Operand::Src, counts, vec![whole(experts)]);
    let touched = vec![
        match counted {
            Some(counted) => Source::behind(src, counted, vec![0.into()]),
            None => src.into(),
        },
        write(Operand::Dst, memory, vec![whole(count), whole(2)]).into(),
    ];
    let leaf = Leaf::Tabulate { of: Tabulation::Blocks { rows: BLOCK as u32 } };
    let one = vec![("i", 1.into())];
    let family = draft.family("blocks", RoleKind::Compute, leaf, one, vec![], touched);
    let built = Writer::new(family, Operand::Dst, vec![0.into()]);
    let built = draft.flow(Flow::new("built", vec![1.into()], 1.into(), vec![built]));
    Blocks { table, memory, count, built }
}

/// Tiles of a product.
struct Tiles<'a> {
    g: &'a Grouped,
    p: &'a Product,
    name: &'a str,
    blocks: Blocks,
    /// Where its rows are, and the words of their blocks if they are made in this launch.
    rows: (BufId, Option<FlowId>),
    into: BufId,
    inputs: &'a [BufId],
}

impl Tiles<'_> {
    /// Their family, and how many there are of a block.
    fn family(&self, draft: &mut Draft, config: &Config) -> (FamId, i32) {
        let (p, world) = (self.p, draft.world());
        let tile = MmaTile {
            block: config.block,
            stages: config.stages_on(draft.target),
            a_layout: ALayout::Mk,
            b_layout: BLayout::Kn,
            store: Store::Tma,
            consumers: config.consumers,
            cluster: 1,
            epilogue: p.epilogue.clone(),
        };
        let b = &self.g.params[p.b];
        let gated = b.shape.len() == 4;
        let (height, width) = (config.block[0] as i32, tile.out_columns());
        let columns = b.widest(b.shape.len() - 1, world);
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
        let depth = (Expr::Const(0), draft.dim(&b.shape[1]));
        let n = draft.dim(&b.shape[b.shape.len() - 1]);
        let cols = (j.clone() * width, block_rows(n, j, width));
        let one = |e: Expr| (e, Expr::Const(1));
        let mut matrix = vec![one(of(0)), depth.clone(), cols.clone()];
        if gated {
            matrix.insert(2, (0.into(), 2.into()));
        }
        let entry = vec![one(block.clone()), (0.into(), 2.into())];
        let tab = read(Operand::Tab, self.blocks.memory, entry);
        let a = read(Operand::A, self.rows.0, vec![rows.clone(), depth]);
        let mut touched = vec![
            Source::behind(tab, self.blocks.built, vec![0.into()]),
            match self.rows.1 {
                Some(done) => Source::behind(a, done, vec![block]),
                None => a.into(),
            },
            read(Operand::B, self.inputs[p.b], matrix).into(),
        ];
        let touching = p.epilogue.iter().filter(|op| op.operand().is_some());
        for ((_, param), operand) in touching.zip(&p.extras).zip(EPILOGUE_OPERANDS) {
            let region = vec![rows.clone(), cols.clone()];
            let access = read(operand, self.inputs[*param], region);
            touched.push(Access { at: Point::End, ..access }.into());
        }
        touched.push(write(Operand::C, self.into, vec![rows, cols]).into());
        let mut domain = vec![("b", self.blocks.count.into()), ("j", across.into())];
        if parts > 1 {
            domain.insert(1, ("i", parts.into()));
        }
        let leaf = tile.leaf();
        let order = self.order(config, parts, across);
        let family = draft.family(self.name, RoleKind::Compute, leaf, domain, order, touched);
        // The loader looks a tile up and tells the others; and the last blocks may have no rows.
        draft.plan.families[family].schedule = Schedule::Dynamic;
        (family, parts * across)
    }

    /// Blocks that are walked together, so that those of an expert share its matrix in the cache; blocks without rows stay behind all others.
    fn order(&self, config: &Config, parts: i32, across: i32) -> Vec<Expr> {
        let t = Expr::from(Var::LINEAR);
        let group = config.group_m.clamp(1, self.blocks.count.max(1) as u32) as i32;
        let tall = parts > 1;
        let at = if tall { t.clone() / parts } else { t.clone() };
        let (block, column) = in_groups(at, self.blocks.count, group, across);
        let part = tall.then(|| t % parts);
        [Some(block), part, Some(column)].into_iter().flatten().collect()
    }
}
