//! Experts of few tokens: plans, proofs, kernels and numbers on the executor, with ranks that have none, and beyond a block of 128 rows.

use mk_codegen::{emit, passes::compile, settings::Config};
use mk_harness::{Case, CpuOptions, Routing, run_on_cpu};
use mk_syntax::Program;
use std::collections::BTreeMap;

const HEAD: &str = "x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0)";
const EXPERTS: &str = "w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)";

/// Each kind of pipeline of a routing, its text and whether `R` rows are given.
fn kinds() -> [(&'static str, String, bool); 5] {
    let layer = |args: &str| {
        format!(
            "fn layer({HEAD}, gate: f32[T, K] @ shard(0), {EXPERTS}) -> bf16[T, H] @ shard(0) {{
    dispatch(x, ids{args}) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}}"
        )
    };
    let wide = layer("").replace("ids: i32", "ids: i64");
    let dispatched = format!(
        "fn dispatched({HEAD}, w: bf16[E, H, I] @ shard(0)) {{ dispatch(x, ids, capacity = R) -> grouped_gemm(w) }}"
    );
    [
        ("dispatch", dispatched, true),
        ("layer", layer(""), false),
        ("wide", wide, false),
        ("capacity", layer(", capacity = R"), true),
        ("drop", layer(", capacity = R, drop"), true),
    ]
}

/// Plans a kind at a size, proves and evaluates it, emits its kernel and runs it under a routing.
fn right(kind: usize, ranks: u64, tokens: u64, slots: u64, seed: u64) {
    let (name, source, given) = &kinds()[kind];
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{name}: {e}"));
    // Experts that ranks do not divide where there are many, and room for a block of each.
    let experts = if ranks == 3 { 5.max(slots) } else { (2 * ranks).max(slots) };
    let own = experts.div_ceil(ranks);
    let rows = ranks * 128 * (own + (tokens * slots.min(own)).div_ceil(128));
    let sizes = [("T", tokens), ("H", 16), ("I", 24), ("E", experts), ("K", slots), ("R", rows)];
    let sizes = sizes.map(|(name, n)| (name.to_string(), n)).into_iter();
    let dims: BTreeMap<_, _> = sizes.filter(|(n, _)| n != "R" || *given).collect();
    let what = format!("{name}, {ranks} ranks, {dims:?}");
    let bound = program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let bound = bound.on(&program, ranks as u32).unwrap_or_else(|e| panic!("{what}: {e}"));
    let config = Config { ranks: ranks as u32, block: [128, 128, 64], ..Config::default() };
    let (plan, _) = compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{what}: {e}"));
    emit::emit(&plan).unwrap_or_else(|e| panic!("{what}: {e}"));
    let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
    // Of a rank, or a launch, without rows there is nothing to judge; of all of them there is.
    let mut elements = 0;
    for routing in [Routing::Random, Routing::One, Routing::Padded] {
        let options = CpuOptions { seed, launches: 2, routing, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (rank, judged) in run.judged.iter().flat_map(|launch| launch.iter().enumerate()) {
            let right = judged.passes() || judged.judged == 0;
            assert!(right, "{what}, {routing:?}, rank {rank}: {judged}");
            elements += judged.judged;
        }
    }
    assert!(elements > 0, "{what}");
}

/// Those that once had no plan: ranks without tokens, a token each, and none of them a flag.
#[test]
fn every_small_number_of_tokens_has_a_plan() {
    for kind in 0..kinds().len() {
        for (ranks, tokens) in [(2, 1), (2, 2), (3, 4), (4, 5)] {
            right(kind, ranks, tokens, 1 + tokens % 2, tokens);
        }
    }
    for (ranks, tokens) in [(1, 1), (1, 2), (4, 1), (8, 9)] {
        right(1, ranks, tokens, 2, tokens);
    }
}

/// Sizes of all kinds: ranks, tokens, slots.
fn grid() -> impl Iterator<Item = (usize, u64, u64, u64)> {
    let tokens = || (1..=70).chain([127, 128, 129, 255, 256, 257, 300]);
    let sizes =
        [1, 2, 3, 4, 8].into_iter().flat_map(move |ranks| tokens().map(move |t| (ranks, t)));
    let sizes = sizes.flat_map(|(ranks, t)| [1, 2, 8].map(|slots| (ranks, t, slots)));
    sizes.flat_map(|(ranks, t, slots)| (0..kinds().len()).map(move |kind| (kind, ranks, t, slots)))
}

/// Others, by a seed that the test prints; all of the grid for `cargo xtask sweep experts`.
#[test]
fn any_number_of_tokens_has_a_plan() {
    if std::env::var_os("MK_SWEEP").is_some() {
        let begin = std::time::Instant::now();
        let n = grid().map(|(kind, ranks, t, slots)| right(kind, ranks, t, slots, t)).count();
        println!(
            "experts: {n} sizes, each planned, proved, evaluated, emitted and run under three routings, in {:.0?}",
            begin.elapsed()
        );
        return;
    }
    let seed = std::env::var("MK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_126);
    println!("MK_SEED={seed}");
    let mut state: u64 = seed;
    let mut next = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % n
    };
    for _ in 0..10 {
        let (kind, ranks) = (next(5) as usize, [1, 2, 3, 4, 8][next(5) as usize]);
        let tokens = if next(4) == 0 { 120 + next(150) } else { 1 + next(40) };
        right(kind, ranks, tokens, [1, 2, 8][next(3) as usize], next(1 << 20));
    }
}
