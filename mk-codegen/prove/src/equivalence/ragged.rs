//! Ragged rows: which expert each has, in some launches, and their product with matrices of experts.
//!
//! The caller's counts say how many rows each expert has. Plan and pipeline are evaluated with the counts of a few
//! launches; rows without an expert are not compared. For all other counts the verifier shows that a plan touches no
//! other memory.

use super::{
    FieldError, Result,
    algebra::{Algebra, add_row_times},
    cells::{Cells, Lines},
    dims::{Counts, Dims, Tensor},
    routings::Room,
};
use mk_plan::{Axis, Plan, RoutePart, Space, TabId, TableSet, TableSource};
use mk_syntax::{Bound, Node, Op, Placement, Program, RAGGED_BLOCK, ValueId};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Forms of routings; as many launches are looked at, at least.
const LAUNCHES: usize = 3;
/// Launches, where there are few tokens: in each of them few entries of tables, and flags, differ from their
/// neighbours.
const MANY_LAUNCHES: usize = 12;
/// Forms of documents.
const DOCUMENTS: usize = 4;
/// Documents that have tokens, of any number.
const MOST_DOCUMENTS: usize = 48;
/// How many tokens are few.
const FEW_TOKENS: usize = 512;

/// Tables of some launches, with the counts of each.
///
/// # Errors
/// Where no routing of all tokens fits.
pub(super) fn launches(
    plan: &Plan,
    program: &Program,
    bound: &Bound,
) -> Result<Vec<(TableSet, Counts)>> {
    let given = |id: TabId| given(plan, program, id);
    let rooms = rooms(plan, program, bound)?;
    let tokens: usize = rooms.values().map(|room| room.tokens.iter().sum::<usize>()).sum();
    let n = match (plan.tables.is_empty(), rooms.is_empty()) {
        (true, _) => 1,
        (_, false) if tokens <= FEW_TOKENS => MANY_LAUNCHES,
        _ if plan.tables.keys().any(|id| mk_plan::tokens(plan, id).is_some()) => DOCUMENTS,
        _ => LAUNCHES,
    };
    let over = over(plan, program);
    let launch = |launch: usize| {
        let example = TableSet::example(plan);
        let route = |(id, room): (&TabId, &Room)| Some((*id, room.routing(launch)?));
        let routes: BTreeMap<TabId, Vec<Vec<i32>>> =
            rooms.iter().map(route).collect::<Option<_>>()?;
        let counts = |rank: usize, id: TabId| {
            // Of several groups, each has the same: of some of them tokens may be the same.
            let rank = over.place(rank);
            if let Some(ids) = routes.get(&id) {
                return ids[rank].clone();
            }
            let even = example.values(rank, id);
            let (Some(tensor), TableSource::Runtime { max, .. }) =
                (given(id), &plan.tables[id].source)
            else {
                return even.to_vec();
            };
            if let Some(tokens) = mk_plan::tokens(plan, id) {
                return documents(even.len(), tokens, launch);
            }
            // Ranks that have the same experts have the same counts.
            let sharded = tensor.ty.placement.iter().any(|p| *p != Placement::Replicate);
            let rank = if sharded { rank } else { 0 };
            uneven(even, room(plan, id), *max, launch + rank)
        };
        // Not all that is uneven fits.
        let set = TableSet::routed(plan, counts).ok()?;
        if let Some((rank, why)) = set.refused(plan).filter(|_| !rooms.is_empty()) {
            let what = format!("no launch with this routing on rank {rank}: {why}");
            return Some(Err(FieldError::Interface { what }));
        }
        let of_table = |id: TabId| {
            let ranks = (0..over.size as usize).map(|place| over.rank(0, place));
            let values = ranks.map(|rank| set.values(rank, id).to_vec()).collect();
            Some((given(id)?.id, values))
        };
        let counts = plan.tables.keys().filter_map(of_table).collect();
        Some(Ok((set, counts)))
    };
    (0..n).filter_map(launch).collect()
}

/// The ranks that share experts, by the pipeline: of a plan over one axis, all of it.
fn over(plan: &Plan, program: &Program) -> Axis {
    let name = program.axis_of_experts().and_then(|axis| program.mesh_axes().get(axis));
    let axis = name.and_then(|name| plan.mesh.axis(name));
    axis.unwrap_or(Axis { stride: 1, size: plan.mesh.size() })
}

/// The caller's tensor that is a table.
fn given<'p>(plan: &Plan, program: &'p Program, id: TabId) -> Option<&'p mk_syntax::Tensor> {
    let buffer = &plan.buffers[plan.tables[id].stored?];
    let tensor = program.tensor(&buffer.name)?;
    (buffer.space == Space::In).then_some(tensor)
}

/// What there is to route, by the tables of tokens' experts.
///
/// # Errors
/// [`FieldError::Room`] where no routing of all tokens fits.
pub(super) fn rooms(
    plan: &Plan,
    program: &Program,
    bound: &Bound,
) -> Result<BTreeMap<TabId, Room>> {
    let ranks = over(plan, program).size as usize;
    let tokens = |rank: usize, id: TabId| {
        let dims = &given(plan, program, id)?.ty.dims;
        let extent = dims.first().and_then(|d| bound.dim(*d))? as usize;
        let own = extent.div_ceil(ranks.max(1));
        Some(extent.saturating_sub(rank * own).min(own))
    };
    let mut rooms = BTreeMap::new();
    for id in plan.tables.keys() {
        let tokens = (0..ranks).map(|rank| tokens(rank, id).unwrap_or(0)).collect();
        let Some(room) = to_route(plan, id, tokens) else { continue };
        if room.needed() > room.most() {
            return Err(FieldError::Room { needed: room.needed(), most: room.most() });
        }
        rooms.insert(id, room);
    }
    Ok(rooms)
}

/// What there is to route, of a table of the experts of tokens.
fn to_route(plan: &Plan, ids: TabId, tokens: Vec<usize>) -> Option<Room> {
    let routed = plan.tables.values().filter_map(|t| t.routed).find(|r| r.ids == ids)?;
    let TableSource::Runtime { max, .. } = plan.tables[ids].source else { return None };
    let [slots, experts] = [*plan.tables[ids].shape.get(1)? as usize, max as usize + 1];
    let counts = |of: &TabId| plan.tables[*of].routed.map(|r| (r.ids, r.part));
    let blocks = plan.tables.values().find_map(|t| match &t.source {
        TableSource::Blocks { of, .. } if counts(of) == Some((ids, RoutePart::Counts)) => {
            t.shape.first().map(|n| *n as usize)
        }
        _ => None,
    });
    let keep = routed.keep.max(0) as usize;
    // Where rows are dropped, those that are kept have room.
    let blocks = blocks.filter(|_| keep == 0).map(|n| (routed.rows.max(1) as usize, n));
    Some(Room { tokens, slots, experts, blocks, keep })
}

/// Blocks for the rows that a table counts.
fn room(plan: &Plan, counts: TabId) -> i32 {
    let blocks = plan.tables.values().filter_map(|t| match t.source {
        TableSource::Blocks { of, .. } if of == counts => t.shape.first().copied(),
        _ => None,
    });
    blocks.min().map_or(i32::MAX, |n| n as i32)
}

/// Where documents begin, by turns: evenly; one among empty ones; single tokens, and one document of the others; of
/// uneven lengths, some of them empty, with tokens left over. Some of them, however many there may be: all others are
/// empty.
fn documents(entries: usize, tokens: i32, turn: usize) -> Vec<i32> {
    let last = entries.saturating_sub(1).min(MOST_DOCUMENTS);
    let at = |i: usize| i32::try_from(i).unwrap_or(i32::MAX);
    let even = |i: usize| (i as i64 * i64::from(tokens) / last.max(1) as i64) as i32;
    // Of uneven ones tokens are left over.
    let end = if turn % DOCUMENTS == 3 { tokens - tokens.min(3) } else { tokens };
    let begin = |i: usize| match turn % DOCUMENTS {
        _ if i == 0 => 0,
        _ if i >= last => end,
        0 => even(i),
        1 if i <= last / 2 => 0,
        1 => end,
        2 => at(i).min(end),
        _ => {
            let of = if i % 4 == 2 { i - 1 } else { i };
            (even(of) - 5 * at(of % 7)).clamp(0, end)
        }
    };
    let mut most = 0;
    let ascending = |i: usize| {
        most = most.max(begin(i));
        most
    };
    (0..entries).map(ascending).collect()
}

/// As even, all in one expert, or some of them empty, by turns.
fn uneven(even: &[i32], mut room: i32, max: i32, turn: usize) -> Vec<i32> {
    let block = RAGGED_BLOCK as i32;
    let n = even.len();
    match turn % LAUNCHES {
        0 => even.to_vec(),
        1 => {
            let whole = room.saturating_mul(block).min(max);
            (0..n).map(|i| if i == turn / LAUNCHES % n.max(1) { whole } else { 0 }).collect()
        }
        _ => (0..n)
            .map(|i| {
                let blocks =
                    if (i + turn).is_multiple_of(2) { 0 } else { (1 + i as i32 % 3).min(room) };
                room -= blocks;
                (blocks * block - 1 - 5 * i as i32 % block).clamp(0, max)
            })
            .collect(),
    }
}

impl Dims<'_> {
    /// The counts of a value that is ragged rows.
    pub fn counts(&self, value: ValueId) -> Option<ValueId> {
        let mut at = value;
        loop {
            let node = match self.program.def(at)? {
                mk_syntax::Def::Node(node) => node,
                mk_syntax::Def::Param(_) => return None,
            };
            match node.op {
                Op::GroupedGemm { .. } => return node.inputs.get(2).copied(),
                Op::Dispatch { .. } | Op::DispatchFactors | Op::Weigh => {
                    return node.inputs.get(1).copied();
                }
                Op::Quantize(_) | Op::Dequantize(_) | Op::Factor(_) => at = *node.inputs.first()?,
                op if op.is_elementwise() || matches!(op, Op::Swiglu | Op::SwigluGrad) => {
                    at = *node.inputs.first()?
                }
                _ => return None,
            }
        }
    }

    /// The expert of each row of all ranks, where it has one; `None` for a value that is not ragged.
    pub fn experts(&self, value: ValueId) -> Option<Vec<Option<i32>>> {
        self.experts_by(self.counts(value)?, value)
    }

    /// The dimension that rows lie along: of factors of their blocks the last.
    pub fn rows_along(&self, value: ValueId) -> usize {
        match self.program.def(value) {
            Some(mk_syntax::Def::Node(n))
                if matches!(n.op, Op::Factor(_) | Op::DispatchFactors) =>
            {
                1
            }
            _ => 0,
        }
    }

    /// The ranks among which rows are shared, by counts or a route.
    fn sharing(&self, of: ValueId) -> usize {
        let along = self.placements(of).iter().position(|p| *p == Placement::Shard(0));
        along.map_or(1, |axis| self.along(axis).1)
    }

    /// The same of a value whose rows are whose these counts, or this route, say.
    fn experts_by(&self, of: ValueId, value: ValueId) -> Option<Vec<Option<i32>>> {
        if let Some(packed) = self.packed(of) {
            return Some(packed.into_iter().map(|row| Some(row?.0)).collect());
        }
        let along = self.rows_along(value);
        let (counts, rows) = (self.ragged.get(&of)?, self.extent(value, along) as usize);
        let block = RAGGED_BLOCK as usize;
        let ranks = self.sharing(of);
        let mut all = vec![None; rows];
        for (rank, counts) in counts.iter().take(ranks).enumerate() {
            let mut at = rank * (rows / ranks);
            for (e, n) in counts.iter().enumerate() {
                let n = (*n).max(0) as usize;
                let expert = (rank * counts.len() + e) as i32;
                let end = (at + n).min(rows);
                all[at.min(end)..end].fill(Some(expert));
                at += n.div_ceil(block) * block;
            }
        }
        Some(all)
    }

    /// Expert and token of each packed row of all ranks, by the experts of tokens; `None` for rows of each expert.
    pub fn packed(&self, ids: ValueId) -> Option<Vec<Option<(i32, i32)>>> {
        let nodes = || self.program.nodes().iter();
        let is_route = self.program.ty(ids).is_some_and(|ty| ty.dims.len() == 2);
        let product = nodes().find(|n| {
            matches!(n.op, Op::GroupedGemm { .. } | Op::GroupedWgrad)
                && n.inputs.get(2) == Some(&ids)
        })?;
        let product = Some(product).filter(|_| is_route)?;
        let (rows, slots) = (self.extent(product.inputs[0], 0) as usize, self.extent(ids, 1));
        let of_world = match product.op {
            Op::GroupedWgrad => self.extent(product.result, 0),
            _ => self.extent(product.inputs[1], 0),
        } as usize;
        let ranks = self.sharing(ids);
        let own = of_world.div_ceil(ranks);
        let experts: Vec<i32> = self.ragged.get(&ids)?.concat();
        let (each, block) = (rows / ranks, RAGGED_BLOCK as usize);
        // Those that are kept of each expert.
        let keep = match self.program.drops(ids) {
            true => each / block / own.max(1) * block,
            false => usize::MAX,
        };
        // Tokens of each expert, in order, each once.
        let mut tokens = vec![Vec::new(); of_world];
        for (token, of_token) in experts.chunks(slots.max(1) as usize).enumerate() {
            for e in of_token {
                let of_expert = usize::try_from(*e).ok().and_then(|e| tokens.get_mut(e));
                if let Some(list) = of_expert.filter(|list| list.last() != Some(&(token as i32))) {
                    list.push(token as i32);
                }
            }
        }
        let mut all = vec![None; rows];
        for rank in 0..ranks {
            let mut at = 0usize;
            for (e, tokens) in tokens.iter().enumerate().skip(rank * own).take(own) {
                let end = at.saturating_add(keep).min(each);
                let kept = tokens.len().min(end.saturating_sub(at));
                for (row, token) in all[rank * each + at..].iter_mut().zip(&tokens[..kept]) {
                    *row = Some((e as i32, *token));
                }
                at += kept;
                at = at.next_multiple_of(block);
            }
        }
        Some(all)
    }

    /// How many rows of the tokens at a place have none of those that are kept.
    pub fn dropped(&self, ids: ValueId, place: usize) -> i32 {
        let along = self.placements(ids).iter().position(|p| *p == Placement::Shard(0));
        let (stride, ranks) = along.map_or((1, 1), |axis| self.along(axis));
        let kept: BTreeSet<(i32, i32)> =
            self.packed(ids).unwrap_or_default().into_iter().flatten().collect();
        let (Some(named), slots) = (self.ragged.get(&ids), self.extent(ids, 1).max(1) as usize)
        else {
            return 0;
        };
        let own = place / stride % ranks;
        let first: usize = named.iter().take(own).map(|ids| ids.len() / slots).sum();
        let ids = named.get(own).map_or(&[][..], Vec::as_slice);
        let lost =
            |(i, e): (usize, &i32)| *e >= 0 && !kept.contains(&(*e, (first + i / slots) as i32));
        ids.iter().enumerate().filter(|x| lost(*x)).count() as i32
    }

    /// Cuts tokens, and the rows that they are.
    pub(super) fn cut_tokens(&self, node: &Node, lines: &mut Lines) {
        let (x, made) = (node.inputs[0], node.result);
        let weights = |of: ValueId| [(of, 0), (of, 1)];
        let all = match node.op {
            Op::Combine => [vec![(x, 0), (made, 0)], weights(node.inputs[2]).to_vec()].concat(),
            Op::CombineGrad | Op::WeighGrad => {
                vec![(x, 0), (node.inputs[2], 0), (made, 0), (made, 1)]
            }
            Op::DispatchFactors => vec![(x, 1), (made, 1)],
            _ => {
                let others = node.inputs.iter().skip(2).flat_map(|of| weights(*of));
                [(x, 0), (made, 0)].into_iter().chain(others).collect()
            }
        };
        for (value, d) in all {
            let line = self.line(value, d);
            (1..self.extent(value, d)).for_each(|i| lines.cut(line, i as i32));
        }
    }

    /// The experts that each token names, and how many those are.
    fn named(&self, ids: ValueId) -> (Vec<i32>, usize) {
        let experts = self.ragged.get(&ids).map(|of_ranks| of_ranks.concat()).unwrap_or_default();
        (experts, self.extent(ids, 1).max(1) as usize)
    }

    /// Cuts the rows of a product where an expert's begin and end, and experts from each other.
    pub(super) fn cut_experts(&self, node: &Node, lines: &mut Lines) {
        let wgrad = node.op == Op::GroupedWgrad;
        let (rows, matrices) = match wgrad {
            true => (node.inputs[0], node.result),
            false => (node.result, node.inputs[1]),
        };
        let experts = node.inputs.get(2).and_then(|of| self.experts_by(*of, rows));
        let Some(experts) = experts else { return };
        let row = self.line(rows, 0);
        for (i, pair) in experts.windows(2).enumerate() {
            if pair[0] != pair[1] {
                lines.cut(row, i as i32 + 1);
            }
        }
        let line = self.line(matrices, 0);
        (1..self.extent(matrices, 0)).for_each(|e| lines.cut(line, e as i32));
    }
}

/// The row of each expert and token that has one.
fn packed_rows(dims: &Dims<'_>, ids: ValueId) -> BTreeMap<(i32, i32), i32> {
    let packed = dims.packed(ids).unwrap_or_default();
    packed.into_iter().enumerate().filter_map(|(row, of)| Some((of?, row as i32))).collect()
}

/// An operation on rows of experts, which is evaluated.
pub(super) struct Rows<'e, A> {
    pub algebra: &'e mut A,
    pub dims: &'e Dims<'e>,
    pub cells: &'e Cells,
    pub node: &'e Node,
}

impl<A: Algebra> Rows<'_, A> {
    /// What it makes of its operands, which all ranks have; `None` for other operations.
    pub fn made(self, of: &[&Tensor<A::Elem>]) -> Option<Tensor<A::Elem>> {
        Some(match (self.node.op, of) {
            (Op::GroupedWgrad, [x, dy, ..]) => self.wgrad([x, dy]),
            (Op::Bias, [x, c]) if self.dims.experts(self.node.result).is_some() => {
                self.biased([x, c])
            }
            (Op::Dispatch { .. }, [x, _, weights @ ..]) => {
                self.dispatched((x, weights.first().copied()))
            }
            (Op::DispatchFactors, [x, ..]) => self.factors_dispatched(x),
            (Op::Weigh, [x, _, weights]) => self.weighed([x, weights]),
            _ => return None,
        })
    }

    /// Each row times the matrix of its expert, as far as K is in a part of it; rows of none have no value.
    pub fn product(self, [x, w]: [&Tensor<A::Elem>; 2], part: Range<usize>) -> Tensor<A::Elem> {
        let Rows { algebra, dims, cells, node } = self;
        let experts = dims.experts(node.result).unwrap_or_default();
        let (row, expert) = (dims.line(node.result, 0), dims.line(node.inputs[1], 0));
        let transposed = node.op == (Op::GroupedGemm { transposed: true });
        let behind = if transposed { w.shape.len() + 1 - x.shape.len() } else { 2 };
        let [first, others] = [&w.shape[1..behind], &w.shape[behind..]].map(|s| s.iter().product());
        let (depth, columns): (usize, usize) =
            if transposed { (others, first) } else { (first, others) };
        let (mut data, mut sums) = (vec![A::ZERO; x.shape[0] * columns], Vec::new());
        for (i, out) in data.chunks_mut(columns.max(1)).enumerate() {
            if algebra.spent() {
                break;
            }
            let Some(Some(e)) = experts.get(cells.original(row, i) as usize) else { continue };
            let matrix = &w.data[cells.at(expert, *e) * depth * columns..];
            let row = x.data[i * depth..][..depth].iter().copied().enumerate();
            let row = row.skip(part.start).take(part.len());
            let right = |l, j| matrix[if transposed { j * depth + l } else { l * columns + j }];
            add_row_times(algebra, out, &mut sums, row, right);
        }
        let columns = if transposed { &w.shape[1..behind] } else { &w.shape[2..] };
        Tensor { shape: [&x.shape[..1], columns].concat(), data }
    }

    /// Each row, and the vector of its expert; rows of none have no value.
    fn biased(self, [x, vectors]: [&Tensor<A::Elem>; 2]) -> Tensor<A::Elem> {
        let Rows { algebra, dims, cells, node } = self;
        let experts = dims.experts(node.result).unwrap_or_default();
        let (row, expert) = (dims.line(node.result, 0), dims.line(node.inputs[1], 0));
        let columns = x.shape[1..].iter().product::<usize>();
        let mut data = x.data.clone();
        for (i, out) in data.chunks_mut(columns.max(1)).enumerate() {
            let Some(Some(e)) = experts.get(cells.original(row, i) as usize) else { continue };
            let vector = &vectors.data[cells.at(expert, *e) * columns..];
            out.iter_mut().zip(vector).for_each(|(x, y)| *x = algebra.add(*x, *y));
        }
        Tensor { shape: x.shape.clone(), data }
    }

    /// Of each expert its rows, the other way round, times gradients of theirs.
    fn wgrad(self, [x, dy]: [&Tensor<A::Elem>; 2]) -> Tensor<A::Elem> {
        let Rows { algebra, dims, cells, node } = self;
        let experts = node.inputs.get(2).and_then(|of| dims.experts_by(*of, node.inputs[0]));
        let experts = experts.unwrap_or_default();
        let (row, expert) = (dims.line(node.inputs[0], 0), dims.line(node.result, 0));
        let (k, columns) = (x.shape[1], dy.shape[1..].iter().product::<usize>());
        let count = cells.extent(expert);
        let mut data = vec![A::ZERO; count * k * columns];
        for i in 0..x.shape[0] {
            if algebra.spent() {
                break;
            }
            let Some(Some(e)) = experts.get(cells.original(row, i) as usize) else { continue };
            let matrix = &mut data[cells.at(expert, *e) * k * columns..][..k * columns];
            for (l, sums) in matrix.chunks_mut(columns.max(1)).enumerate() {
                let left = x.data[i * k + l];
                for (sum, right) in sums.iter_mut().zip(&dy.data[i * columns..]) {
                    algebra.add_mul(sum, left, *right);
                }
            }
        }
        Tensor { shape: [&[count, k], &dy.shape[1..]].concat(), data }
    }

    /// Each packed row is a token, times the weight of its slot where there are weights; rows of none have no value.
    fn dispatched(
        self,
        (x, weights): (&Tensor<A::Elem>, Option<&Tensor<A::Elem>>),
    ) -> Tensor<A::Elem> {
        let Rows { algebra, dims, cells, node } = self;
        let (experts, slots) = dims.named(node.inputs[1]);
        let packed = dims.packed(node.inputs[1]).unwrap_or_default();
        let (row, token) = (dims.line(node.result, 0), dims.line(node.inputs[0], 0));
        let columns = x.shape[1];
        let rows = cells.extent(row);
        let mut data = vec![A::ZERO; rows * columns];
        for (i, out) in data.chunks_mut(columns.max(1)).enumerate() {
            let Some(Some((e, t))) = packed.get(cells.original(row, i) as usize) else { continue };
            out.copy_from_slice(&x.data[cells.at(token, *t) * columns..][..columns]);
            let Some(weights) = weights else { continue };
            let of_token = experts.chunks(slots).nth(*t as usize).unwrap_or_default();
            let Some(j) = of_token.iter().position(|id| id == e) else { continue };
            let [line, slot] = [0, 1].map(|d| dims.line(node.inputs[2], d));
            let at = cells.at(line, *t) * weights.shape[1] + cells.at(slot, j as i32);
            out.iter_mut().for_each(|x| *x = algebra.mul(*x, weights.data[at]));
        }
        Tensor { shape: vec![rows, columns], data }
    }

    /// Each packed row times the weight of its token's slot; rows of none have no value.
    fn weighed(self, [x, weights]: [&Tensor<A::Elem>; 2]) -> Tensor<A::Elem> {
        let Rows { algebra, dims, cells, node } = self;
        let (experts, slots) = dims.named(node.inputs[1]);
        let packed = dims.packed(node.inputs[1]).unwrap_or_default();
        let row = dims.line(node.result, 0);
        let [line, slot] = [0, 1].map(|d| dims.line(node.inputs[2], d));
        let columns = x.shape[1];
        let mut data = vec![A::ZERO; x.data.len()];
        for (i, out) in data.chunks_mut(columns.max(1)).enumerate() {
            let Some(Some((e, t))) = packed.get(cells.original(row, i) as usize) else { continue };
            let of_token = experts.chunks(slots).nth(*t as usize).unwrap_or_default();
            let Some(j) = of_token.iter().position(|id| id == e) else { continue };
            let at = cells.at(line, *t) * weights.shape[1] + cells.at(slot, j as i32);
            let from = &x.data[i * columns..];
            out.iter_mut().zip(from).for_each(|(y, x)| *y = algebra.mul(*x, weights.data[at]));
        }
        Tensor { shape: x.shape.clone(), data }
    }

    /// The factors of each packed row's token, `[blocks, rows]`; rows of none have no value.
    fn factors_dispatched(self, x: &Tensor<A::Elem>) -> Tensor<A::Elem> {
        let Rows { dims, cells, node, .. } = self;
        let packed = dims.packed(node.inputs[1]).unwrap_or_default();
        let (row, token) = (dims.line(node.result, 1), dims.line(node.inputs[0], 1));
        let (blocks, tokens, rows) = (x.shape[0], x.shape[1], cells.extent(row));
        let mut data = vec![A::ZERO; blocks * rows];
        for i in 0..rows {
            let Some(Some((_, t))) = packed.get(cells.original(row, i) as usize) else { continue };
            let from = cells.at(token, *t);
            (0..blocks).for_each(|b| data[b * rows + i] = x.data[b * tokens + from]);
        }
        Tensor { shape: vec![blocks, rows], data }
    }

    /// Of each slot the product of its row and its token's, or of its two rows; 0 where it has no row.
    pub fn products(self, [y, dy]: [&Tensor<A::Elem>; 2]) -> Tensor<A::Elem> {
        let Rows { algebra, dims, cells, node } = self;
        let ids = node.inputs[1];
        let rows = packed_rows(dims, ids);
        let (experts, slots) = dims.named(ids);
        let [token, slot] = [0, 1].map(|d| dims.line(node.result, d));
        let [row, of_dy] = [node.inputs[0], node.inputs[2]].map(|of| dims.line(of, 0));
        let columns = y.shape[1];
        let [tokens, wide] = [token, slot].map(|line| cells.extent(line));
        let mut data = vec![A::ZERO; tokens * wide];
        for (i, out) in data.iter_mut().enumerate() {
            let (t, j) = (cells.original(token, i / wide), cells.original(slot, i % wide));
            let of_token = experts.chunks(slots).nth(t as usize).unwrap_or_default();
            let from = of_token.get(j as usize).and_then(|e| rows.get(&(*e, t as i32)));
            let Some(from) = from else { continue };
            let left = &y.data[cells.at(row, *from) * columns..][..columns];
            let other = if node.op == Op::WeighGrad { *from } else { t as i32 };
            let right = &dy.data[cells.at(of_dy, other) * columns..][..columns];
            for (x, y) in left.iter().zip(right) {
                algebra.add_mul(out, *x, *y);
            }
        }
        Tensor { shape: vec![tokens, wide], data }
    }

    /// Of each token the sum of its rows, each times its weight.
    pub fn combined(self, [y, weights]: [&Tensor<A::Elem>; 2]) -> Tensor<A::Elem> {
        let Rows { algebra, dims, cells, node } = self;
        let ids = node.inputs[1];
        let rows = packed_rows(dims, ids);
        let (experts, slots) = dims.named(ids);
        let (row, token) = (dims.line(node.inputs[0], 0), dims.line(node.result, 0));
        let [weight, slot] = [0, 1].map(|d| dims.line(node.inputs[2], d));
        let columns = y.shape[1];
        let tokens = cells.extent(token);
        let mut data = vec![A::ZERO; tokens * columns];
        for (i, out) in data.chunks_mut(columns.max(1)).enumerate() {
            let t = cells.original(token, i);
            let of_token = experts.chunks(slots).nth(t as usize).unwrap_or_default();
            for (j, e) in of_token.iter().enumerate() {
                let Some(from) = rows.get(&(*e, t as i32)) else { continue };
                let at = cells.at(weight, t as i32) * weights.shape[1] + cells.at(slot, j as i32);
                let from = &y.data[cells.at(row, *from) * columns..][..columns];
                for (sum, y) in out.iter_mut().zip(from) {
                    algebra.add_mul(sum, *y, weights.data[at]);
                }
            }
        }
        Tensor { shape: vec![tokens, columns], data }
    }
}

#[cfg(test)]
mod tests {
    use super::documents;

    #[test]
    fn documents_ascend_and_differ() {
        for (entries, tokens) in [(1, 9), (2, 9), (9, 100), (130, 129), (5000, 300), (9, 1)] {
            let forms = [0, 1, 2, 3].map(|turn| documents(entries, tokens, turn));
            for begins in &forms {
                assert!(begins.len() == entries && begins[0] == 0 && begins.is_sorted());
                assert!(begins.last().is_some_and(|end| *end <= tokens), "{begins:?}");
            }
            let three = forms[..3].iter().all(|b| entries == 1 || b.last() == Some(&tokens));
            assert!(three, "{forms:?}");
        }
        assert_eq!(documents(4, 12, 0), [0, 4, 8, 12]);
        assert_eq!(documents(4, 12, 1), [0, 0, 12, 12]);
        assert_eq!(documents(4, 12, 2), [0, 1, 2, 12]);
    }
}
