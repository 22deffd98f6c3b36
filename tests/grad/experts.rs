//! Derivatives of layers of experts: right in f64, against differences; and cut into kernels that are proved, and run on the executor.

use crate::{
    drawn::some,
    rig::{Derived, Rng, Sized},
};
use mk::{
    Program, cut, emit, passes,
    settings::Config,
    syntax::grad::{Saves, grad},
};
use mk_harness::{Case, CpuOptions, Routing, run_on_cpu};
use std::collections::BTreeMap;

const HEAD: &str =
    "x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0)";
const EXPERTS: &str = "w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)";

/// Layers with gates, without, and of one product, and rows that were dispatched before; the parameters that have
/// gradients; and how many kernels the backward has.
fn layers() -> Vec<(String, Vec<usize>, usize)> {
    let rows = "x: bf16[R, H] @ shard(0), ids: i32[T, K] @ shard(0)";
    let gated = format!(
        "fn gated({HEAD}, {EXPERTS}) {{ dispatch(x, ids, capacity = R) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate) }}"
    );
    let plain = format!(
        "fn plain({HEAD}, w1: bf16[E, H, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) {{
                dispatch(x, ids, capacity = R) -> grouped_gemm(w1) -> silu -> grouped_gemm(w2) -> combine(gate)
            }}"
    );
    vec![
        (gated.clone(), vec![0], 2),
        (gated.clone(), vec![0, 2, 3, 4], 3),
        (gated.clone(), vec![3], 2),
        (gated, vec![2], 1),
        (plain.clone(), vec![0], 1),
        (plain, vec![0, 2, 3, 4], 3),
        (
            format!(
                "fn one({HEAD}, w1: bf16[E, H, H] @ shard(0)) {{ dispatch(x, ids, capacity = R) -> grouped_gemm(w1) -> combine(gate) }}"
            ),
            vec![0, 2, 3],
            3,
        ),
        (
            format!(
                "fn one({HEAD}, w1: bf16[E, H, H] @ shard(0)) {{ dispatch(x, ids, capacity = R, drop) -> grouped_gemm(w1) -> combine(gate) }}"
            ),
            vec![0, 2, 3],
            3,
        ),
        (
            format!(
                "fn rows({rows}, {EXPERTS}) {{ ragged(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) }}"
            ),
            vec![0, 2, 3],
            4,
        ),
    ]
}

fn dims(ranks: u64, tokens: u64, slots: u64) -> BTreeMap<String, u64> {
    let experts = 2 * ranks.max(slots);
    let own = experts.div_ceil(ranks);
    let rows = ranks * 128 * own * (1 + tokens.div_ceil(128));
    let all = [("T", tokens), ("H", 8), ("I", 16), ("E", experts), ("K", slots), ("R", rows)];
    all.map(|(name, n)| (name.to_string(), n)).into()
}

fn derived(text: &str, wanted: &[usize], dims: &BTreeMap<String, u64>) -> Derived {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let gradient = grad(&program, Some(wanted), Saves::default()).unwrap_or_else(|e| panic!("{e}"));
    let backward = gradient.backward.clone().map(|b| Sized::new(b, dims));
    Derived { forward: Sized::new(gradient.forward.clone(), dims), backward, gradient }
}

#[test]
fn gradients_are_those_of_differences() {
    for (text, wanted, _) in some(layers(), 4) {
        // More of an expert than it keeps.
        let drops = text.contains("drop");
        let (tokens, slots) = (if drops { 133 } else { 11 }, 2);
        let mut dims = dims(1, tokens, slots);
        if drops {
            dims.insert("R".into(), 128 * dims["E"]);
        }
        let derived = derived(&text, &wanted, &dims);
        let mut rng = Rng(7);
        let forward = &derived.forward;
        let mut inputs: Vec<Vec<f64>> = forward
            .program
            .tensors()
            .iter()
            .map(|t| rng.list(forward.shape(t.id).iter().product(), 0.7))
            .collect();
        // Two experts of each token, one, or none.
        let experts = dims["E"] as usize;
        inputs[1] = (0..tokens as usize * 2)
            .map(|i| match i {
                _ if drops => (i % 2 * (1 + i % 3)) as f64,
                _ if i % 7 == 3 || i > 18 => -1.0,
                _ => ((i / 2 + i % 2 * 2) % experts) as f64,
            })
            .collect();
        let of_y = forward.program.results()[0];
        let given = rng.list(forward.shape(of_y).iter().product(), 1.0);
        let loss = |inputs: &[Vec<f64>]| -> f64 {
            let y = &forward.eval(inputs)[of_y.index()];
            y.iter().zip(&given).map(|(y, d)| y * d).sum()
        };
        let found = derived.gradients(std::slice::from_ref(&given), &forward.eval(&inputs));
        assert_eq!(found.len(), wanted.len(), "{text}");
        for (found, p) in found.iter().zip(wanted) {
            let size = found.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!(size > 0.1, "{text}: {size}");
            // Each element of tokens and matrices, and some of many rows.
            for i in (0..inputs[p].len()).step_by(1 + inputs[p].len() / 2000) {
                let h = 1e-4;
                let mut moved = |by: f64| {
                    inputs[p][i] += by;
                    let loss = loss(&inputs);
                    inputs[p][i] -= by;
                    loss
                };
                let want = (moved(h) - moved(-h)) / (2.0 * h);
                let near = (found[i] - want).abs() < 1e-6 * size;
                assert!(near, "{text}: {p}[{i}] {} {want}", found[i]);
            }
        }
    }
}

/// Each kernel of the forward that saves, and of the backward, is proved, evaluated, emitted, and right under routings with padding.
#[test]
fn backwards_are_kernels() {
    let sizes = [(1, 5, 1), (2, 21, 2), (4, 3, 2)];
    // The kernel that saves rows also counts the dropped ones.
    let counted = format!(
        "fn counted({HEAD}, {EXPERTS}) {{
                let rows = dispatch(x, ids, capacity = R, drop);
                (rows -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate), rows -> dropped)
            }}"
    );
    let layers = layers().into_iter().chain([(counted, vec![0, 2, 3, 4], 3)]);
    for (i, (text, wanted, kernels)) in some(layers.enumerate(), 8) {
        // Each layer at two of the sizes.
        for (ranks, tokens, slots) in [sizes[i % 3], sizes[(i + 1) % 3]] {
            let dims = dims(ranks, tokens, slots);
            let derived = derived(&text, &wanted, &dims);
            let backward = derived.backward.as_ref().expect("a backward");
            for (sized, n) in [(&derived.forward, 1), (backward, kernels)] {
                let steps = cut::cut(&sized.program, &sized.bound, ranks as u32, &[]);
                let steps = steps.unwrap_or_else(|e| panic!("{text}: {e}"));
                let texts: Vec<_> = steps.iter().map(|step| step.text.as_str()).collect();
                assert_eq!(steps.len(), n, "{text}: {}{}", sized.program, texts.join(""));
                for step in steps {
                    let shapes = step.inputs.iter().zip(step.program.tensors()).map(|(id, t)| {
                        let mut shape = sized.bound.shape(*id).expect("a shape").to_vec();
                        if step.flat.contains(id) {
                            let last = shape.pop().expect("columns");
                            *shape.last_mut().expect("dimensions") *= last;
                        }
                        (t.name.clone(), shape)
                    });
                    // A capacity is of no tensor, and neither is a number of experts.
                    let known = |(name, _): &(&String, &u64)| {
                        ["R", "E"].contains(&name.as_str()) && step.program.symbol(name).is_some()
                    };
                    let sizes = dims.iter().filter(known).map(|(name, n)| (name.clone(), *n));
                    let bound = step.program.bind(&sizes.collect(), &shapes.collect());
                    right(
                        &step.program,
                        &bound.unwrap_or_else(|e| panic!("{}: {e}", step.text)),
                        ranks,
                    );
                }
            }
        }
    }
}

fn right(program: &Program, bound: &mk::Bound, ranks: u64) {
    let config = Config { ranks: ranks as u32, block: [128, 128, 64], ..Config::default() };
    let made = passes::compile(program, bound, &config);
    let (plan, _) = made.unwrap_or_else(|e| panic!("{program}: {e}"));
    emit::emit(&plan).unwrap_or_else(|e| panic!("{program}: {e}"));
    let mut judgements = 0;
    for routing in [Routing::Random, Routing::Padded] {
        let case = Case { program, bound, ranks: ranks as usize };
        let options = CpuOptions { launches: 2, routing, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{program}: {e}"));
        for judged in run.judged.iter().flatten() {
            // A rank without rows has nothing to judge.
            let right = judged.passes() || judged.judged == 0;
            assert!(right, "{program}, {ranks} ranks, {routing:?}: {judged}");
            judgements += judged.judged;
        }
    }
    assert!(judgements > 0, "{program}, {ranks} ranks");
}
