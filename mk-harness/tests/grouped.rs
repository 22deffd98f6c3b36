//! Rows of experts on the CPU executor, judged by the dense reference: every form of routing, with rows that nobody compares.

use mk_codegen::{passes::compile, settings::Config};
use mk_harness::{Case, CpuOptions, Dense, Inputs, Routing, judge, run_on_cpu};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

const EXPERTS: &str = "fn experts(x: bf16[R, H] @ shard(0), n: i32[E] @ shard(0), w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) {
    ragged(x, n) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2)
}";

fn pipeline() -> (Program, Bound) {
    let program = Program::parse(EXPERTS).unwrap_or_else(|e| panic!("{e}"));
    let dims = [("R", 1024), ("H", 64), ("I", 40), ("E", 6)];
    let dims = dims.map(|(name, n)| (name.to_string(), n)).into();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

#[test]
fn every_routing_is_right() {
    let (program, bound) = pipeline();
    for ranks in [1, 2] {
        let config = Config { ranks, ..Config::default() };
        let (plan, _) = compile(&program, &bound, &config).expect("a plan");
        let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
        for form in ["uniform", "skew:8", "one", "empty", "random"] {
            let routing: Routing = form.parse().expect("a routing");
            let options = CpuOptions { routing, seed: 3, launches: 2, ..CpuOptions::default() };
            let run = run_on_cpu(case, &plan, &options).expect("runs");
            for judged in run.judged.iter().flatten() {
                assert!(judged.passes(), "{form} on {ranks}: {judged}");
                assert!(judged.judged > 0, "{form}: {judged}");
            }
        }
    }
}

/// The layer with experts that the ranks do not divide, more room than any routing takes, and experts of 64 bits.
#[test]
fn layers_are_right() {
    let text = "fn layer(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w1: bf16[E, H, I] @ shard(0),
        w2: bf16[E, I, H] @ shard(0)) { dispatch(x, ids) -> grouped_gemm(w1) -> silu -> grouped_gemm(w2) -> combine(gate) }";
    layer_is_right(text);
    let biased = text
        .replace("shard(0)) {", "shard(0), b1: bf16[E, I] @ shard(0), b2: bf16[E, H] @ shard(0)) {")
        .replace("(w1)", "(w1) -> bias(b1)")
        .replace("(w2)", "(w2) -> bias(b2)");
    layer_is_right(&biased);
    layer_is_right(
        &biased
            .replace("fn layer(", "fn layer<T: own>(")
            .replace("ids)", "ids, capacity = 2304, drop)"),
    );
}

fn layer_is_right(text: &str) {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let dims = [("T", 51), ("K", 2), ("E", 7), ("H", 16), ("I", 24)];
    let dims = dims.map(|(name, n)| (name.to_string(), n)).into();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    let ranks = 3;
    let bound = bound.on(&program, ranks).expect("binds");
    let (plan, _) =
        compile(&program, &bound, &Config { ranks, ..Config::default() }).expect("a plan");
    let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
    for form in ["uniform", "one", "empty"] {
        let routing: Routing = form.parse().expect("a routing");
        let options = CpuOptions { routing, seed: 3, launches: 2, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).expect("runs");
        for judged in run.judged.iter().flatten() {
            assert!(judged.passes() && judged.judged > 0, "{form}: {judged}");
        }
    }
}

/// A row of another expert's is wrong, and one that no expert has is not looked at.
#[test]
fn rows_are_judged_by_their_expert() {
    let (program, bound) = pipeline();
    let case = Case { program: &program, bound: &bound, ranks: 1 };
    let inputs = Inputs::new(case, 5).routed(Routing::Random);
    let counts = inputs.counts(1, &program.tensors()[1], 0);
    let expected = Dense::new(inputs, 1).expected(program.results()[0]).expect("evaluates");
    let expected = &expected[0];
    let right: Vec<f32> = expected.matrix.data.iter().map(|x| *x as f32).collect();
    let first = counts.iter().position(|n| *n > 0).expect("rows");
    let cols = expected.matrix.cols;
    assert!(judge(&right, expected).beyond == 0);
    let mut other = right.clone();
    other[..cols].iter_mut().for_each(|x| *x += 1.0);
    assert!(!judge(&other, expected).passes(), "expert {first}");
    // Behind the last row of the first expert that has any.
    let n = counts[first] as usize;
    assert!(!n.is_multiple_of(128), "{n}");
    let mut behind = right;
    behind[n * cols..(n + 1) * cols].fill(f32::NAN);
    assert!(judge(&behind, expected).beyond == 0);
}
