//! Derivatives of pipelines: right in f64, against differences; and computed by kernels, on the CPU executor.

mod attention;
#[path = "../../mk-codegen/tests/common/mod.rs"]
mod common;
#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
mod eval;
mod experts;
mod meshes;
mod rig;

use common::{CASES, VARIANTS};
use drawn::some;
use mk::{
    Program,
    cut::cut,
    syntax::{
        Def, Dim, Node, Op, Placement, SymbolId,
        grad::{Input, Keep, Saves, Source, grad, grad_into},
    },
};
use rig::{Derived, Held, Rng, Sized, derive, run_steps};
use std::collections::{BTreeMap, BTreeSet};

const AGAIN: Saves = Saves { gathered: Keep::Again, activations: Keep::Again };

/// All pipelines of tests, each once.
fn pipelines() -> Vec<(&'static str, &'static str)> {
    let mut seen = BTreeSet::new();
    let all = CASES.iter().chain(VARIANTS.iter().map(|v| &v.case)).map(|c| (c.0, c.1));
    let more = MORE.iter().copied();
    more.chain(all).filter(|(_, text)| seen.insert(*text)).collect()
}

/// What no other test has: operands of every kind, values that are read more than once, sums that go on.
const MORE: &[(&str, &str)] = &[
    ("gelu_tanh", "gather(x) -> gemm(w1) -> bias(c) -> gelu_tanh -> gemm(w2) -> all_reduce"),
    ("data_parallel", "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N], c: bf16[N]) { gemm(x, w) -> bias(c) -> relu }"),
    (
        "three_readers",
        "fn f(x: bf16[M, K] @ shard(0), wq: bf16[K, N] @ shard(1), wk: bf16[K, N] @ shard(1), wv: bf16[N, K] @ shard(0)) {
             let whole = gather(x);
             (whole -> gemm(wq), whole -> gemm(wk), whole -> gemm(wv.t))
         }",
    ),
    (
        "sums_go_on",
        "fn f(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0), y: bf16[M, N] @ shard(0)) {
             gemm(x, w) -> reduce_scatter -> silu -> mul(y)
         }",
    ),
    (
        "scaled_sums",
        "fn f(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0), y: bf16[M, N]) { gemm(x, w) -> mul(y) -> all_reduce -> add(y) }",
    ),
    (
        "gated_bias",
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[K, 2, F] @ shard(2), y: bf16[M, F] @ shard(1), w2: bf16[F, K] @ shard(0), c: bf16[K]) {
             let h = gather(x) -> gemm(w1);
             (h -> swiglu -> mul(y) -> gemm(w2) -> reduce_scatter -> bias(c) -> add(x), h)
         }",
    ),
    (
        "causal_ring",
        "fn f(q: bf16[2, S, 4, 64] @ zigzag(1), k: bf16[2, S, 2, 64] @ zigzag(1), v: bf16[2, S, 2, 64] @ zigzag(1)) {
             ring(k, v) -> attention(q, causal, scale = 0.0625)
         }",
    ),
    (
        "ulysses",
        "fn f(q: bf16[2, S, 4, 64] @ shard(1), k: bf16[2, S, 4, 64] @ shard(1), v: bf16[2, S, 4, 64] @ shard(1)) {
             let h = all_to_all(q, split = 2, concat = 1);
             let x = all_to_all(k, split = 2, concat = 1);
             let y = all_to_all(v, split = 2, concat = 1);
             attention(h, x, y, causal, softcap = 1.5) -> all_to_all(split = 1, concat = 2)
         }",
    ),
    (
        "window",
        "fn f(q: bf16[2, S, 4, 64], k: bf16[2, S, 2, 64], v: bf16[2, S, 2, 64]) {
             attention(q, k, v, causal, window = 11, softcap = 1.5)
         }",
    ),
    (
        "documents",
        "fn f(q: bf16[2, S, 4, 64], k: bf16[2, S, 2, 64], v: bf16[2, S, 2, 64], cu: i32[5]) {
             attention(q, k, v, causal, window = 9, softcap = 1.5, cu_seqlens = cu)
         }",
    ),
    (
        "ring_documents",
        "fn f(q: bf16[2, S, 4, 64] @ zigzag(1), k: bf16[2, S, 2, 64] @ zigzag(1), v: bf16[2, S, 2, 64] @ zigzag(1), cu: i32[5]) {
             ring(k, v) -> attention(q, causal, window = 9, softcap = 1.5, cu_seqlens = cu)
         }",
    ),
    (
        "ring_sinks",
        "fn f(q: bf16[2, S, 4, 64] @ zigzag(1), k: bf16[2, S, 2, 64] @ zigzag(1), v: bf16[2, S, 2, 64] @ zigzag(1), s: f32[4], cu: i32[5]) {
             ring(k, v) -> attention(q, causal, window = 9, sinks = s, cu_seqlens = cu)
         }",
    ),
    // Of four ranks one has no queries.
    (
        "ring_sinks_few",
        "fn f(q: f16[2, 3, 4, 64] @ zigzag(1), k: f16[2, 3, 2, 64] @ zigzag(1), v: f16[2, 3, 2, 64] @ zigzag(1), s: f32[4]) {
             ring(k, v) -> attention(q, causal, sinks = s)
         }",
    ),
    (
        "sinks",
        "fn f(q: bf16[2, S, 8, 64] @ shard(2), k: bf16[2, S, 4, 64] @ shard(2), v: bf16[2, S, 4, 64] @ shard(2), s: f32[8] @ shard(0)) {
             attention(q, k, v, causal, softcap = 1.5, sinks = s)
         }",
    ),
    (
        "heads",
        "fn f(q: bf16[2, S, 8, 64] @ shard(2), k: bf16[2, S, 8, 64] @ shard(2), v: bf16[2, S, 8, 64] @ shard(2)) {
             let o = attention(q, k, v);
             (o, o -> lse)
         }",
    ),
    (
        "norm",
        "fn f(x: bf16[M, 40] @ shard(0), g: bf16[40], w: bf16[40, N] @ shard(1)) { gather(x) -> rmsnorm(g) -> gemm(w) }",
    ),
    ("norm_alone", "fn f(x: bf16[M, 40] @ shard(0)) { x -> rmsnorm(eps = 0.5) }"),
    (
        "rope",
        "fn f(x: bf16[M, 48] @ shard(0), t: f32[M, 16] @ shard(0), w: bf16[48, N] @ shard(1)) {
             x -> rope(t) -> gather -> gemm(w)
         }",
    ),
    ("rope_heads", "fn f(x: bf16[M, 384] @ shard(1), t: f32[M, 16]) { x -> rope(t) }"),
    (
        "attention_block",
        "fn f(x: bf16[M, C] @ shard(0), t: f32[M, 64], wq: bf16[C, 256] @ shard(1), wk: bf16[C, 256] @ shard(1), wv: bf16[C, 256] @ shard(1), wo: bf16[256, C] @ shard(0)) {
             let a = gather(x);
             let k = a -> gemm(wk) -> rope(t) -> view(2, S, 4, 64);
             let v = a -> gemm(wv) -> view(2, S, 4, 64);
             a -> gemm(wq) -> rope(t) -> view(2, S, 4, 64) -> attention(k, v, causal) -> view(M, 256) -> gemm(wo) -> reduce_scatter
         }",
    ),
    (
        "ring_block",
        "fn f(x: bf16[M, C] @ shard(0), wq: bf16[C, 128], wk: bf16[C, 64], wv: bf16[C, 64], wo: bf16[128, C]) {
             let q = gemm(x, wq) -> view(1, S, 2, 64);
             let k = gemm(x, wk) -> view(1, S, 1, 64);
             let v = gemm(x, wv) -> view(1, S, 1, 64);
             ring(k, v) -> attention(q, causal) -> view(M, 128) -> gemm(wo) -> add(x)
         }",
    ),
    ("both_turned", "fn f(x: bf16[K, M], w: bf16[N, K] @ shard(0)) { gemm(x.t, w.t) -> silu }"),
];

/// Sizes by symbol: few blocks, none of them whole, and not all of them divisible by the number of ranks. Columns of gates and ups are.
fn dims(program: &Program) -> BTreeMap<String, u64> {
    let sizes = [37, 40, 53, 24, 72];
    let mut dims: BTreeMap<String, u64> = program
        .symbols()
        .iter()
        .zip(sizes.iter().cycle())
        .map(|(s, n)| (s.name.clone(), *n))
        .collect();
    for tensor in program.tensors() {
        if let [_, _, Dim::Sym(columns)] = tensor.ty.dims.as_slice() {
            dims.insert(program.symbols()[columns.index()].name.clone(), 48);
        }
    }
    // Whole heads on as many ranks as there are.
    for node in program.nodes().iter().filter(|n| matches!(n.op, Op::Rope { .. })) {
        let last = |id| program.ty(id).and_then(|ty| ty.dims.last().copied());
        if let [Some(Dim::Sym(columns)), Some(Dim::Lit(head))] =
            [0, 1].map(|i| last(node.inputs[i]))
        {
            dims.insert(program.symbols()[columns.index()].name.clone(), 24 * head);
        }
    }
    // Of rows as heads, whole sequences.
    for node in program.nodes().iter().filter(|n| n.op == Op::View) {
        if let [Dim::Lit(batch), Dim::Sym(sequence), ..] = node.ty.dims[..] {
            let name = |id: SymbolId| program.symbols()[id.index()].name.clone();
            dims.remove(&name(sequence));
            if let Some(Dim::Sym(rows)) = program.ty(node.inputs[0]).map(|ty| ty.dims[0]) {
                dims.insert(name(rows), 40 * batch);
            }
        }
    }
    dims
}

/// Parameters of a pipeline: of each its contributions, one but for sums.
fn parameters(sized: &Sized, ranks: usize, rng: &mut Rng) -> Vec<Vec<Vec<f64>>> {
    let one = |t: &mk::syntax::Tensor| {
        let shape = sized.shape(t.id);
        let contributions = if t.ty.placement[0] == Placement::Partial { ranks } else { 1 };
        if t.ty.dtype.is_integer() {
            // Where documents of 37 tokens begin: one has none, and some tokens have none.
            return vec![vec![0.0, 11.0, 11.0, 30.0, 35.0]];
        }
        let by = (shape[0] as f64).sqrt();
        (0..contributions).map(|_| rng.list(shape.iter().product(), by)).collect()
    };
    sized.program.tensors().iter().map(one).collect()
}

fn total(contributions: &[Vec<f64>]) -> Vec<f64> {
    let mut sum = vec![0.0; contributions[0].len()];
    contributions.iter().for_each(|s| sum.iter_mut().zip(s).for_each(|(x, y)| *x += y));
    sum
}

/// The gradients of results, as they are given: of those that are sums, by rank.
fn given(derived: &Derived, n: usize, ranks: usize, rng: &mut Rng) -> Vec<Vec<Vec<f64>>> {
    let mut given: Vec<Vec<Vec<f64>>> = Vec::new();
    let forward = &derived.forward;
    for (i, id) in forward.program.results().iter().take(n).enumerate() {
        let backward = derived.backward.as_ref();
        let place = derived.gradient.inputs.iter().position(|x| *x == Input::Gradient(i));
        let ty = place.and_then(|p| Some(&backward?.program.tensors()[p].ty));
        let partial = ty.is_some_and(|ty| ty.placement[0] == Placement::Partial);
        let len = forward.shape(*id).iter().product();
        // Logarithms are not differentiated.
        let logarithms =
            matches!(forward.program.def(*id), Some(Def::Node(Node { op: Op::Lse, .. })));
        let by = if logarithms { f64::INFINITY } else { 1.0 };
        given.push((0..if partial { ranks } else { 1 }).map(|_| rng.list(len, by)).collect());
    }
    given
}

#[test]
fn gradients_are_those_of_differences() {
    let all = pipelines().into_iter().filter(|(_, text)| !is_not_derived(text));
    some(all, 6).for_each(|(name, text)| differentiates(name, text));
}

/// Derived gradients are those of differences in f64.
fn differentiates(name: &str, text: &str) {
    let program = Program::parse(text).expect("parses");
    let dims = dims(&program);
    let mut rng = Rng(7);
    for saves in [Saves::default(), AGAIN] {
        let derived = derive(&program, &dims, saves);
        let forward = &derived.forward;
        let inputs: Vec<_> = parameters(forward, 2, &mut rng).iter().map(|p| total(p)).collect();
        let n = program.results().len();
        let given: Vec<_> = given(&derived, n, 2, &mut rng).iter().map(|g| total(g)).collect();
        let loss = |inputs: &[Vec<f64>]| -> f64 {
            let values = forward.eval(inputs);
            let results = forward.program.results().iter().zip(&given);
            results
                .map(|(id, d)| values[id.index()].iter().zip(d).map(|(x, d)| x * d).sum::<f64>())
                .sum()
        };
        let found = derived.gradients(&given, &forward.eval(&inputs));
        let turns = |n: &Node, id| matches!(n.op, Op::Rope { .. }) && n.inputs.get(1) == Some(&id);
        // Angles have none, nor have integers.
        let of = |t: &&mk::syntax::Tensor| {
            !t.ty.dtype.is_integer() && !program.nodes().iter().any(|n| turns(n, t.id))
        };
        let wanted = program.tensors().iter().filter(of).count();
        assert_eq!(derived.gradient.gradients.len(), wanted, "{name}");
        for ((parameter, _), gradient) in derived.gradient.gradients.iter().zip(&found) {
            assert_eq!(gradient.len(), inputs[*parameter].len(), "{name}");
            let size = (gradient.iter().map(|x| x * x).sum::<f64>() / gradient.len() as f64).sqrt();
            for i in 0..3 {
                let at = (i * 7919 + 5) % gradient.len();
                let moved = |by: f64| {
                    let mut inputs = inputs.clone();
                    inputs[*parameter][at] += by;
                    loss(&inputs)
                };
                let want = (moved(1e-4) - moved(-1e-4)) / 2e-4;
                let error = (gradient[at] - want).abs();
                let tensor = &program.tensors()[*parameter].name;
                assert!(
                    error < 1e-5 * (size + want.abs()),
                    "{name}: d_{tensor}[{at}] is {} and not {want}",
                    gradient[at]
                );
            }
        }
    }
}

/// Forward and backward on the executor; returns the worst relative error of a gradient, and kernels and other steps.
fn on_executor(text: &str, ranks: usize, saves: Saves) -> (f64, [usize; 2]) {
    let program = Program::parse(text).expect("parses");
    let dims = dims(&program);
    executed(&program, derive(&program, &dims, saves), ranks)
}

/// Fewer numbers of a rank are judged with those of other ranks.
const FEW: usize = 8;

/// The same of what was derived.
fn executed(program: &Program, derived: Derived, ranks: usize) -> (f64, [usize; 2]) {
    let (forward, mut rng) = (&derived.forward, Rng(11));
    let parameters = parameters(forward, ranks, &mut rng);
    let given = given(&derived, program.results().len(), ranks, &mut rng);
    let totals: Vec<_> = given.iter().map(|g| total(g)).collect();
    let inputs: Vec<_> = parameters.iter().map(|p| total(p)).collect();
    let want = derived.gradients(&totals, &forward.eval(&inputs));

    let (mut held, mut counts) = (Held::new(), [0, 0]);
    let narrow = |list: Vec<f64>| list.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
    for (tensor, contributions) in forward.program.tensors().iter().zip(&parameters) {
        for (rank, part) in forward.scatter(tensor.id, contributions, ranks).into_iter().enumerate()
        {
            held.insert((rank, tensor.id), narrow(part));
        }
    }
    run_steps(forward, ranks, &mut held, &mut counts);
    let mut back = Held::new();
    if let Some(b) = &derived.backward {
        for (input, tensor) in derived.gradient.inputs.iter().zip(b.program.tensors()) {
            for rank in 0..ranks {
                let part = match *input {
                    Input::Gradient(i) => {
                        narrow(b.scatter(tensor.id, &given[i], ranks)[rank].clone())
                    }
                    Input::Parameter(i) => held[&(rank, forward.program.tensors()[i].id)].clone(),
                    Input::Saved(i) => held[&(rank, forward.program.results()[i])].clone(),
                    Input::Main(i) => held[&(rank, forward.program.tensors()[i].id)].clone(),
                    Input::Ones => vec![1.0; b.layout(tensor.id, ranks, rank).elements()],
                };
                back.insert((rank, tensor.id), part);
            }
        }
        run_steps(b, ranks, &mut back, &mut counts);
    }
    let mut worst = 0.0f64;
    for ((parameter, source), want) in derived.gradient.gradients.iter().zip(&want) {
        let (Source::Result(i) | Source::Row(i)) = *source else { continue };
        let b = derived.backward.as_ref().expect("a backward");
        let tensor = &forward.program.tensors()[*parameter];
        let want = forward.scatter(tensor.id, std::slice::from_ref(want), ranks);
        let mut all = [0.0f64; 2];
        for (rank, want) in want.iter().enumerate() {
            let found = &back[&(rank, b.program.results()[i])];
            assert_eq!(found.len(), want.len());
            let size: f64 = want.iter().map(|y| y * y).sum();
            let error: f64 = found.iter().zip(want).map(|(x, y)| (f64::from(*x) - y).powi(2)).sum();
            all = [all[0] + error, all[1] + size];
            // Terms of a sum may cancel: of a few sums the size says nothing, of those of all ranks it does.
            if size > 0.0 && want.len() >= FEW {
                worst = worst.max((error / size).sqrt());
            }
        }
        if all[1] > 0.0 {
            worst = worst.max((all[0] / all[1]).sqrt());
        }
    }
    (worst, counts)
}

#[test]
fn kernels_compute_gradients() {
    let all = pipelines().into_iter().filter(|(_, text)| !is_not_derived(text));
    for (name, text) in some(all, 12) {
        // Of attention results are rounded before gradients are made of them.
        let attends = text.contains("attention(");
        let bound = if attends { 1e-2 } else { 5e-3 };
        for ranks in [1, 2, 3, 4, 8] {
            // Heads are a multiple of ranks; and every world of rings is elsewhere.
            if attends && !matches!(ranks, 1 | 2 | 4) {
                continue;
            }
            let (error, steps) = on_executor(text, ranks, Saves::default());
            if steps[1] > 0 {
                println!("OTHER {name} {ranks} {steps:?}");
            }
            assert!(error < bound, "{name} on {ranks} ranks: {error}");
        }
        if attends {
            continue;
        }
        let (error, steps) = on_executor(text, 2, AGAIN);
        if steps[1] > 0 {
            println!("OTHER again {name} {steps:?}");
        }
        assert!(error < bound, "{name}, with little saved: {error}");
    }
}

/// What has no derivative: derivatives, and values of eight bits.
fn is_not_derived(text: &str) -> bool {
    text.contains("_grad(") || has_eight_bits(text)
}

fn has_eight_bits(text: &str) -> bool {
    text.contains("e4m3") || text.contains("e5m2")
}

#[test]
fn eight_bits_have_no_derivative_and_say_so() {
    let all: Vec<_> = pipelines().into_iter().filter(|(_, text)| has_eight_bits(text)).collect();
    assert!(all.len() >= 4, "{}", all.len());
    for (name, text) in all {
        let program = Program::parse(text).expect("parses");
        match grad(&program, None, Saves::default()) {
            Err(error) => assert!(format!("{error:?}").contains("16 bits"), "{name}: {error}"),
            Ok(_) => panic!("{name} has a backward"),
        }
    }
}

/// Layers of experts, too, of which the products come first: not as ones that read transposed matrices.
#[test]
fn experts_of_eight_bits_have_no_derivative() {
    let matrices = "scaled(128, 128) @ shard(0)";
    let layer = format!(
        "fn f(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), g: f32[T, K] @ shard(0),
        w: e4m3[E, 2, F, H] {matrices}, v: e4m3[E, H, F] {matrices}) {{
            x -> quantize(e4m3, 1, 128) -> dispatch(ids) -> grouped_gemm(w.t) -> swiglu
                -> quantize(e4m3, 1, 128) -> grouped_gemm(v.t) -> combine(g)
        }}"
    );
    let program = Program::parse(&layer).expect("parses");
    for wanted in [None, Some(&[0][..]), Some(&[2][..])] {
        let error = grad(&program, wanted, Saves::default()).expect_err("no derivative");
        let text = error.to_string();
        assert!(text.contains("values of eight bits have no gradients"), "{wanted:?}: {text}");
        assert!(format!("{error:?}").contains("as layers of `mk.nn` do"), "{error:?}");
    }
}

#[test]
fn a_pipeline_is_cut_where_no_kernel_goes_on() {
    let steps = |text: &str, saves| on_executor(text, 4, saves).1;
    let mlp = "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter";
    // Forward; what leads to dx; both weights.
    assert_eq!(steps(mlp, Saves::default()), [3, 0]);
    // The input gathered again on the way to dx; gelu of what was saved is an operation of a kernel.
    assert_eq!(steps(mlp, AGAIN), [3, 0]);
    // The layer's two gradients are one kernel; nothing else is left to do.
    assert_eq!(steps("gather(a) -> gemm(b)", Saves::default()), [2, 0]);
    assert_eq!(steps("gemm(x, w) -> reduce_scatter", Saves::default()), [3, 0]);
    let gated =
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[K, 2, F] @ shard(2), w2: bf16[F, K] @ shard(0)) {
        gather(x) -> gemm(w1) -> swiglu -> gemm(w2) -> reduce_scatter
    }";
    // Gradients of gates and ups leave in the epilogue of the product before.
    assert_eq!(steps(gated, Saves::default()), [3, 0]);
}

#[test]
fn gradients_are_added_to_f32_matrices_by_their_products() {
    // Operands that 16 bits hold: nothing is rounded but sums in f32.
    added("gather(x) -> gemm(w)", &[1], [1, 0], 1e-6);
    added("gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter", &[1, 2], [2, 0], 5e-3);
    let bias = Program::parse("gather(x) -> gemm(w) -> bias(c)").expect("parses");
    let error = grad_into(&bias, None, Saves::default(), &[2]).expect_err("is no product");
    assert!(error.to_string().contains("the gradient of `c` is not"), "{error}");
}

/// Adds gradients of parameters to the parameters themselves, in f64 and on the executor; `steps` are those of the backward.
fn added(text: &str, into: &[usize], steps: [usize; 2], limit: f64) {
    let program = Program::parse(text).expect("parses");
    let (dims, ranks) = (dims(&program), 3);
    let made = grad_into(&program, None, Saves::default(), into).expect("has a backward");
    let derived = Derived {
        forward: Sized::new(made.forward.clone(), &dims),
        backward: made.backward.clone().map(|b| Sized::new(b, &dims)),
        gradient: made,
    };
    let (b, forward) = (derived.backward.as_ref().expect("a backward"), &derived.forward);
    let mut rng = Rng(5);
    let inputs: Vec<_> = parameters(forward, ranks, &mut rng).iter().map(|p| total(p)).collect();
    let given = vec![rng.list(forward.shape(program.results()[0]).iter().product(), 1.0)];
    let values = forward.eval(&inputs);
    // In f64: what the gradients are added to is the weights.
    let sums = derived.gradients(&given, &values);
    let plain = derive(&program, &dims, Saves::default()).gradients(&given, &values);
    let mut back = Held::new();
    for (input, tensor) in derived.gradient.inputs.iter().zip(b.program.tensors()) {
        let whole = match *input {
            Input::Gradient(i) => &given[i],
            Input::Parameter(i) | Input::Main(i) => &inputs[i],
            Input::Saved(i) => &values[forward.program.results()[i].index()],
            Input::Ones => unreachable!("no bias"),
        };
        for (rank, part) in
            b.scatter(tensor.id, std::slice::from_ref(whole), ranks).into_iter().enumerate()
        {
            back.insert((rank, tensor.id), part.into_iter().map(|x| x as f32).collect());
        }
    }
    let mut counts = [0, 0];
    run_steps(b, ranks, &mut back, &mut counts);
    assert_eq!(counts, steps, "no kernel adds by itself");
    for (parameter, source) in &derived.gradient.gradients {
        let Source::Result(i) = *source else { panic!("a result of the backward") };
        let (want, id) = (&sums[*parameter], b.program.results()[i]);
        for (x, (y, w)) in want.iter().zip(plain[*parameter].iter().zip(&inputs[*parameter])) {
            let w = if *parameter == 0 { 0.0 } else { *w };
            assert!((x - y - w).abs() < 1e-9 * (1.0 + y.abs()));
        }
        for (rank, want) in b.scatter(id, std::slice::from_ref(want), ranks).iter().enumerate() {
            let found = back[&(rank, id)].iter().zip(want);
            let (error, size) = found
                .fold((0.0, 0.0), |(e, s), (x, y)| (e + (f64::from(*x) - y).powi(2), s + y * y));
            let limit = if into.contains(parameter) { limit } else { 5e-3 };
            assert!((error / size).sqrt() < limit, "{text}: {parameter} on rank {rank}");
        }
    }
}

#[test]
fn what_has_no_backward_is_refused() {
    let refused = |text: &str| {
        let program = Program::parse(text).expect("parses");
        grad(&program, None, Saves::default()).expect_err("has no backward").to_string()
    };
    let whole = refused(
        "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ replicate) { gather(x) -> gemm(w) }",
    );
    assert!(whole.contains("the same on every rank") && whole.contains("help:"), "{whole}");
    assert!(refused("gemm(a, b) -> gelu_grad(h)").contains("a derivative itself"));
    // Over one axis tokens differ, and over the other one all ranks do the same.
    let axes = refused(
        "fn f(x: bf16[M, K] @ shard(0, dp), w: bf16[K, N] @ shard(0, tp)) { let v = gather(w, tp); x -> gemm(v) }",
    );
    assert!(axes.contains("the same on every rank"), "{axes}");
    let program = Program::parse("gather(a) -> gemm(b)").expect("parses");
    assert!(grad(&program, Some(&[2]), Saves::default()).is_err());
    // Of some parameters alone, there is less to compute.
    let some = grad(&program, Some(&[1]), Saves::default()).expect("has a backward");
    assert_eq!((some.gradients.len(), some.backward.expect("a backward").nodes().len()), (1, 1));
}

#[test]
fn ranks_keep_whole_heads_and_sequences() {
    let error = |text: &str, ranks| {
        let program = Program::parse(text).expect("parses");
        let dims = [("M", 12), ("K", 192)].map(|(name, n)| (name.to_string(), n));
        let bound = program.bind(&dims.into(), &BTreeMap::new()).expect("binds");
        cut(&program, &bound, ranks, &[]).err().map(|e| e.to_string())
    };
    let heads = "fn f(x: bf16[M, K] @ shard(1)) { x -> view(2, S, H, 64) }";
    assert_eq!(error(heads, 3), None);
    let said = error(heads, 2).expect("parts of heads");
    assert!(said.contains("`H` is 3, and 2 ranks share it"), "{said}");
    let sequences = "fn f(x: bf16[M, K] @ shard(0)) { x -> view(2, S, H, 64) }";
    assert_eq!(error(sequences, 2), None);
    let said = error(sequences, 4).expect("parts of sequences");
    assert!(said.contains("`2` is 2, and 4 ranks share it"), "{said}");
    // One sequence may end anywhere.
    assert_eq!(error("fn f(x: bf16[M, K] @ shard(0)) { x -> view(1, S, H, 64) }", 5), None);
}
