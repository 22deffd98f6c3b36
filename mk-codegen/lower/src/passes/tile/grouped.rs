//! Products of ragged rows: tiles of blocks, each with the matrix of its expert.
//!
//! A table says whose rows a block has, and how many; one task makes it from the rows of each expert, in the launch. Blocks without rows come
//! last, and have nothing to do. Every write is where the block is: tables only decide which matrix is read, and how many rows there are.

use super::{
    blocks::{self, BLOCK, Blocks},
    dispatch::Dispatch,
    product::MmaTile,
};
use crate::passes::{
    draft::{Draft, Flow, FlowId, Source, Writer, read, write},
    error::{LowerError, internal, unsupported},
    shape::{
        grouped::{Grouped, Product, Rows},
        ranks::block_rows,
        rows::in_groups,
    },
    strategies::deliver::mapped,
    world::World,
};
use crate::settings::Config;
use mk_plan::{
    ALayout, Access, BLayout, BufId, EPILOGUE_OPERANDS, Expr, FamId, Operand, Point, RoleKind,
    Schedule, Space, Store, TabId, Table, TableSource, Var,
};

/// A product that another one reads: where it is, and the words of its blocks.
struct Hidden {
    buffer: BufId,
    done: FlowId,
}

/// The families of products of ragged rows.
///
/// # Errors
/// [`LowerError::Internal`] for a product of rows that are made behind it; as [`mapped`], and where ranks along another axis would have the same experts.
pub(in crate::passes) fn families(
    g: &Grouped,
    config: &Config,
    world: &World,
) -> Result<Draft, LowerError> {
    if !world.nodes.group.is_world() {
        let why = "ranks along another axis of the mesh would have the same experts";
        return Err(unsupported("grouped_gemm", why, "use a mesh of one axis"));
    }
    let mut draft = Draft::new(&g.name, world, config);
    let inputs: Vec<BufId> = g.params.iter().map(|t| draft.tensor(t, Space::In)).collect();
    let outputs: Vec<BufId> = g.results.iter().map(|t| draft.tensor(t, Space::Out)).collect();
    if g.route.is_some() {
        mapped(&draft, "dispatch")?;
    }
    let dispatch = g.route.as_ref().map(|route| Dispatch::new(&mut draft, g, route, &inputs));
    let blocks = match &dispatch {
        Some(dispatch) => dispatch.blocks(),
        None => {
            let counts = given_counts(&mut draft, g, inputs[g.counts]);
            blocks::blocks(&mut draft, g, counts)
        }
    };
    let dispatched = dispatch.as_ref().and_then(|dispatch| dispatch.rows(&mut draft, blocks));
    let combines = g.route.as_ref().is_some_and(|route| route.combine.is_some());
    let placed = dispatch.as_ref().filter(|_| combines);
    let placed = placed.map(|dispatch| dispatch.places(&mut draft, blocks));
    let mut made: Vec<Option<Hidden>> = Vec::new();
    for (i, p) in g.products.iter().enumerate() {
        let name = if g.products.len() == 1 { "gemm".into() } else { format!("gemm{}", i + 1) };
        let combine = g.route.as_ref().and_then(|route| route.combine.as_ref());
        let combine = combine.filter(|combine| combine.of == i);
        let into = match (p.result, combine) {
            (Some(r), _) => outputs[r],
            // Every rank reads rows of its tokens.
            (None, Some(_)) => {
                let shape = draft.extents.local_shape(&p.out);
                draft.buffer("y", Space::Workspace, p.out.dtype, shape, None)
            }
            (None, None) => {
                let shape = draft.extents.local_shape(&p.out);
                draft.buffer(&format!("h{}", i + 1), Space::Scratch, p.out.dtype, shape, None)
            }
        };
        let rows = match p.rows {
            Rows::Given(param) => (inputs[param], None),
            Rows::Dispatched => match dispatched {
                Some((rows, arrived)) => (rows, Some(arrived)),
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
        if let (Some(dispatch), Some(combine), Some(placed)) = (&dispatch, combine, placed) {
            let made = (into, family, count);
            dispatch.combine(&mut draft, combine, made, outputs[combine.result], placed);
        }
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

/// The rows of each expert that the caller gives: the table, and its memory.
fn given_counts(draft: &mut Draft, g: &Grouped, counts: BufId) -> (TabId, BufId) {
    let world = draft.ranks();
    let (experts, rows) = (g.params[g.counts].widest(0, world), g.products[0].out.widest(0, world));
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
        let (p, world) = (self.p, draft.ranks());
        let tile = MmaTile {
            block: config.block,
            stages: config.stages_on(draft.target),
            a_layout: ALayout::Mk,
            b_layout: BLayout::Kn,
            store: Store::Tma,
            consumers: config.consumers,
            cluster: 1,
            multicast: [1, 1],
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
        // No block has rows of an expert that the last rank does not have, and proofs need not know it.
        let own = draft.own(b, 0);
        let expert = if b.even(0, world) { of(0) } else { of(0).min(own - 1) };
        let mut matrix = vec![one(expert), depth.clone(), cols.clone()];
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
        let group = config.group_blocks().clamp(1, self.blocks.count.max(1) as u32) as i32;
        let tall = parts > 1;
        let at = if tall { t.clone() / parts } else { t.clone() };
        let (block, column) = in_groups(at, self.blocks.count, group, across);
        let part = tall.then(|| t % parts);
        [Some(block), part, Some(column)].into_iter().flatten().collect()
    }
}
