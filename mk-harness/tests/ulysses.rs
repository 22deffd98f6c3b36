//! Attention between exchanges of heads for parts of the sequence, as one kernel: proved, run on the executor against
//! f64, and compiled.

mod attend;

use attend::{SMALL, Shape, withheld};
use mk_codegen::{
    emit,
    passes::{LowerError, compile, lower},
    plan::Plan,
    settings::Config,
    sim::Schedule,
};
use mk_harness::{Case, CpuOptions, run_on_cpu};
use mk_runtime::{
    Error,
    jit::{self, JitOptions, find_nvrtc},
};
use mk_skip::{Need, skip};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

const IN: &str = "all_to_all(split = 2, concat = 1)";
const OUT: &str = " -> all_to_all(split = 1, concat = 2)";

/// Queries, keys and values by heads; results by heads, or `back` by parts of the sequence.
fn exchanged(shape: Shape, words: &str, back: &str) -> (Program, Bound) {
    let Shape { dtype: t, batch, sequence, heads: [h, g], depth } = shape;
    let kv = format!("{t}[B, S, G, D] @ shard(1)");
    read(
        &format!(
            "fn f(q: {t}[B, S, H, D] @ shard(1), k: {kv}, v: {kv}) {{ let x = k -> {IN}; let y = v -> {IN}; \
             q -> {IN} -> attention(x, y{words}){back} }}"
        ),
        &[("B", batch), ("S", sequence), ("H", h), ("G", g), ("D", depth)],
    )
}

fn read(text: &str, dims: &[(&str, u64)]) -> (Program, Bound) {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

/// Few CTAs, so that each has several tiles.
fn on(ranks: u32) -> Config {
    let intra_comm_sms = (ranks > 1).then_some(2);
    Config { ranks, compute_sms: Some(3), intra_comm_sms, copy_stages: 4, ..Config::default() }
}

#[track_caller]
fn right(pipeline: &(Program, Bound), config: &Config, schedules: &[Schedule]) -> Plan {
    let (program, bound) = pipeline;
    let (plan, _) = compile(program, bound, config).unwrap_or_else(|e| panic!("{program}: {e}"));
    emit::emit(&plan).unwrap_or_else(|e| panic!("{program}: {e}"));
    let size = |name: &String| plan.mesh.axis(name).map_or(1, |axis| axis.size as usize);
    let ranks = program.mesh_axes().iter().map(size).product();
    for (seed, schedule) in (0..).zip(schedules) {
        let case = Case { program, bound, ranks };
        let options =
            CpuOptions { schedule: *schedule, seed, launches: 2, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).expect("runs");
        for (rank, judged) in run.judged.iter().flatten().enumerate() {
            assert!(
                judged.passes(),
                "{program} on {:?}, {schedule:?}, {rank}: {judged}",
                config.mesh
            );
        }
    }
    plan
}

#[test]
fn worlds_and_masks() {
    let heads = |ranks: u64, of: u64| [ranks * of, ranks];
    for ranks in [1, 2, 3] {
        for words in ["", ", causal", ", causal, window = 40", ", softcap = 30, scale = 0.25"] {
            let shape = Shape { heads: heads(ranks.into(), 2), ..SMALL };
            right(&exchanged(shape, words, OUT), &on(ranks), &[Schedule::Random]);
        }
        // Results stay with their heads; two batches; wider heads; a sequence that leaves the last ranks little.
        let shape = Shape { heads: heads(ranks.into(), 1), batch: 2, ..SMALL };
        right(&exchanged(shape, ", causal", ""), &on(ranks), &[Schedule::Random]);
        let shape = Shape { heads: heads(ranks.into(), 1), depth: 128, sequence: 13, ..SMALL };
        right(&exchanged(shape, ", causal", OUT), &on(ranks), &[Schedule::Random]);
    }
    let shape = Shape { dtype: "f16", heads: [8, 4], sequence: 5, ..SMALL };
    right(&exchanged(shape, "", OUT), &on(4), &[Schedule::Random]);
}

#[test]
fn logarithms_stay_with_their_heads() {
    let kv = "bf16[B, S, G, D] @ shard(1)";
    let text = format!(
        "fn f(q: bf16[B, S, H, D] @ shard(1), k: {kv}, v: {kv}) {{ let x = k -> {IN}; let y = v -> {IN}; \
         let o = q -> {IN} -> attention(x, y, causal); (o, o -> lse) }}"
    );
    let dims = [("B", 1), ("S", 130), ("H", 4), ("G", 2), ("D", 64)];
    right(&read(&text, &dims), &on(2), &[Schedule::Random]);
    let why =
        refused(&text.replace("(o, o -> lse)", &format!("(o{OUT}, o -> lse)")), &dims, &on(2));
    assert!(why.contains("`lse` stays where its result does not"), "{why}");
}

#[test]
fn any_order_of_steps() {
    let pipeline = exchanged(Shape { heads: [4, 2], sequence: 150, ..SMALL }, ", causal", OUT);
    let plan = right(&pipeline, &on(2), &Schedule::all(2));
    right(&pipeline, &on(2), &withheld(&plan));
}

/// Over one axis of a mesh: ranks along the others have sequences of their own.
#[test]
fn over_an_axis_of_a_mesh() {
    let kv = "bf16[B, S, G, D] @ shard(1, cp)";
    let into = IN.replace("(split", "(cp, split");
    let text = format!(
        "fn f(q: bf16[B, S, H, D] @ shard(1, cp), k: {kv}, v: {kv}) {{ let x = k -> {into}; let y = v -> {into}; \
         q -> {into} -> attention(x, y) -> all_to_all(cp, split = 1, concat = 2) }}"
    );
    let dims = [("B", 1), ("S", 100), ("H", 2), ("G", 2), ("D", 64)];
    for mesh in [[("dp", 2), ("cp", 2)], [("cp", 2), ("dp", 2)]] {
        let mesh = mesh.map(|(name, n)| (name.to_string(), n)).to_vec();
        right(&read(&text, &dims), &Config { mesh, ..on(4) }, &[Schedule::Random]);
    }
}

#[track_caller]
fn refused(text: &str, dims: &[(&str, u64)], config: &Config) -> String {
    let (program, bound) = read(text, dims);
    match lower(&program, &bound, config) {
        Err(LowerError::Unsupported { why, help, .. }) => format!("{why}; {help}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_no_kernel_does_is_refused() {
    let dims = [("B", 1), ("S", 64), ("H", 4), ("G", 2), ("D", 64)];
    let fits = exchanged(Shape { heads: [4, 2], sequence: 64, ..SMALL }, "", OUT);
    let why = |config: &Config| match lower(&fits.0, &fits.1, config) {
        Err(LowerError::Unsupported { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(&on(4)).contains("2 of keys over 4 ranks"));
    assert!(why(&Config { nodes: 2, ..on(2) }).contains("no network card carries that"));
    let kv = "bf16[B, S, G, D] @ shard(1)";
    let alone = format!("fn f(k: {kv}) {{ k -> {IN} }}");
    let dims_of_keys = [dims[0], dims[1], dims[3], dims[4]];
    assert!(refused(&alone, &dims_of_keys, &on(2)).contains("no attention stands before"));
    let some = format!(
        "fn f(q: bf16[B, S, H, D] @ shard(1), k: bf16[B, S, G, D] @ shard(2), v: bf16[B, S, G, D] @ shard(2)) \
         {{ q -> {IN} -> attention(k, v) }}"
    );
    assert!(refused(&some, &dims, &on(2)).contains("its operands are not the caller's"));
}

#[test]
fn kernels_compile() {
    match find_nvrtc(&JitOptions::default()) {
        Err(Error::NvrtcMissing { .. }) => return skip(Need::Nvrtc, ""),
        found => found.map(|_| ()).expect("a compiler"),
    }
    for (heads, depth, words) in [([8, 4], 64, ""), ([4, 4], 128, ", causal")] {
        let shape = Shape { heads, depth, sequence: 1000, ..SMALL };
        let (program, bound) = exchanged(shape, words, OUT);
        let config = Config { ranks: 4, ..Config::default() };
        let plan = lower(&program, &bound, &config).expect("lowers");
        let kernel = emit::emit(&plan).expect("emits");
        let cache_dir = Some(std::env::temp_dir().join("mk-test-cache"));
        let compiled = jit::compile(&kernel, &JitOptions { cache_dir, ..JitOptions::default() });
        compiled.unwrap_or_else(|e| panic!("{program}: {e}"));
    }
}
