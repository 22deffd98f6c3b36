//! Attention and its gradients as the pipeline has them: every head at once.

use super::{
    algebra::Algebra,
    attend::{Attention, Scored},
    cells::Cells,
    dims::{Dims, Tensor, gradient_operands},
    gradients::{self, Block, Gradients},
    leaf::seen,
    tile::Tile,
};
use mk_plan::{Mask, Operand, STATS};
use mk_syntax::{Node, Op, Scores};
use std::ops::Range;

/// Results `[B, S, H, D]` and logarithms `[B, H, S]` of an attention, on scaled tensors.
pub(super) fn attention<A: Algebra>(
    algebra: &mut A,
    dims: &Dims<'_>,
    cells: &Cells,
    node: &Node,
    [q, k, v]: [&Tensor<A::Elem>; 3],
    sinks: Option<&Tensor<A::Elem>>,
) -> [Tensor<A::Elem>; 2] {
    let scores = match node.op {
        Op::Attention { scores, .. } => scores,
        _ => Scores::default(),
    };
    let (q_id, k_id) = (node.inputs[0], node.inputs[1]);
    let scores = scored(scores, dims.extent(q_id, 3));
    let places = dims.places_of(q_id, k_id);
    let [ahead, behind] = places.scaled(cells);
    // Heads are cells of their own.
    let group = (dims.extent(q_id, 2) / dims.extent(k_id, 2).max(1)).max(1);
    let [batch, queries, heads, _] = sizes(q);
    let wide = v.shape[3];
    let mut o = vec![A::ZERO; batch * queries * heads * wide];
    let documents = dims.documents(node);
    let mut lse = Vec::with_capacity(batch * heads * queries);
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let head = cells.original(dims.line(q_id, 2), h);
        let g = cells.at(dims.line(k_id, 2), (head / group) as i32);
        let (q, k, v) = (tile(q, b, h), tile(k, b, g), tile(v, b, g));
        let mut state = Attention::new(algebra, queries, wide);
        let seen = |i: usize| {
            let all = seen(scores.mask, (cells, places.line), ahead + i, (behind, k.rows));
            own(all, documents, (cells, places.line), ahead + i, behind)
        };
        state.step(algebra, [&q, &k, &v], scores, seen);
        if let Some(sink) = sinks.and_then(|s| s.data.get(h)) {
            state.sink(algebra, *sink);
        }
        for (i, row) in state.output(algebra).chunks(wide.max(1)).enumerate() {
            let at = ((b * queries + i) * heads + h) * wide;
            o[at..at + wide].copy_from_slice(row);
        }
        lse.extend(state.logarithms(algebra));
    }
    [
        Tensor { shape: vec![batch, queries, heads, wide], data: o },
        Tensor { shape: vec![batch, heads, queries], data: lse },
    ]
}

/// Of keys from a place of a scaled line on, those of the document that a query's place is in.
fn own(
    keys: Range<usize>,
    documents: Option<&[i32]>,
    (cells, line): (&Cells, u32),
    query: usize,
    first: usize,
) -> Range<usize> {
    let Some(begins) = documents else { return keys };
    let place = cells.original(line, query);
    let mut all = begins.windows(2).map(|d| (d[0], d[1]));
    let Some((begin, end)) = all.find(|(b, e)| (i64::from(*b)..i64::from(*e)).contains(&place))
    else {
        return 0..0;
    };
    // Cells begin where documents do.
    let [begin, end] = [begin, end].map(|at| cells.at(line, at).saturating_sub(first));
    let end = end.min(keys.end);
    begin.max(keys.start).min(end)..end
}

/// What becomes of scores, of heads of so many elements.
fn scored(scores: Scores, depth: i64) -> Scored {
    let scale = scores.scale.map_or(1.0 / (depth as f32).sqrt(), |s| s as f32);
    let cap = scores.softcap.map(|cap| (cap as f32).to_bits());
    Scored { scale, mask: Mask::of(scores.causal, scores.window), cap }
}

/// Statistics `[B, H, S, 4]` of results, their gradients, and logarithms.
pub(super) fn statistics<A: Algebra>(
    algebra: &mut A,
    [o, d_o, lse]: [&Tensor<A::Elem>; 3],
) -> Tensor<A::Elem> {
    let [batch, rows, heads, _] = sizes(o);
    let mut data = Vec::with_capacity(batch * heads * rows * STATS as usize);
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let lse = &lse.data[(b * heads + h) * rows..][..rows];
        data.extend(gradients::statistics(algebra, &tile(o, b, h), &tile(d_o, b, h), lse));
    }
    Tensor { shape: vec![batch, heads, rows, STATS as usize], data }
}

/// Gradients of queries, or of keys and of values, that these queries give: each by itself, so that a mask may leave
/// any of them out.
pub(super) fn gradients<A: Algebra>(
    algebra: &mut A,
    dims: &Dims<'_>,
    cells: &Cells,
    node: &Node,
    [q, d_o, stats, k, v]: [&Tensor<A::Elem>; 5],
    rows: &[usize],
) -> Vec<Tensor<A::Elem>> {
    let (of_keys, scores) = match node.op {
        Op::AttentionDq { scores, .. } => (false, scores),
        Op::AttentionDk { scores, .. } => (true, scores),
        _ => return Vec::new(),
    };
    let at = gradient_operands(node.op);
    let (q_id, k_id) = (node.inputs[at[0]], node.inputs[at[3]]);
    let scores = scored(scores, dims.extent(q_id, 3));
    let (scale, places) = (scores.scale, dims.places_of(q_id, k_id));
    let documents = dims.documents(node);
    let [ahead, behind] = places.scaled(cells);
    let group = (dims.extent(q_id, 2) / dims.extent(k_id, 2).max(1)).max(1);
    let [batch, _, heads, _] = sizes(q);
    let [_, keys, groups, wide] = sizes(k);
    let mut made: Vec<Tensor<A::Elem>> = match of_keys {
        false => vec![Tensor { shape: q.shape.clone(), data: vec![A::ZERO; q.data.len()] }],
        true => [k, v]
            .map(|t| Tensor { shape: t.shape.clone(), data: vec![A::ZERO; t.data.len()] })
            .to_vec(),
    };
    for b in 0..batch {
        let mut of_group: Vec<Option<Gradients<A::Elem>>> = vec![None; groups];
        for h in 0..heads {
            let head = cells.original(dims.line(q_id, 2), h);
            let g = cells.at(dims.line(k_id, 2), (head / group) as i32);
            let (q, d_o) = (tile(q, b, h), tile(d_o, b, h));
            let stats = &stats.data[(b * heads + h) * q.rows * STATS as usize..];
            let (k, v) = (tile(k, b, g), tile(v, b, g));
            let fresh = || Gradients::keys::<A>(keys, wide, v.cols);
            let mut of_queries = Gradients::queries::<A>(q.rows, q.cols);
            let sums =
                if of_keys { of_group[g].get_or_insert_with(fresh) } else { &mut of_queries };
            for i in rows {
                let one = |t: &Tile<A::Elem>| chosen(&t.data[i * t.cols..][..t.cols]);
                let stats = chosen(&stats[i * STATS as usize..][..STATS as usize]);
                let block = Block { q: &one(&q), d_o: &one(&d_o), stats: &stats, k: &k, v: &v };
                let place = ahead + i;
                let seen = |_| {
                    let all = seen(scores.mask, (cells, places.line), place, (behind, keys));
                    own(all, documents, (cells, places.line), place, behind)
                };
                match sums {
                    Gradients::Keys { .. } => sums.step(algebra, block, scores, seen),
                    Gradients::Queries(_) => {
                        let mut row = Gradients::queries::<A>(1, q.cols);
                        row.step(algebra, block, scores, seen);
                        let row = row.made(algebra, Operand::Dq, scale);
                        put(&mut made[0], b, h, *i, &row);
                    }
                }
            }
        }
        for (g, sums) in of_group.iter().enumerate() {
            let Some(sums) = sums else { continue };
            for (made, operand) in made.iter_mut().zip([Operand::Dk, Operand::Dv]) {
                let all = sums.made(algebra, operand, scale);
                let cols = made.shape[3].max(1);
                all.chunks(cols).enumerate().for_each(|(j, row)| put(made, b, g, j, row));
            }
        }
    }
    made
}

fn chosen<E: Copy>(row: &[E]) -> Tile<E> {
    Tile { rows: 1, cols: row.len(), data: row.to_vec() }
}

/// Puts a row of a head where it lies.
fn put<E: Copy>(t: &mut Tensor<E>, b: usize, h: usize, i: usize, row: &[E]) {
    let [_, rows, heads, cols] = sizes(t);
    let at = ((b * rows + i) * heads + h) * cols;
    t.data[at..at + cols].copy_from_slice(row);
}

fn sizes<E>(t: &Tensor<E>) -> [usize; 4] {
    std::array::from_fn(|d| t.shape.get(d).copied().unwrap_or(1))
}

/// The rows of a head.
fn tile<E: Copy>(t: &Tensor<E>, b: usize, h: usize) -> Tile<E> {
    let [_, rows, heads, cols] = sizes(t);
    let row = |i: usize| ((b * rows + i) * heads + h) * cols;
    let data = (0..rows).flat_map(|i| t.data[row(i)..row(i) + cols].iter().copied()).collect();
    Tile { rows, cols, data }
}
