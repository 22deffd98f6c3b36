//! Experts in eight bits on the executor, under every schedule, against f64 of the dequantised inputs.

use mk_codegen::{passes::compile, settings::Config, sim::Schedule};
use mk_harness::{Case, CpuOptions, run_on_cpu};
use mk_syntax::Program;

const LAYER: &str = "fn layer(x: e4m3[T, H] scaled(1, 128) @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: e4m3[E, 2, F, H] scaled(128, 128) @ shard(0), w2: e4m3[E, H, F] scaled(128, 128) @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(w2.t) -> combine(gate)
}";

fn judge(source: &str, ranks: u32, sizes: &[(&str, u64)], schedules: &[Schedule]) {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let sizes = sizes.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&sizes, &Default::default()).unwrap_or_else(|e| panic!("{e}"));
    let config = Config { ranks, ..Config::default() };
    let (plan, _) = compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{e}"));
    let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
    for schedule in schedules {
        let options =
            CpuOptions { schedule: *schedule, seed: 7, launches: 2, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{schedule:?}: {e}"));
        for judged in run.judged.iter().flatten() {
            assert!(judged.passes(), "{ranks} ranks, {schedule:?}: {judged}");
        }
        // The last rank may have no tokens.
        let mut all = run.judged.iter().flatten();
        assert!(all.any(|judged| judged.norms.global > 0.0), "nothing was compared");
    }
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
    for (ranks, tokens, experts) in [(1, 20, 3), (3, 17, 8), (4, 9, 10)] {
        let sizes = [("T", tokens), ("K", 2), ("E", experts), ("H", 144), ("F", 128)];
        judge(LAYER, ranks, &sizes, &two);
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
