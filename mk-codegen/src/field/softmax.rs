//! Attention as the pipeline has it: every head at once.

use super::{
    algebra::Algebra,
    attend::Attention,
    cells::Cells,
    leaf::Tile,
    program::{Dims, Tensor},
};
use mk_syntax::{Node, Op};

/// Results `[B, S, H, D]` and logarithms `[B, H, S]` of an attention, on scaled tensors.
pub(super) fn attention<A: Algebra>(
    algebra: &mut A,
    dims: &Dims<'_>,
    cells: &Cells,
    node: &Node,
    [q, k, v]: [&Tensor<A::Elem>; 3],
) -> [Tensor<A::Elem>; 2] {
    let (causal, scale) = match node.op {
        Op::Attention { causal, scale, .. } => (causal, scale),
        _ => (false, None),
    };
    let (q_id, k_id) = (node.inputs[0], node.inputs[1]);
    let depth = dims.extent(q_id, 3) as f32;
    let scale = scale.map_or(1.0 / depth.sqrt(), |s| s as f32);
    // Heads are cells of their own.
    let group = (dims.extent(q_id, 2) / dims.extent(k_id, 2).max(1)).max(1);
    let [batch, queries, heads, _] = sizes(q);
    let wide = v.shape[3];
    let mut o = vec![A::ZERO; batch * queries * heads * wide];
    let mut lse = Vec::with_capacity(batch * heads * queries);
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let head = cells.original(dims.line(q_id, 2), h);
        let g = cells.at(dims.line(k_id, 2), (head / group) as i32);
        let (q, k, v) = (tile(q, b, h), tile(k, b, g), tile(v, b, g));
        let mut state = Attention::new(algebra, queries, wide);
        // Queries and keys are one index, where places count.
        state.step(algebra, [&q, &k, &v], scale, |i, j| causal && i < j);
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
