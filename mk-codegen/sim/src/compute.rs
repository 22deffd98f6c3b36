//! What leaves compute: consumers take what the loader brought, and every store asks for its values.

use super::{
    context::{Context, Phase, Piece, misfit},
    error::SimError,
    math::{
        Attention, AttentionStep, Block, Gradients, Tile, apply, multiply_add, statistics,
        transpose,
    },
    memory::within,
};
use mk_abi::DType;
use mk_plan::{
    ALayout, BLayout, EPILOGUE_OPERANDS, EpilogueOp, Factors, Family, GradOf, Leaf, Mask, Operand,
    Point, Region, RouteError, RoutePart, Tabulation, block_table, cluster_part, gated, kept,
    listed, own_experts, route_bases, route_list, route_places, route_sources, route_wanted,
    saves_gates,
};

/// What attention needs to know in one phase besides its operands.
#[derive(Clone, Copy)]
pub(super) struct Attends {
    /// Places in the sequence of the first query and the first key, if they mask.
    pub at: Option<[i64; 2]>,
    /// Type of queries, and so of probabilities.
    pub kind: Option<DType>,
}

/// The arithmetic of a task's consumers in one phase.
pub(super) fn consume(
    family: &Family,
    context: &mut Context,
    point: Point,
    phase: Phase,
    attends: Attends,
) -> Result<(), SimError> {
    let moving: &[Operand] = match &family.leaf {
        Leaf::MmaTile { .. } => &[Operand::A, Operand::B],
        Leaf::AttendTile { .. } => &[Operand::K, Operand::V],
        Leaf::AttendGradTile { of, .. } => of.moving(),
        _ => return Ok(()),
    };
    // The arithmetic is where the latest of these operands is.
    let theirs = family.accesses.iter().filter(|a| moving.contains(&a.operand));
    if theirs.map(|a| a.at).max() != Some(point) {
        return Ok(());
    }
    let step = |scale: u32, mask: Mask| AttentionStep {
        scale: f32::from_bits(scale),
        // The first query sees this many keys, and each one after it one more.
        seen: attends.at.filter(|_| mask == Mask::Causal).map(|[q, k]| q - k + 1),
        probabilities: attends.kind.unwrap_or(DType::Bf16),
    };
    match &family.leaf {
        Leaf::MmaTile { block, a_layout, b_layout, cluster, epilogue, .. } => {
            let parts = (*cluster, block[2]);
            multiply(context, *a_layout, *b_layout, gated(epilogue), parts, phase)?;
        }
        Leaf::AttendTile { scale, mask, .. } => attend(context, step(*scale, *mask), phase)?,
        Leaf::AttendGradTile { of, scale, mask, .. } => {
            differentiate(context, *of, step(*scale, *mask), phase)?;
        }
        _ => {}
    }
    context.forget(moving, phase);
    Ok(())
}

fn multiply(
    context: &mut Context,
    a_layout: ALayout,
    b_layout: BLayout,
    gated: bool,
    (parts, step): (u32, u32),
    phase: Phase,
) -> Result<(), SimError> {
    let mut sum = context.sum.take();
    if let (Some(a), Some(b)) =
        (context.latest(Operand::A, phase), context.latest(Operand::B, phase))
    {
        let (turned_a, turned_b);
        let a = if a_layout == ALayout::Km {
            turned_a = transpose(a);
            &turned_a
        } else {
            a
        };
        let b = if b_layout == BLayout::Nk {
            turned_b = transpose(b);
            &turned_b
        } else if gated {
            // `[k, 2, n]`: gates and ups side by side.
            turned_b = Tile { rows: b.rows / 2, cols: b.cols * 2, data: b.data.clone() };
            &turned_b
        } else {
            b
        };
        if a.cols != b.rows {
            return Err(misfit(format!(
                "`a` is {}x{} and `b` {}x{}",
                a.rows, a.cols, b.rows, b.cols
            )));
        }
        let c = match &mut sum {
            Some(c) => c,
            None => {
                within("elements of one tile", (a.rows * b.cols) as u64)?;
                sum.insert(Tile::zeros(a.rows, b.cols))
            }
        };
        if (c.rows, c.cols) != (a.rows, b.cols) {
            return Err(misfit("the tile changes its shape between steps"));
        }
        multiply_in_parts(c, a, b, parts, step);
    }
    context.sum = sum;
    Ok(())
}

/// `c += a * b`: each part of the steps along k is a sum of its own, and these are added in the order of k.
fn multiply_in_parts(c: &mut Tile, a: &Tile, b: &Tile, parts: u32, step: u32) {
    if parts <= 1 {
        return multiply_add(c, a, b);
    }
    let step = step.max(1) as usize;
    let steps = a.cols.div_ceil(step) as i64;
    let at = |part: u32| cluster_part(steps, part.into(), parts.into()) as usize * step;
    for part in 0..parts {
        let (from, to) = (at(part).min(a.cols), at(part + 1).min(a.cols));
        let mut columns = Tile::zeros(a.rows, to - from);
        for row in 0..a.rows {
            let source = &a.row(row)[from..to];
            columns.data[row * (to - from)..(row + 1) * (to - from)].copy_from_slice(source);
        }
        let rows = Tile {
            rows: to - from,
            cols: b.cols,
            data: b.data[from * b.cols..to * b.cols].to_vec(),
        };
        let mut sum = Tile::zeros(c.rows, c.cols);
        multiply_add(&mut sum, &columns, &rows);
        c.data.iter_mut().zip(&sum.data).for_each(|(c, s)| *c += s);
    }
}

fn attend(context: &mut Context, step: AttentionStep, phase: Phase) -> Result<(), SimError> {
    let mut state = carried(context, phase)?;
    if let (Some(q), Some(k), Some(v)) = (
        context.latest(Operand::Q, phase),
        context.latest(Operand::K, phase),
        context.latest(Operand::V, phase),
    ) {
        within("elements of one tile", (q.rows * v.cols) as u64)?;
        let state = state.get_or_insert_with(|| Attention::new(q.rows, v.cols));
        let acc = (state.acc.rows, state.acc.cols);
        if q.cols != k.cols || k.rows != v.rows || acc != (q.rows, v.cols) {
            return Err(misfit(format!(
                "queries {}x{}, keys {}x{}, values {}x{}, accumulator {}x{}",
                q.rows, q.cols, k.rows, k.cols, v.rows, v.cols, acc.0, acc.1
            )));
        }
        state.step(q, k, v, step);
    }
    context.attention = state;
    Ok(())
}

fn differentiate(
    context: &mut Context,
    of: GradOf,
    step: AttentionStep,
    phase: Phase,
) -> Result<(), SimError> {
    let mut sums = context.gradients.take();
    let all = [Operand::Q, Operand::Do, Operand::Stats, Operand::K, Operand::V];
    if let [Some(q), Some(d_o), Some(stats), Some(k), Some(v)] =
        all.map(|o| context.latest(o, phase))
    {
        let block = Block { q, d_o, stats, k, v };
        if !block.fits() {
            let shapes = [q, d_o, stats, k, v].map(|t| format!("{}x{}", t.rows, t.cols));
            return Err(misfit(format!(
                "queries, gradients, statistics, keys and values are {}",
                shapes.join(", ")
            )));
        }
        within("elements of one tile", (q.rows.max(k.rows) * k.cols) as u64)?;
        let sums = sums.get_or_insert_with(|| match of {
            GradOf::Queries => Gradients::Queries(Tile::zeros(q.rows, q.cols)),
            GradOf::Keys => Gradients::Keys {
                keys: Tile::zeros(k.rows, k.cols),
                values: Tile::zeros(v.rows, v.cols),
            },
        });
        sums.step(block, step);
    }
    context.gradients = sums;
    Ok(())
}

/// Statistics of a task's queries.
fn counted(context: &Context, phase: Phase) -> Result<Vec<f32>, SimError> {
    let all = [Operand::O, Operand::Do, Operand::Lse].map(|o| context.latest(o, phase));
    let [Some(o), Some(d_o), Some(lse)] = all else { return Ok(Vec::new()) };
    if (o.rows, o.cols) != (d_o.rows, d_o.cols) || lse.data.len() != o.rows {
        return Err(misfit("results, their gradients and logarithms have as many rows"));
    }
    Ok(statistics(o, d_o, &lse.data))
}

/// The state of attention before a step: that of the step before, or what was read from scratch, or none.
fn carried(context: &mut Context, phase: Phase) -> Result<Option<Attention>, SimError> {
    if let Some(state) = context.attention.take() {
        return Ok(Some(state));
    }
    match (context.latest(Operand::AccIn, phase), context.latest(Operand::StatIn, phase)) {
        (None, None) => Ok(None),
        (Some(acc), Some(stat)) if stat.cols == 2 && stat.rows == acc.rows => {
            Ok(Some(Attention { acc: acc.clone(), stat: stat.clone() }))
        }
        _ => Err(misfit("`acc_in` is [rows, d] and `stat_in` [rows, 2], or both are absent")),
    }
}

/// The values of one access that writes, for each of its regions (with the value of `each`).
pub(super) fn values(
    family: &Family,
    context: &mut Context,
    operand: Operand,
    regions: Vec<(Option<i64>, Region)>,
    phase: Phase,
    last: Phase,
) -> Result<Vec<(Region, Vec<f32>)>, SimError> {
    match &family.leaf {
        Leaf::CopyTile { .. } | Leaf::HostCopy => copy(&context.sources(phase, last), regions),
        Leaf::ReduceTile { epilogue } => {
            let sum = reduce(family, context, &context.sources(phase, last))?;
            broadcast(regions, |r| finished(context, epilogue, sum.clone(), r, phase))
        }
        Leaf::MmaTile { epilogue, .. } => {
            broadcast(regions, |r| product(context, epilogue, operand, r, phase))
        }
        Leaf::AttendTile { .. } => {
            let state = carried(context, phase)?;
            context.attention = state;
            broadcast(regions, |r| {
                let (rows, cols) = matrix(r);
                // A logarithm is one number of a row.
                let (rows, cols) =
                    if operand == Operand::Lse { (r.len() as usize, 1) } else { (rows, cols) };
                let fresh = || Attention::new(rows, cols);
                let state = context.attention.clone().unwrap_or_else(fresh);
                Ok(match operand {
                    Operand::AccOut => state.acc.data,
                    Operand::StatOut => state.stat.data,
                    Operand::Lse => state.logarithms(),
                    _ => state.output().data,
                })
            })
        }
        Leaf::AttendGradTile { scale, .. } => broadcast(regions, |r| {
            let scale = f32::from_bits(*scale);
            let scaled = |sum: &Tile| sum.data.iter().map(|x| x * scale).collect();
            Ok(match (&context.gradients, operand) {
                (Some(Gradients::Queries(sum)), _) => scaled(sum),
                (Some(Gradients::Keys { keys, .. }), Operand::Dk) => scaled(keys),
                (Some(Gradients::Keys { values, .. }), _) => values.data.clone(),
                // Nothing meets it.
                (None, _) => vec![0.0; r.len() as usize],
            })
        }),
        Leaf::StatsTile { .. } => {
            let stats = counted(context, phase)?;
            broadcast(regions, |_| Ok(stats.clone()))
        }
        Leaf::Tabulate { of: Tabulation::Blocks { rows } } => {
            let counts: Vec<i32> = context.all(Operand::Src).flat_map(integers).collect();
            broadcast(regions, |r| {
                let blocks = (r.len() / 2) as usize;
                let table = block_table(&counts, *rows as i32, blocks);
                let table = table.map_err(|e| misfit(e.to_string()))?;
                Ok(table.into_iter().map(|x| x as f32).collect())
            })
        }
        Leaf::Tabulate { of: Tabulation::Route { part, experts, ranks, rows, blocks, keep } } => {
            let sources: Vec<(usize, Vec<i32>)> =
                context.all(Operand::Src).map(|t| (t.cols, integers(t).collect())).collect();
            let [count, ranks] = [*experts, *ranks].map(|n| n as usize);
            let none = Vec::new();
            let src = |i: usize| sources.get(i).map_or(&none, |s| &s.1).as_slice();
            let cols = |i: usize| sources.get(i).map_or(1, |s| s.0);
            let (rows, blocks, keep) = (*rows as i32, *blocks as usize, *keep as i32);
            let made = || family.accesses.iter().filter(|a| a.operand == Operand::Dst);
            broadcast(regions, |r| {
                let at = |d: usize| r.dims.get(d).map_or(0, |d| d.0.max(0)) as usize;
                let table = match part {
                    RoutePart::Lists => {
                        let experts = i32::try_from(count).unwrap_or(i32::MAX);
                        let first = context.first_row();
                        route_list(src(0), cols(0), experts, first, r.len() as usize)
                    }
                    RoutePart::Wanted => {
                        let own = own_experts(count, ranks);
                        Ok(route_wanted(src(0), cols(0), own, r.rank, r.len().max(0) as usize))
                    }
                    RoutePart::Counts => {
                        let bases =
                            route_bases(src(0), cols(0), count, ranks, (rows, keep), blocks);
                        let own = own_experts(count, ranks);
                        let of = |e: usize| {
                            let lists = src(0).chunks_exact(cols(0).max(1));
                            // The last rank may have fewer.
                            let e = Some(r.rank * own + e).filter(|e| *e < count);
                            kept(e.map_or(0, |e| lists.map(|l| listed(l, count, e)).sum()), keep)
                        };
                        let counts: Vec<i32> = (0..own).map(of).collect();
                        match made().position(|a| a.buffer == r.buffer) {
                            Some(0) => bases.map(|_| counts),
                            Some(1) => bases,
                            _ => block_table(&counts, rows, blocks).map_err(RouteError::Blocks),
                        }
                    }
                    RoutePart::Sources => {
                        let first = (at(0) / rows.max(1) as usize, rows.max(0) as usize);
                        let own = r.rank * own_experts(count, ranks);
                        Ok(route_sources(src(0), first, own, count, src(1), cols(1), src(2)))
                    }
                    RoutePart::Places => {
                        let of = (count, ranks, keep);
                        let (places, kept) =
                            route_places(src(0), cols(0), of, src(1), src(2), src(3));
                        Ok(if r.dims.len() == 2 { kept } else { places })
                    }
                    RoutePart::Kept => {
                        return Err(misfit("which rows are kept is made with the places"));
                    }
                };
                let table = table.map_err(|e| misfit(e.to_string()))?;
                Ok(table.into_iter().map(|x| x as f32).collect())
            })
        }
        Leaf::Signal | Leaf::Enter | Leaf::NicSend => Ok(Vec::new()),
    }
}

fn integers(tile: &Tile) -> impl Iterator<Item = i32> {
    tile.data.iter().map(|x| *x as i32)
}

/// Rows and columns of a region.
fn matrix(region: &Region) -> (usize, usize) {
    let cols = region.dims.last().map_or(1, |d| d.1.max(1));
    ((region.len() / cols) as usize, cols as usize)
}

fn fits(region: &Region, n: usize) -> Result<(), SimError> {
    if region.len() == n as i64 {
        return Ok(());
    }
    Err(misfit(format!(
        "{n} elements do not fill the region {:?} of {}",
        region.dims, region.buffer
    )))
}

/// The same values to every region.
fn broadcast(
    regions: Vec<(Option<i64>, Region)>,
    mut of: impl FnMut(&Region) -> Result<Vec<f32>, SimError>,
) -> Result<Vec<(Region, Vec<f32>)>, SimError> {
    let mut list = Vec::with_capacity(regions.len());
    for (_, region) in regions {
        let values = of(&region)?;
        fits(&region, values.len())?;
        list.push((region, values));
    }
    Ok(list)
}

fn concatenate<'p>(pieces: impl Iterator<Item = &'p &'p Piece>) -> Vec<f32> {
    pieces.flat_map(|p| p.tile.data.iter().copied()).collect()
}

/// Sources and destinations that both repeat are paired by the value of `each`; otherwise all sources, one after the
/// other, go to every destination.
fn copy(
    sources: &[&Piece],
    regions: Vec<(Option<i64>, Region)>,
) -> Result<Vec<(Region, Vec<f32>)>, SimError> {
    let paired = sources.iter().any(|p| p.each.is_some());
    let mut list = Vec::with_capacity(regions.len());
    for (each, region) in regions {
        let values = match each {
            Some(_) if paired => concatenate(sources.iter().filter(|p| p.each == each)),
            _ => concatenate(sources.iter()),
        };
        fits(&region, values.len())?;
        list.push((region, values));
    }
    Ok(list)
}

/// Sum in f32, in order, each source times its factor where there are factors.
fn reduce(family: &Family, context: &Context, sources: &[&Piece]) -> Result<Vec<f32>, SimError> {
    let mut sum: Option<Vec<f32>> = None;
    let factors = family.factors();
    for p in sources {
        let mut data = p.tile.data.clone();
        match (context.factor(p)?, factors) {
            (Some(factor), _) => data.iter_mut().for_each(|x| *x *= factor),
            (None, Factors::None) => {}
            (None, Factors::Some) => data.fill(0.0),
            (None, Factors::All) => return Err(misfit("a summand has no factor of one element")),
        }
        let Some(sum) = &mut sum else {
            sum = Some(data);
            continue;
        };
        if data.len() != sum.len() {
            return Err(misfit("the sources of a sum differ in size"));
        }
        sum.iter_mut().zip(&data).for_each(|(x, y)| *x += y);
    }
    Ok(sum.unwrap_or_default())
}

/// A sum with what is done to it before it is rounded.
fn finished(
    context: &Context,
    epilogue: &[EpilogueOp],
    sum: Vec<f32>,
    region: &Region,
    phase: Phase,
) -> Result<Vec<f32>, SimError> {
    let (rows, cols) = matrix(region);
    fits(region, sum.len())?;
    let mut tile = Tile { rows, cols, data: sum };
    let mut tails = EPILOGUE_OPERANDS.iter();
    for op in epilogue {
        apply_to(&mut tile, *op, &mut tails, context, phase)?;
    }
    Ok(tile.data)
}

/// Applies an operation, with the next operand if it has one.
fn apply_to<'o>(
    tile: &mut Tile,
    op: EpilogueOp,
    tails: &mut impl Iterator<Item = &'o Operand>,
    context: &Context,
    phase: Phase,
) -> Result<(), SimError> {
    let mut other = None;
    if op.operand().is_some() {
        let want = match op {
            EpilogueOp::Bias => tile.cols,
            _ => tile.data.len(),
        };
        let found = tails.next().and_then(|o| context.latest(*o, phase));
        other = found.filter(|t| t.data.len() == want);
        if other.is_none() {
            return Err(misfit(format!(
                "the operand of {op:?} must have {want} elements, and has {:?}",
                found.map(|t| t.data.len())
            )));
        }
    }
    apply(op, tile, other);
    Ok(())
}

/// The tile of a matrix product that `operand` takes: the finished one, or as it is where the epilogue saves it. With nothing to
/// add up it is 0 before the epilogue.
fn product(
    context: &Context,
    epilogue: &[EpilogueOp],
    operand: Operand,
    region: &Region,
    phase: Phase,
) -> Result<Vec<f32>, SimError> {
    let mut tile = match &context.sum {
        Some(sum) => sum.clone(),
        None => {
            let (rows, cols) = matrix(region);
            match (gated(epilogue), operand == Operand::E0 && saves_gates(epilogue)) {
                (true, true) => Tile::zeros(rows / 2, cols * 2),
                (gated, _) => Tile::zeros(rows, if gated { cols * 2 } else { cols }),
            }
        }
    };
    let mut tails = EPILOGUE_OPERANDS.iter();
    let mut kept = None;
    for op in epilogue {
        if *op == EpilogueOp::Keep {
            kept = Some(tile.clone());
            continue;
        }
        if *op == EpilogueOp::Carry {
            // To the first tiles of a sum nothing is carried.
            for t in context.all(Operand::AccIn).filter(|t| !t.data.is_empty()) {
                let (n, of) = (t.data.len(), tile.data.len());
                if n != of {
                    return Err(misfit(format!("{n} elements are carried to a tile of {of}")));
                }
                apply(*op, &mut tile, Some(t));
            }
            continue;
        }
        if *op == EpilogueOp::Save {
            if tails.next() == Some(&operand) {
                return Ok(tile.data);
            }
            tile = kept.take().unwrap_or(tile);
            continue;
        }
        apply_to(&mut tile, *op, &mut tails, context, phase)?;
    }
    Ok(tile.data)
}
