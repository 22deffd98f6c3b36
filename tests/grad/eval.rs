//! Pipelines in f64, on values whose shapes the caller gives: whole ones, or what one rank holds. Sums over ranks are sums from the
//! start, which is right because nothing but linear operations reads them.

use crate::attention::{attention, gradients, of_sinks, statistics};
use mk::syntax::{Curve, Def, Node, Op, Program, ValueId};

/// A pipeline's values, parameters first.
pub fn eval(
    program: &Program,
    shape: &dyn Fn(ValueId) -> Vec<usize>,
    inputs: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let mut values = inputs.to_vec();
    for node in program.nodes() {
        let made = match heads(program, node, shape, &values) {
            Some(made) => made,
            None => one(program, node, shape, &values),
        };
        values.push(made);
    }
    values
}

/// What attention, or a part of its backward, makes; `None` of other operations.
fn heads(
    program: &Program,
    node: &Node,
    shape: &dyn Fn(ValueId) -> Vec<usize>,
    values: &[Vec<f64>],
) -> Option<Vec<f64>> {
    // A second result is made of what the first one is.
    let first = match (node.op, program.def(node.inputs[0])) {
        (Op::Lse | Op::AttentionDv, Some(Def::Node(first))) => first,
        _ => node,
    };
    let of = |i: usize| values[first.inputs[i].index()].as_slice();
    let shapes = |q: usize, k: usize| [q, k].map(|i| shape(first.inputs[i]));
    let documents = first.documents().map(|id| values[id.index()].as_slice());
    Some(match first.op {
        Op::Attention { .. } => {
            let [q, k] = shapes(0, 1);
            let sinks = first.sinks().map(|id| values[id.index()].as_slice());
            let (o, lse) = attention(first, [&q, &k], [of(0), of(1), of(2)], documents, sinks);
            if node.op == Op::Lse { lse } else { o }
        }
        Op::AttentionStats => statistics(&shape(node.inputs[0]), [of(0), of(1), of(2)]),
        Op::AttentionDsinks => of_sinks(&shape(node.inputs[0]), [of(0), of(1)]),
        Op::AttentionDq { .. } => {
            let [q, k] = shapes(0, 3);
            let [dq, ..] = gradients(first, [&q, &k], [0, 1, 2, 3, 4].map(of), documents);
            dq
        }
        Op::AttentionDk { .. } => {
            let [q, k] = shapes(2, 0);
            let [_, dk, dv] = gradients(first, [&q, &k], [2, 3, 4, 0, 1].map(of), documents);
            if node.op == Op::AttentionDv { dv } else { dk }
        }
        _ => return None,
    })
}

fn one(
    program: &Program,
    node: &Node,
    shape: &dyn Fn(ValueId) -> Vec<usize>,
    values: &[Vec<f64>],
) -> Vec<f64> {
    let of = |i: usize| &values[node.inputs[i].index()];
    let map = |f: &dyn Fn(f64) -> f64| of(0).iter().map(|x| f(*x)).collect();
    let zip =
        |f: &dyn Fn(f64, f64) -> f64| of(0).iter().zip(of(1)).map(|(x, y)| f(*x, *y)).collect();
    match node.op {
        Op::Gather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllReduce { .. }
        | Op::AllToAll { .. }
        | Op::Cast(_)
        | Op::View => of(0).clone(),
        Op::Gemm { a_transposed, b_transposed } => {
            let matrix = |i: usize| {
                let shape = shape(node.inputs[i]);
                (shape[0], shape[1..].iter().product::<usize>())
            };
            let ((ar, ac), (br, bc)) = (matrix(0), matrix(1));
            let (m, k) = if a_transposed { (ac, ar) } else { (ar, ac) };
            let n = if b_transposed { br } else { bc };
            let (a, b) = (of(0), of(1));
            let mut c = vec![0.0; m * n];
            for i in 0..m {
                for l in 0..k {
                    let x = if a_transposed { a[l * ac + i] } else { a[i * ac + l] };
                    for j in 0..n {
                        let y = if b_transposed { b[j * bc + l] } else { b[l * bc + j] };
                        c[i * n + j] += x * y;
                    }
                }
            }
            c
        }
        Op::Attention { .. }
        | Op::Lse
        | Op::AttentionStats
        | Op::AttentionDq { .. }
        | Op::AttentionDk { .. }
        | Op::AttentionDv
        | Op::AttentionDsinks => unreachable!("`heads` computes it"),
        Op::Dequantize(_) | Op::Quantize(_) | Op::Factor(_) | Op::DispatchFactors | Op::Dropped => {
            unreachable!("it has no derivative")
        }
        Op::Dispatch { .. } => {
            let (columns, n) = (shape(node.result)[1], shape(node.result)[0]);
            let mut out = vec![0.0; n * columns];
            for (row, (e, t)) in rows(program, node.inputs[1], of(1), shape(node.inputs[1])[1]) {
                out[row * columns..][..columns].copy_from_slice(&of(0)[t * columns..][..columns]);
                if node.inputs.len() > 2 {
                    let weight = of(2)[slot_of(of(1), shape(node.inputs[1])[1], (e, t))];
                    out[row * columns..][..columns].iter_mut().for_each(|x| *x *= weight);
                }
            }
            out
        }
        Op::GroupedGemm { transposed } => {
            let width = |id: ValueId, from: usize| shape(id)[from..].iter().product::<usize>();
            let (k, n) = (width(node.inputs[0], 1), width(node.result, 1));
            let mut out = vec![0.0; width(node.result, 0)];
            for (row, (e, _)) in rows(program, node.inputs[2], of(2), shape(node.inputs[2])[1]) {
                let (x, w) = (&of(0)[row * k..][..k], &of(1)[e * k * n..][..k * n]);
                let at = |l: usize, j: usize| w[if transposed { j * k + l } else { l * n + j }];
                for (j, y) in out[row * n..][..n].iter_mut().enumerate() {
                    *y = x.iter().enumerate().map(|(l, x)| x * at(l, j)).sum();
                }
            }
            out
        }
        Op::GroupedWgrad => {
            let width = |id: ValueId| shape(id)[1..].iter().product::<usize>();
            let (k, n) = (width(node.inputs[0]), width(node.inputs[1]));
            let mut out = vec![0.0; shape(node.result)[0] * k * n];
            for (row, (e, _)) in rows(program, node.inputs[2], of(2), shape(node.inputs[2])[1]) {
                for l in 0..k {
                    let to = &mut out[(e * k + l) * n..][..n];
                    let dy = &of(1)[row * n..][..n];
                    to.iter_mut().zip(dy).for_each(|(sum, d)| *sum += of(0)[row * k + l] * d);
                }
            }
            out
        }
        Op::Combine => {
            let (columns, slots) = (shape(node.result)[1], shape(node.inputs[1])[1]);
            let mut out = vec![0.0; shape(node.result).iter().product()];
            for (row, (e, t)) in rows(program, node.inputs[1], of(1), slots) {
                let weight = of(2)[slot_of(of(1), slots, (e, t))];
                let y = &of(0)[row * columns..][..columns];
                out[t * columns..][..columns].iter_mut().zip(y).for_each(|(x, y)| *x += weight * y);
            }
            out
        }
        Op::Weigh => {
            let (columns, slots) = (shape(node.result)[1], shape(node.inputs[1])[1]);
            let mut out = vec![0.0; shape(node.result).iter().product()];
            for (row, (e, t)) in rows(program, node.inputs[1], of(1), slots) {
                let weight = of(2)[slot_of(of(1), slots, (e, t))];
                let x = &of(0)[row * columns..][..columns];
                out[row * columns..][..columns]
                    .iter_mut()
                    .zip(x)
                    .for_each(|(y, x)| *y = weight * x);
            }
            out
        }
        Op::CombineGrad | Op::WeighGrad => {
            let (columns, slots) = (shape(node.inputs[0])[1], shape(node.inputs[1])[1]);
            let mut out = vec![0.0; shape(node.result).iter().product()];
            for (row, (e, t)) in rows(program, node.inputs[1], of(1), slots) {
                let y = &of(0)[row * columns..][..columns];
                let other = if node.op == Op::WeighGrad { row } else { t };
                let dy = &of(2)[other * columns..][..columns];
                out[slot_of(of(1), slots, (e, t))] = y.iter().zip(dy).map(|(y, d)| y * d).sum();
            }
            out
        }
        Op::Bias => {
            let c = of(1);
            of(0).iter().enumerate().map(|(i, x)| x + c[i % c.len()]).collect()
        }
        Op::RmsNorm { eps } => {
            let n = *shape(node.result).last().expect("rows");
            let weight = |i: usize| node.inputs.get(1).map_or(1.0, |_| of(1)[i % n]);
            let rows = of(0).chunks(n).map(|row| root_mean_square(row, eps));
            let roots: Vec<f64> = rows.collect();
            of(0).iter().enumerate().map(|(i, x)| x / roots[i / n] * weight(i)).collect()
        }
        Op::RmsNormGrad { eps } => {
            let n = *shape(node.result).last().expect("rows");
            let weight = |i: usize| node.inputs.get(2).map_or(1.0, |_| of(2)[i % n]);
            let g: Vec<f64> = of(0).iter().enumerate().map(|(i, d)| d * weight(i)).collect();
            let mut out = Vec::new();
            for (x, g) in of(1).chunks(n).zip(g.chunks(n)) {
                let root = root_mean_square(x, eps);
                let along: f64 = x.iter().zip(g).map(|(x, g)| x * g).sum::<f64>() / n as f64;
                out.extend(x.iter().zip(g).map(|(x, g)| g / root - x * along / root.powi(3)));
            }
            out
        }
        Op::Rope { back } => {
            let (n, d) = (shape(node.result)[1], shape(node.inputs[1])[1]);
            let turned = |i: usize| {
                let (row, at) = (i / n * d, i % n % d);
                let (sign, other) = if at < d / 2 { (-1.0, i + d / 2) } else { (1.0, i - d / 2) };
                let sign = if back { -sign } else { sign };
                let (cos, sin) = (of(1)[row + at % (d / 2)], of(1)[row + d / 2 + at % (d / 2)]);
                of(0)[i] * cos + sign * of(0)[other] * sin
            };
            (0..of(0).len()).map(turned).collect()
        }
        Op::Curve(curve) => map(&|x| value(curve, x)),
        Op::Mul => zip(&|x, y| x * y),
        Op::Add => zip(&|x, y| x + y),
        Op::Scale(s) => map(&|x| s * x),
        Op::Slope(curve) => zip(&|d, x| d * slope(curve, x)),
        Op::Swiglu => {
            let f = *shape(node.result).last().expect("a matrix");
            let gates = |i: usize| of(0)[i / f * 2 * f + i % f];
            let ups = |i: usize| of(0)[i / f * 2 * f + f + i % f];
            (0..of(0).len() / 2).map(|i| gates(i) * sigmoid(gates(i)) * ups(i)).collect()
        }
        Op::SwigluGrad => {
            let f = *shape(node.inputs[0]).last().expect("a matrix");
            let (d, x) = (of(0), of(1));
            let one = |i: usize| {
                let (row, half, c) = (i / (2 * f), i / f % 2, i % f);
                let (d, gate, up) = (d[row * f + c], x[row * 2 * f + c], x[row * 2 * f + f + c]);
                match half {
                    0 => d * up * slope(Curve::Silu, gate),
                    _ => d * gate * sigmoid(gate),
                }
            };
            (0..x.len()).map(one).collect()
        }
    }
}

fn root_mean_square(row: &[f64], eps: f64) -> f64 {
    (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + eps).sqrt()
}

/// The packed rows of one rank with all experts: which row is of which expert and token.
fn rows(
    program: &Program,
    by: ValueId,
    ids: &[f64],
    slots: usize,
) -> impl Iterator<Item = (usize, (usize, usize))> {
    // Where some are dropped, experts keep a block here.
    let keep = if program.drops(by) { 128 } else { usize::MAX };
    let most = ids.iter().copied().fold(-1.0, f64::max);
    let (mut all, mut at) = (Vec::new(), 0usize);
    for e in 0..(most + 1.0) as usize {
        for (t, of) in
            ids.chunks(slots).enumerate().filter(|(_, of)| of.contains(&(e as f64))).take(keep)
        {
            debug_assert!(of.len() == slots);
            all.push((at, (e, t)));
            at += 1;
        }
        at = at.next_multiple_of(128);
    }
    all.into_iter()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// By the power series of its density's integral, which is enough for what tests multiply.
fn phi(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while f64::abs(term) > 1e-17 {
        n += 2.0;
        term *= x * x / n;
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

fn gelu_tanh(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + u.tanh())
}

fn value(curve: Curve, x: f64) -> f64 {
    match curve {
        Curve::Gelu => x * phi(x),
        Curve::GeluTanh => gelu_tanh(x),
        Curve::Silu => x * sigmoid(x),
        Curve::Relu => x.max(0.0),
    }
}

/// By differences: what is tested has its own formulas.
fn slope(curve: Curve, x: f64) -> f64 {
    let f = |x: f64| value(curve, x);
    if curve == Curve::Relu {
        return f64::from(u8::from(x > 0.0));
    }
    let h = 1e-3;
    // Five points: an error of h^4 / 30 of the fifth derivative.
    (8.0 * (f(x + h) - f(x - h)) - (f(x + 2.0 * h) - f(x - 2.0 * h))) / (12.0 * h)
}

/// The slot of a token that names an expert, of those of all tokens.
fn slot_of(ids: &[f64], slots: usize, (e, t): (usize, usize)) -> usize {
    let slot = (0..slots).find(|j| ids[t * slots + j] == e as f64);
    t * slots + slot.expect("its token names the expert")
}
