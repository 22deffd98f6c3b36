//! What the way back through experts is made of: rows by transposed matrices, gradients of gates and ups, what forward saves. Plans, proofs, kernels and
//! numbers on the executor against f64.

use mk_codegen::{emit, passes::compile, settings::Config};
use mk_harness::{Case, CpuOptions, Routing, run_on_cpu};
use mk_syntax::Program;
use std::collections::BTreeMap;

const IDS: &str = "ids: i32[T, K] @ shard(0)";
const GATE: &str = "gate: f32[T, K] @ shard(0)";

/// Each kind of pipeline: its name and text.
fn kinds() -> [(&'static str, String); 4] {
    let forward = format!(
        "fn forward(x: bf16[T, H] @ shard(0), {IDS}, {GATE}, w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) {{
    let h = dispatch(x, ids, capacity = R) -> grouped_gemm(w1);
    (h -> swiglu -> grouped_gemm(w2) -> combine(gate), h)
}}"
    );
    let hidden = format!(
        "fn hidden(dy: bf16[T, H] @ shard(0), {IDS}, w2: bf16[E, I, H] @ shard(0), h: bf16[R, 2, I] @ shard(0)) {{
    dispatch(dy, ids, capacity = R) -> grouped_gemm(w2.t) -> swiglu_grad(h)
}}"
    );
    let back = format!(
        "fn back(dh: bf16[R, I] @ shard(0), {IDS}, {GATE}, w: bf16[E, H, I] @ shard(0)) {{
    ragged(dh, ids) -> grouped_gemm(w.t) -> combine(gate)
}}"
    );
    let ungated = format!(
        "fn ungated(dy: bf16[T, H] @ shard(0), {IDS}, {GATE}, v: bf16[E, I, H] @ shard(0), w: bf16[E, H, I] @ shard(0), h: bf16[R, I] @ shard(0)) {{
    dispatch(dy, ids, capacity = R) -> grouped_gemm(v.t) -> silu_grad(h) -> grouped_gemm(w.t) -> combine(gate)
}}"
    );
    [("forward", forward), ("hidden", hidden), ("back", back), ("ungated", ungated)]
}

/// Plans a kind at a size, proves and evaluates it, emits its kernel and runs it under a routing.
fn right(kind: usize, ranks: u64, tokens: u64, slots: u64, seed: u64) {
    let (name, source) = &kinds()[kind];
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{name}: {e}"));
    let experts = if ranks == 3 { 5.max(slots) } else { (2 * ranks).max(slots) };
    let own = experts.div_ceil(ranks);
    let rows = ranks * 128 * (own + (tokens * slots.min(own)).div_ceil(128));
    let sizes = [("T", tokens), ("H", 16), ("I", 24), ("E", experts), ("K", slots), ("R", rows)];
    let dims: BTreeMap<_, _> = sizes.map(|(name, n)| (name.to_string(), n)).into();
    let what = format!("{name}, {ranks} ranks, {dims:?}");
    let bound = program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{what}: {e}"));
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

#[test]
fn rows_go_back_through_their_experts() {
    for kind in 0..kinds().len() {
        for (ranks, tokens, slots) in [(1, 3, 1), (2, 40, 2), (3, 4, 2), (4, 150, 8)] {
            right(kind, ranks, tokens, slots, tokens);
        }
    }
}
