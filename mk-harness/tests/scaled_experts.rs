//! Experts in eight bits on the executor, under every schedule, against f64 of the dequantised inputs.

#[path = "sweep/drawn.rs"]
mod drawn;

use drawn::some;
use mk_codegen::{passes::compile, plan::Plan, settings::Config, sim::Schedule};
use mk_harness::{Case, CpuOptions, Inputs, run_on_cpu};
use mk_syntax::{Bound, Program};
use std::collections::BTreeSet;

const LAYER: &str = "fn layer(x: e4m3[T, H] scaled(1, 128) @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: e4m3[E, 2, F, H] scaled(128, 128) @ shard(0), w2: e4m3[E, H, F] scaled(128, 128) @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(w2.t) -> combine(gate)
}";
/// What training keeps of the layer, and the first kernel of its backward.
const KEPT: &str = "fn kept(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: e4m3[E, 2, F, H] scaled(128, 128) @ shard(0), w2: e4m3[E, H, F] scaled(128, 128) @ shard(0)) {
    let rows = x -> quantize(e4m3, 1, 128) -> dispatch(ids);
    (rows -> grouped_gemm(w1.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(w2.t) -> combine(gate), rows)
}";
const BACKWARD: &str = "fn backward(dy: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0),
    v: e4m3[E, F, H] scaled(128, 128) @ shard(0)) {
    let rows = dy -> quantize(e4m3, 1, 128) -> dispatch(ids);
    (rows -> grouped_gemm(v.t), rows)
}";
/// All of backward before the gradients of tokens and matrices.
const GRADIENTS: &str =
    "fn gradients(dy: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    v: e4m3[E, F, H] scaled(128, 128) @ shard(0), h: bf16[R, 2, F] @ shard(0)) {
    let rows = dy -> quantize(e4m3, 1, 128) -> dispatch(ids, capacity = R);
    let u = rows -> grouped_gemm(v.t);
    let a = h -> swiglu;
    (u -> weigh(gate) -> swiglu_grad(h), a -> ragged(ids) -> weigh(gate), u -> weigh_grad(a), rows)
}";

fn judge(source: &str, ranks: u32, sizes: &[(&str, u64)], schedules: &[Schedule]) {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let bound = bind(&program, sizes).on(&program, ranks).expect("binds");
    let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
    let plan = planned(case);
    for schedule in schedules {
        // The last rank may have no tokens.
        assert!(run(case, &plan, *schedule, 7), "nothing was compared");
    }
}

fn bind(program: &Program, sizes: &[(&str, u64)]) -> Bound {
    let sizes = sizes.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    program.bind(&sizes, &Default::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn planned(case: Case<'_>) -> Plan {
    let config = Config { ranks: case.ranks as u32, ..Config::default() };
    let compiled = compile(case.program, case.bound, &config);
    compiled.unwrap_or_else(|e| panic!("{e}")).0
}

/// Judges every result; whether there was one.
fn run(case: Case<'_>, plan: &Plan, schedule: Schedule, seed: u64) -> bool {
    let options = CpuOptions { schedule, seed, launches: 2, ..CpuOptions::default() };
    let run = run_on_cpu(case, plan, &options).unwrap_or_else(|e| panic!("{schedule:?}: {e}"));
    for judged in run.judged.iter().flatten() {
        assert!(judged.passes(), "{} ranks, {schedule:?}, seed {seed}: {judged}", case.ranks);
    }
    run.judged.iter().flatten().any(|judged| judged.norms.global > 0.0)
}

#[test]
fn the_layer_under_every_schedule() {
    let sizes = [("T", 22), ("K", 2), ("E", 4), ("H", 272), ("F", 128)];
    judge(LAYER, 2, &sizes, &Schedule::all(2));
}

/// Worlds of other sizes, tokens that ranks do not divide, a rank with fewer experts.
#[test]
fn the_layer_on_other_worlds() {
    let two = [Schedule::Random, Schedule::Reversed];
    for (ranks, tokens, experts) in some([(1, 20, 3), (3, 17, 8), (4, 9, 10)], 3) {
        let sizes = [("T", tokens), ("K", 2), ("E", experts), ("H", 144), ("F", 128)];
        judge(LAYER, ranks, &sizes, &two);
    }
}

/// Each rank brings its own number of tokens, in eight bits, or quantised on the way out: none, one, or all of seven.
#[test]
fn ranks_have_their_own_number_of_tokens() {
    let given = LAYER.replace("fn layer(", "fn layer<T: own>(");
    let quantised = given
        .replace("e4m3[T, H] scaled(1, 128)", "bf16[T, H]")
        .replace("dispatch(x, ids)", "x -> quantize(e4m3, 1, 128) -> dispatch(ids)");
    let mut brought = BTreeSet::new();
    let kept = KEPT.replace("fn kept(", "fn kept<T: own>(");
    let backward = BACKWARD.replace("fn backward(", "fn backward<T: own>(");
    let sources = [(&given, 1..=4), (&quantised, 2..=2), (&kept, 2..=2), (&backward, 2..=2)];
    for (source, worlds) in some(sources, 4) {
        let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
        for ranks in some(worlds, 2) {
            let sizes = [("T", 7 * u64::from(ranks)), ("K", 2), ("E", 8), ("H", 144), ("F", 128)];
            let bound = bind(&program, &sizes).on(&program, ranks).expect("binds");
            let ranks = ranks as usize;
            let case = Case { program: &program, bound: &bound, ranks };
            let (plan, mut compared) = (planned(case), false);
            for (seed, schedule) in (0..).zip(Schedule::all(ranks)) {
                let inputs = Inputs::new(case, seed);
                let places = (1..=2).flat_map(|launch| (0..ranks).map(move |rank| (launch, rank)));
                let x = program.tensors()[0].id;
                brought.extend(places.filter_map(|(launch, r)| inputs.own_rows(launch, x, r)));
                compared |= run(case, &plan, schedule, seed);
            }
            assert!(compared, "nothing was compared");
        }
    }
    let all = drawn::whole();
    assert!(!all || [0, 1, 7].iter().all(|n| brought.contains(n)), "{brought:?}");
}

/// A number that comes with each launch, given in eight bits and quantised on the way out; over nodes, too, and where
/// ranks do not divide it.
#[test]
fn any_number_of_tokens() {
    let given = LAYER.replace("fn layer(", "fn layer<T: dyn <= 70>(");
    let quantised = given
        .replace("e4m3[T, H] scaled(1, 128)", "bf16[T, H]")
        .replace("dispatch(x, ids)", "x -> quantize(e4m3, 1, 128) -> dispatch(ids)");
    let worlds = [(1, 1), (2, 1), (3, 1), (2, 2), (4, 2), (3, 3)];
    let all = [&given, &quantised].into_iter().flat_map(|text| worlds.map(|world| (text, world)));
    for (text, (ranks, nodes)) in some(all, 4) {
        let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
        let sizes = [("K", 2), ("E", 7), ("H", 144), ("F", 128)];
        let bound = bind(&program, &sizes).on(&program, ranks).expect("binds");
        let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
        let config = Config { ranks, nodes, ..Config::default() };
        let (plan, _) = compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{e}"));
        for (seed, schedule) in [(1, Schedule::Random), (2, Schedule::Reversed)] {
            assert!(run(case, &plan, schedule, seed), "nothing was compared");
        }
    }
}

#[test]
fn gradients_of_rows_and_weights() {
    for (ranks, tokens) in some([(1, 20), (2, 21), (3, 17), (4, 9)], 2) {
        let rows = u64::from(ranks) * 128 * 8;
        let sizes = [("T", tokens), ("K", 2), ("E", 8), ("H", 144), ("F", 128), ("R", rows)];
        judge(GRADIENTS, ranks, &sizes, &Schedule::all(ranks as usize));
    }
}

/// Tokens of 16 bits, quantised on the way out; rows without room are dropped.
#[test]
fn tokens_are_quantised_on_the_way_out() {
    let source = LAYER.replace("e4m3[T, H] scaled(1, 128)", "bf16[T, H]").replace(
        "dispatch(x, ids)",
        "x -> quantize(e4m3, 1, 128) -> dispatch(ids, capacity = R, drop)",
    );
    let sizes = [("T", 300), ("K", 2), ("E", 2), ("H", 144), ("F", 128), ("R", 512)];
    judge(&source, 2, &sizes, &[Schedule::Random, Schedule::Reversed]);
}

/// Rows of eight bits, with their factors, are results beside what is made of them.
#[test]
fn dispatched_rows_are_results() {
    let sizes = [("T", 22), ("K", 2), ("E", 4), ("H", 272), ("F", 128)];
    for source in some([KEPT, BACKWARD], 2) {
        judge(source, 2, &sizes, &Schedule::all(2));
        // The last rank has fewer experts.
        let sizes = [("T", 18), ("K", 2), ("E", 5), ("H", 144), ("F", 128)];
        judge(source, 3, &sizes, &[Schedule::Random, Schedule::Reversed]);
    }
}

/// The other kernels of the backward: rows of eight bits that one before made, back to their tokens.
#[test]
fn rows_of_eight_bits_come_back() {
    let dx = "fn dx(d: e4m3[R, N] scaled(1, 128) @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
        w: e4m3[E, H, N] scaled(128, 128) @ shard(0)) { ragged(d, ids) -> grouped_gemm(w.t) -> combine(gate) }";
    let weights = "fn weights(d: e4m3[R, N] scaled(1, 128) @ shard(0), ids: i64[T, K] @ shard(0), dy: bf16[T, H] @ shard(0),
        w: e4m3[E, H, N] scaled(128, 128) @ shard(0), c: bf16[E, H] @ shard(0)) {
        ragged(d, ids) -> grouped_gemm(w.t) -> bias(c) -> combine_grad(dy)
    }";
    let sizes = [("T", 22), ("K", 2), ("E", 4), ("H", 272), ("N", 256), ("R", 512)];
    for source in [dx, weights] {
        judge(source, 2, &sizes, &[Schedule::Random, Schedule::Reversed]);
    }
}
