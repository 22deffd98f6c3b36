//! Tokens that go to the ranks of their experts, and back as weighted sums.
//!
//! Every rank gets the experts of all tokens, and makes the same tables of them, chunk by chunk of tokens: rows of its
//! experts, blocks, the token of each packed row, and where the rows of its own tokens are. Tokens are staged in
//! symmetric memory; a rank fetches those of others that it has an expert of, each once, and pulls rows from there.
//! Every write is where its block or its token is: tables only decide which memory is read.

mod combine;
mod combine_sums;
mod crossing;
mod grads;
mod tables;
mod travelling;

use super::blocks::{BLOCK, Blocks};
use crate::passes::{
    draft::{Draft, Flow, FlowId, Source, Writer, one, read, write},
    shape::{
        grouped::{Ragged, Route},
        ranks::{Nodes, block_rows, own_rank},
        tensor::Tensor,
    },
    strategies::rails::RailRows,
};
use mk_abi::DType;
use mk_plan::{
    Access, Axis, BufId, CopyVia, Each, Expr, LIST_TOKENS, Leaf, NO_EXPERT, Operand, Point,
    ReduceTile, RoleKind, RoutePart, Routed, Space, TabId, Table, TableSource, Tabulate,
    Tabulation, Var, list_width,
};

/// Rows that are staged and fetched at once. Blocks are pulled whole: a task
/// waits and posts for about as long as it copies 16 rows, and with few tokens most pieces of a block have none.
const STAGED: i32 = 16;
/// Tokens of a chunk, and blocks whose tokens are listed at once.
const CHUNK: i32 = LIST_TOKENS as i32;
const LISTED: i32 = 8;

/// A table in memory that follows from the routing, and the flow that says that it is there.
#[derive(Clone, Copy)]
pub(super) struct Derived {
    table: TabId,
    memory: BufId,
    built: FlowId,
    /// Which slots of places have a row: a table beside it.
    kept: Option<(TabId, BufId)>,
}

impl Derived {
    /// Whether an entry is more than 0.
    fn has(&self, entry: Expr) -> Expr {
        Expr::Const(0).lt(Expr::Table(self.table, vec![entry]))
    }
}

/// What says which weight a row has: its token and slot, the weights of all tokens, and the words of their chunks.
#[derive(Clone, Copy)]
pub(super) struct RowWeights {
    sources: Derived,
    slots: Derived,
    all: (BufId, Option<FlowId>),
}

/// Tokens of the world that a rank has an expert of.
struct Tokens {
    /// Room for all of them: of each tensor that travels.
    memory: Vec<BufId>,
    /// Words of pieces.
    here: FlowId,
    wanted: Derived,
}

/// A tensor of tokens: values `[T, H]`, or the factors `[H / 128, T]` that go with them.
#[derive(Clone, Copy)]
struct Travels {
    from: usize,
    factors: bool,
    /// Extent of the dimension that is not tokens.
    wide: i32,
}

impl Travels {
    /// A name of what it is in.
    fn name(self, of: &str) -> String {
        if self.factors { format!("{of}_factors") } else { of.into() }
    }

    /// The words that say that it is where peers read it.
    fn staged(self) -> &'static str {
        if self.factors { "staged_factors" } else { "staged" }
    }

    /// So many tokens, or rows.
    fn region(self, rows: (Expr, Expr)) -> Vec<(Expr, Expr)> {
        if self.factors { vec![whole(self.wide), rows] } else { vec![rows, whole(self.wide)] }
    }

    fn shape(self, rows: i32) -> Vec<Expr> {
        let [rows, wide] = [rows, self.wide].map(Expr::from);
        if self.factors { vec![wide, rows] } else { vec![rows, wide] }
    }
}

/// The experts of all tokens on every rank, and what follows from them.
pub(super) struct Dispatch<'k> {
    params: &'k [Tensor],
    ragged: &'k Ragged,
    route: &'k Route,
    inputs: Vec<BufId>,
    results: Vec<BufId>,
    /// The most tokens of a rank, and slots of each.
    tokens: i32,
    slots: i32,
    /// Blocks of a rank.
    count: i32,
    ids: TabId,
    /// The experts of all tokens, and the flow that says which chunks are there; none of one rank's own.
    named: (BufId, Option<FlowId>),
    /// Rows of an expert that are kept; 0: all of them.
    keep: i32,
    /// Chunks of a rank's tokens, and entries of the list of one.
    chunks: i32,
    width: i32,
    /// Lists of all chunks.
    lists: BufId,
    /// Where rows of each chunk begin.
    bases: BufId,
    counted: FlowId,
    blocks: Blocks,
    /// The ranks that share a sum of a token's rows: those of a node, or each alone; all, where rows go back.
    sums: Nodes,
    /// The weights of all tokens, where sums go back, and the words of their chunks.
    weights: Option<(BufId, Option<FlowId>)>,
    /// The token in each packed row, once that is asked for.
    sources: Option<Derived>,
    /// The weights of rows, once they are asked for.
    row_weights: Option<RowWeights>,
}

/// The first elements of a dimension.
fn whole(n: i32) -> (Expr, Expr) {
    (Expr::Const(0), Expr::Const(n))
}

/// Whether each launch has another number of tokens: each rank then has room for the most that it may have.
fn varies(tokens: &Tensor) -> bool {
    tokens.shape[0].runtime_max.is_some()
}

/// A row, or its factor, as the one contribution to a weighted sum of an iteration.
fn weighted(access: Access, exists: &Expr) -> Access {
    Access {
        at: Point::Inner,
        each: Some(Each { var: "j".into(), extent: 1.into() }),
        when: Some(exists.clone()),
        ..access
    }
}

/// The leaf of a part of what follows from a routing.
fn part_of(route: &Route, blocks: i32, over: Axis, part: RoutePart) -> Leaf {
    near_part(route, blocks, over, part, 0)
}

/// The same of the experts of a node of so many ranks.
fn near_part(route: &Route, blocks: i32, over: Axis, part: RoutePart, local: u32) -> Leaf {
    let keep = kept_rows(route, blocks, over.size as i32);
    let all = [route.experts, BLOCK, blocks, keep];
    let [experts, rows, blocks, keep] = all.map(|n| n as u32);
    let Axis { stride, size: ranks } = over;
    Leaf::Tabulate(Tabulate {
        of: Tabulation::Route { part, experts, ranks, stride, rows, blocks, keep, local },
    })
}

/// Rows of an expert that are kept: each expert of a rank may have as many blocks; 0 where rows without room end the
/// launch.
fn kept_rows(route: &Route, blocks: i32, world: i32) -> i32 {
    let own = ((route.experts + world - 1) / world).max(1);
    if route.drops { blocks / own * BLOCK } else { 0 }
}

/// What all ranks say of their tokens on every rank, chunk by chunk, and a word for each chunk. One rank has it, unless
/// a launch has fewer tokens: all others read the copy, which has what is behind them.
fn of_all(
    draft: &mut Draft,
    [name, said]: [&'static str; 2],
    ids: &Tensor,
    given: BufId,
    chunks: i32,
) -> (BufId, Option<FlowId>) {
    let nodes = draft.nodes;
    let (group, world) = (nodes.group, nodes.group.size);
    if world == 1 && !ids.own_rows() {
        return (given, None);
    }
    let (tokens, slots) = (ids.widest(0), ids.shape[1].value);
    let rows = if varies(ids) { world * tokens } else { ids.shape[0].value };
    let shape = vec![rows.into(), slots.into()];
    let all = draft.buffer(&format!("{name}_all"), Space::Workspace, ids.dtype, shape, None);
    let [p, c] = [0, 1].map(|n| Expr::from(Var::domain(n)));
    let rows = block_rows(draft.own(ids, 0), c.clone(), CHUNK);
    let first = c.clone() * CHUNK;
    let src = read(Operand::Src, given, vec![(first.clone(), rows.clone()), whole(slots)]);
    let to = vec![(group.place() * tokens + first, rows), whole(slots)];
    let peer = if nodes.local() > 1 { nodes.near.rank_after(p) } else { own_rank() };
    let dst = Access { rank: peer.clone(), ..write(Operand::Dst, all, to) };
    let leaf = CopyVia::Ldst.leaf(1);
    let chunks = chunks.max(1);
    let domain = vec![("p", nodes.local().into()), ("c", chunks.into())];
    let sent = draft.family(name, RoleKind::Compute, leaf, domain, vec![], [src, dst]);
    let word = group.place() * chunks + c;
    let mut named = vec![Writer::new(sent, Operand::Dst, vec![word]).on(peer)];
    if nodes.count() > 1 {
        let pieces = RailRows { of: ids, height: CHUNK, pieces: chunks };
        named.push(pieces.to_everyone(draft, name, given, (all, tokens)));
    }
    let shape = vec![(world * chunks).into()];
    (all, Some(draft.flow(Flow::new(said, shape, 1.into(), named))))
}

impl<'k> Dispatch<'k> {
    /// Every rank sends the experts of its tokens to all ranks. `sums` share a sum of a token's rows.
    pub fn new(
        draft: &mut Draft,
        params: &'k [Tensor],
        ragged: &'k Ragged,
        route: &'k Route,
        (inputs, results): (Vec<BufId>, Vec<BufId>),
        sums: Nodes,
    ) -> Dispatch<'k> {
        let world = draft.ranks();
        let (over, along) = (draft.nodes.group.over(), draft.nodes.group.axis());
        let ids = &params[ragged.counts];
        let (tokens, slots) = (ids.widest(0), ids.shape[1].value);
        let table = draft.plan.tables.push(Table {
            name: "ids".into(),
            shape: vec![tokens as u32, slots as u32],
            source: TableSource::Runtime { min: NO_EXPERT, max: route.experts - 1 },
            stored: Some(inputs[ragged.counts]),
            routed: None,
        });
        let count = ragged.rows.widest(0) / BLOCK;
        let chunks = (tokens + CHUNK - 1) / CHUNK;
        let (all, named) = of_all(draft, ["ids", "named"], ids, inputs[ragged.counts], chunks);
        let width = list_width(route.experts.max(0) as usize) as i32;
        let (mut all_lists, experts) = (world * chunks, route.experts);
        // One, where there are no tokens.
        all_lists = all_lists.max(1);
        let mut integers = |name: &str, rows: i32, columns: i32| {
            let shape = vec![rows.into(), columns.into()];
            draft.buffer(name, Space::Scratch, DType::I32, shape, None)
        };
        let lists = integers("lists", all_lists, width);
        let bases = integers("bases", all_lists + 1, experts);
        // Each chunk by itself.
        let c = Expr::from(Var::domain(0));
        let (rank, chunk) = (c.clone() / chunks.max(1), c.clone() % chunks.max(1));
        let rows = block_rows(draft.local(ids, 0, rank.clone()), chunk.clone(), CHUNK);
        let first = rank.clone() * tokens + chunk * CHUNK;
        let src = read(Operand::Src, all, vec![(first, rows), whole(slots)]);
        let dst = write(Operand::Dst, lists, vec![one(c.clone()), whole(width)]);
        let src = match named {
            Some(named) => Source::behind(src, named, vec![c]),
            None => src.into(),
        };
        let touched = vec![src, dst.into()];
        let leaf = part_of(route, count, over, RoutePart::Lists);
        let domain = vec![("c", all_lists.into())];
        let listed = draft.filled(("lists", "listed"), leaf, domain, all_lists.into(), touched);
        // Then all together.
        let own = (experts + world - 1) / world;
        let keep = kept_rows(route, count, world);
        let source = TableSource::Runtime { min: 0, max: ids.shape[0].value };
        let part = RoutePart::Counts;
        let routed = Routed { ids: table, part, rows: BLOCK, keep, local: 0, along };
        let (counts, memory) = draft.table("counts", &[own], source, Some(routed));
        let source = TableSource::Blocks { of: counts, rows: BLOCK };
        let (table_of_blocks, blocks) = draft.table("blocks", &[count, 2], source, None);
        let src = read(Operand::Src, lists, vec![whole(all_lists), whole(width)]);
        let touched = vec![
            Source::behind(src, listed, vec![0.into()]),
            write(Operand::Dst, memory, vec![whole(own)]).into(),
            write(Operand::Dst, bases, vec![whole(all_lists + 1), whole(experts)]).into(),
            write(Operand::Dst, blocks, vec![whole(count), whole(2)]).into(),
        ];
        let leaf = part_of(route, count, over, part);
        let domain = vec![("i", 1.into())];
        let counted = draft.filled(("counts", "counted"), leaf, domain, 1.into(), touched);
        let blocks = Blocks {
            table: table_of_blocks,
            memory: blocks,
            count,
            built: counted,
            counts: (counts, memory),
        };
        let ids = table;
        Dispatch {
            params,
            ragged,
            route,
            inputs,
            results,
            tokens,
            slots,
            count,
            ids,
            named: (all, named),
            keep,
            chunks,
            width,
            lists,
            bases,
            counted,
            blocks,
            sums,
            weights: None,
            sources: None,
            row_weights: None,
        }
    }

    /// Whether each rank of a node adds up its own experts' rows, so that no other reads them.
    pub fn sums_alone(&self, draft: &Draft) -> bool {
        draft.nodes.count() == 1 && self.sums.count() > 1
    }

    /// The blocks of the rank's experts.
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// The token in each packed row.
    fn sources_of(&mut self, draft: &mut Draft, blocks: Blocks) -> Derived {
        let sources = self.sources.unwrap_or_else(|| self.sources(draft, blocks));
        self.sources = Some(sources);
        sources
    }

    /// Room for the tokens of a rank, in whole pieces.
    fn room(&self) -> i32 {
        (self.tokens + STAGED - 1) / STAGED * STAGED
    }

    /// Whether some rank has no tokens.
    fn some_idle(&self, world: i32) -> bool {
        let ids = &self.params[self.ragged.counts];
        world > 1 && varies(ids) || ids.shape[0].value <= (world - 1) * self.tokens
    }

    /// The rows of all blocks, of tokens that are here: where they are then, with their factors, and the words of
    /// blocks. Nothing where they were dispatched before.
    pub fn rows(
        &mut self,
        draft: &mut Draft,
        blocks: Blocks,
    ) -> Option<(BufId, Option<BufId>, FlowId)> {
        let x = &self.params[self.route.x?];
        let of = |from: usize, factors: bool| Travels {
            from,
            factors,
            wide: self.params[from].shape[usize::from(!factors)].value,
        };
        let travel: Vec<_> = self
            .route
            .x
            .map(|x| of(x, false))
            .into_iter()
            .chain(self.route.factors.map(|f| of(f, true)))
            .collect();
        // Weighted rows are sums, which read no rows that may not be there.
        let staged = self.route.weights.is_some() && x.own_rows();
        let tokens = (draft.ranks() > 1 || staged).then(|| self.tokens(draft, &travel));
        let packed = self.count * BLOCK;
        let sources = self.sources_of(draft, blocks);
        let buffers: Vec<_> = travel
            .iter()
            .map(|t| match if t.factors { self.route.result_factors } else { self.route.result } {
                Some(result) => self.results[result],
                None => {
                    let dtype = self.params[t.from].dtype;
                    draft.buffer(&t.name("rows"), Space::Scratch, dtype, t.shape(packed), None)
                }
            })
            .collect();
        let slots = self.route.weights.map(|weights| {
            let given = (&self.params[weights], self.inputs[weights]);
            let all = of_all(draft, ["weights", "weighed"], given.0, given.1, self.chunks);
            (self.slots_of(draft, blocks, sources), all)
        });
        let b = Expr::from(Var::domain(0));
        let count = Expr::Table(blocks.table, vec![b.clone(), 1.into()]);
        let row = b.clone() * BLOCK;
        // Weighted rows are sums, one of each row, in a loop.
        let q = Expr::from(if slots.is_some() { Var::INNER } else { Var::EACH });
        let token = Expr::Table(sources.table, vec![row.clone() + q.clone()]);
        let listed = token.clone();
        // Rows of nobody, or of tokens that a launch lacks, which no routing has, are the rank's first token; of a rank
        // without tokens, the world's first, which it always fetches.
        let (token, here) = match &tokens {
            Some(tokens) => {
                let at = match self.room() == self.tokens {
                    true => token,
                    false => token.clone() / self.tokens * self.room() + token % self.tokens,
                };
                let own = draft.own(x, 0);
                let first = draft.nodes.group.place() * self.room();
                let first = match self.some_idle(draft.ranks()) {
                    true => Expr::Const(0).lt(own).select(first, 0),
                    false => first,
                };
                let mut there = tokens.wanted.has(at.clone());
                if varies(x) {
                    let own = draft.local(x, 0, listed.clone() / self.tokens);
                    there = (listed.clone() % self.tokens).lt(own).select(there, 0);
                }
                let at = there.select(at, first);
                (at.clone(), Some((tokens.here, at / STAGED)))
            }
            None if varies(x) => (token.min(draft.own(x, 0) - 1), None),
            None => (token, None),
        };
        let exists = q.lt(count.clone());
        let entry = read(Operand::Tab, blocks.memory, vec![one(b.clone()), whole(2)]);
        let of_block = vec![(row.clone(), Expr::Const(BLOCK))];
        let tokens_of = read(Operand::Tab, sources.memory, of_block.clone());
        let mut arrived = Vec::new();
        for (k, (t, rows)) in travel.iter().zip(&buffers).enumerate() {
            let from = tokens.as_ref().map_or(self.inputs[t.from], |tokens| tokens.memory[k]);
            let src = read(Operand::Src, from, t.region(one(token.clone())));
            let src = match slots {
                Some(_) => weighted(src, &exists),
                None => Access {
                    each: Some(Each { var: "q".into(), extent: BLOCK.into() }),
                    when: Some(exists.clone()),
                    ..src
                },
            };
            let dst = match slots {
                Some(_) => Access {
                    at: Point::Inner,
                    when: Some(exists.clone()),
                    ..write(Operand::Dst, *rows, t.region(one(row.clone() + Var::INNER)))
                },
                // Columns beside each other, each from a place of its own.
                None if t.factors => Access {
                    each: src.each.clone(),
                    when: Some(exists.clone()),
                    ..write(Operand::Dst, *rows, t.region(one(row.clone() + Var::EACH)))
                },
                None => {
                    let some = (row.clone(), Expr::Const(BLOCK).min(count.clone()));
                    write(Operand::Dst, *rows, t.region(some))
                }
            };
            let mut touched = vec![
                entry.clone().into(),
                match slots {
                    // Which slots rows are was made of it.
                    Some(_) => tokens_of.clone().into(),
                    None => Source::behind(tokens_of.clone(), sources.built, vec![0.into()]),
                },
                match &here {
                    Some((here, word)) => Source::behind(src, *here, vec![word.clone()]),
                    None => src.into(),
                },
                dst.into(),
            ];
            if let Some((slots, (weights, weighed))) = slots {
                let slot = Expr::Table(slots.table, vec![row.clone() + Var::INNER]);
                let factor = read(Operand::W, weights, vec![one(listed.clone()), one(slot)]);
                let factor = weighted(factor, &exists);
                let chunk = listed.clone() % self.tokens / CHUNK;
                let word = listed.clone() / self.tokens * self.chunks.max(1) + chunk;
                touched.push(match weighed {
                    Some(weighed) => Source::behind(factor, weighed, vec![word]),
                    None => factor.into(),
                });
                let slots_of = read(Operand::Tab, slots.memory, of_block.clone());
                touched.push(Source::behind(slots_of, slots.built, vec![0.into()]));
            }
            if let Some(Tokens { wanted, .. }) = &tokens {
                let all = vec![whole(draft.ranks() * self.room())];
                let all = read(Operand::Tab, wanted.memory, all);
                touched.push(Source::behind(all, wanted.built, vec![0.into()]));
            }
            let (name, domain) = (t.name("pull"), vec![("b", self.count.into())]);
            let leaf = match slots {
                None => CopyVia::Gather.leaf(1),
                Some(_) => Leaf::ReduceTile(ReduceTile { epilogue: Vec::new() }),
            };
            let pull = draft.family(&name, RoleKind::Compute, leaf, domain, vec![], touched);
            if slots.is_some() {
                draft.plan.families[pull].inner = Some(("q".into(), BLOCK.into()));
            }
            // Of blocks without rows, too.
            arrived.push(Writer::new(pull, Operand::Dst, vec![b.clone()]));
        }
        let (shape, n) = (vec![self.count.into()], travel.len() as i32);
        let arrived = draft.flow(Flow::new("arrived", shape, n.into(), arrived));
        Some((buffers[0], buffers.get(1).copied(), arrived))
    }
}
