//! Operations of several kinds in one kernel: experts beside dense GEMMs, gathers and reductions, on the executor against f64; and what may not
//! stand side by side.

use mk_codegen::{
    passes::{LowerError, compile},
    settings::Config,
    sim::Schedule,
};
use mk_harness::{Case, CpuOptions, run_on_cpu};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

const PARAMETERS: &str = "x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), \
    w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)";
const ROUTED: &str =
    "let y = dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate);";

/// A pipeline of experts with further parameters and bindings, for so many tokens.
fn beside(parameters: &str, bindings: &str, results: &str, tokens: u64) -> (Program, Bound) {
    let text = format!("fn f({PARAMETERS}{parameters}) {{ {ROUTED} {bindings} ({results}) }}");
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let sizes = [("T", tokens), ("H", 40), ("I", 24), ("E", 8), ("K", 2), ("F", 72)];
    let has = |name: &str| program.symbol(name).is_some();
    let sizes = sizes.into_iter().filter(|(name, _)| has(name));
    let sizes = sizes.map(|(name, n)| (name.to_string(), n)).collect();
    let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
    (program, bound)
}

fn on(ranks: u32) -> Config {
    Config { ranks, ..Config::default() }
}

#[track_caller]
fn passes((program, bound): &(Program, Bound), ranks: u32) {
    let (plan, _) = compile(program, bound, &on(ranks)).unwrap_or_else(|e| panic!("{ranks}: {e}"));
    let schedules = [Schedule::Random, Schedule::Reversed, Schedule::Starve(0)];
    for (seed, schedule) in schedules.into_iter().enumerate() {
        let case = Case { program, bound, ranks: ranks as usize };
        let options =
            CpuOptions { schedule, seed: seed as u64, launches: 2, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{e}"));
        for judged in run.judged.iter().flatten() {
            assert!(judged.passes(), "{ranks} ranks, {schedule}: {judged:?}");
        }
    }
}

const SHARED: &str = ", up: bf16[H, 2, F] @ shard(2), down: bf16[F, H] @ shard(0)";

#[test]
fn experts_beside_a_shared_expert() {
    let chain = "let s = gather(x) -> gemm(up) -> swiglu -> gemm(down) -> reduce_scatter;";
    for (tokens, ranks) in [(37, 1), (64, 2), (37, 3), (3, 4)] {
        passes(&beside(SHARED, chain, "y, s", tokens), ranks);
    }
}

#[test]
fn experts_beside_a_reduction_for_all_ranks() {
    let parameters = ", a: bf16[T, F] @ shard(1), b: bf16[F, H] @ shard(0)";
    let chain = "let s = gemm(a, b) -> all_reduce;";
    passes(&beside(parameters, chain, "y, s", 37), 2);
    passes(&beside(parameters, chain, "s, y", 5), 3);
}

#[test]
fn experts_beside_gathered_tokens_that_are_a_result() {
    let chain = "let all = gather(x); let s = all -> gemm(v) -> gelu;";
    passes(&beside(", v: bf16[H, F] @ shard(1)", chain, "y, all, s", 64), 2);
    passes(&beside("", "let all = gather(x);", "y, all", 37), 3);
}

#[track_caller]
fn refused(parameters: &str, bindings: &str, results: &str, names: &str) {
    let (program, bound) = beside(parameters, bindings, results, 37);
    match compile(&program, &bound, &on(2)) {
        Err(e @ LowerError::Unsupported { .. }) => {
            let text = e.to_string();
            assert!(text.contains(names) && text.contains("help:"), "{text}");
        }
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("{bindings}: there is a kernel"),
    }
}

#[test]
fn values_do_not_pass_between_experts_and_dense_operations() {
    let v = ", v: bf16[H, F] @ replicate";
    refused(v, "let z = gemm(y, v);", "z", "a dense operation reads it");
    let second = "let z = dispatch(x, ids) -> grouped_gemm(v);";
    refused(", v: bf16[E, H, F] @ shard(0)", second, "y, z", "there is another one");
    let attention = "let o = attention(q, k, v);";
    let heads = ", q: bf16[1, T, 2, 64], k: bf16[1, T, 2, 64], v: bf16[1, T, 2, 64]";
    refused(heads, attention, "y, o", "in the same pipeline");
}
