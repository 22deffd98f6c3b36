//! Experts over one axis of a mesh, whose matrices ranks along another one share: proved, run on the executor against
//! f64, and compiled.

#[path = "sweep/drawn.rs"]
mod drawn;

use drawn::some;
use mk_codegen::{
    emit,
    passes::{LowerError, compile, lower},
    plan::Plan,
    settings::{Config, NicOrdering},
    sim::Schedule,
};
use mk_function::cut::cut;
use mk_harness::{Case, CpuOptions, Routing, run_on_cpu};
use mk_runtime::{
    Error,
    jit::{self, JitOptions, find_nvrtc},
};
use mk_skip::{Need, skip};
use mk_syntax::{
    Bound, Excerpt, Program,
    grad::{Saves, grad},
};
use std::collections::BTreeMap;

type Axes<'a> = &'a [(&'a str, u32)];

/// Either innermost, of as many ranks and of more, of one rank, a third axis beside.
const MESHES: [Axes; 9] = [
    &[("ep", 2), ("tp", 2)],
    &[("tp", 2), ("ep", 2)],
    &[("ep", 2), ("tp", 3)],
    &[("tp", 3), ("ep", 2)],
    &[("ep", 4), ("tp", 2)],
    &[("tp", 2), ("ep", 4)],
    &[("ep", 1), ("tp", 2)],
    &[("ep", 2), ("tp", 1)],
    &[("tp", 2), ("dp", 2), ("ep", 2)],
];

const TOKENS: &str =
    "x: bf16[T, H] @ shard(0, ep), ids: i32[T, K] @ shard(0, ep), gate: f32[T, K] @ shard(0, ep)";
const UP: &str = "w1: bf16[E, H, 2, I] @ shard(0, ep) @ shard(3, tp)";
const DOWN: &str = "w2: bf16[E, I, H] @ shard(0, ep) @ shard(1, tp)";
const SIZES: [(&str, u64); 5] = [("T", 48), ("H", 16), ("I", 48), ("E", 7), ("K", 2)];

/// Tokens to their experts and back, and then the sum of what ranks along `tp` have.
fn layer(sum: &str) -> String {
    format!(
        "fn layer({TOKENS}, {UP}, {DOWN}) {{ \
         dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate) -> {sum} }}"
    )
}

fn read(text: &str, sizes: &[(&str, u64)]) -> (Program, Bound) {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let sizes = sizes.iter().filter(|(name, _)| program.symbol(name).is_some());
    let sizes = sizes.map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&sizes, &BTreeMap::new()).unwrap_or_else(|e| panic!("{text}: {e}"));
    (program, bound)
}

fn on(axes: Axes) -> Config {
    let mesh: Vec<_> = axes.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let ranks = mesh.iter().map(|axis| axis.1).product();
    Config { ranks, mesh, block: [128, 128, 64], compute_sms: Some(3), ..Config::default() }
}

#[track_caller]
fn right(text: &str, sizes: &[(&str, u64)], axes: Axes, schedules: &[Schedule]) -> Plan {
    right_on(text, sizes, &on(axes), schedules)
}

#[track_caller]
fn right_on(text: &str, sizes: &[(&str, u64)], config: &Config, schedules: &[Schedule]) -> Plan {
    let (program, bound) = read(text, sizes);
    let sharing = program.ranks_of_experts(config.ranks, &config.mesh);
    let bound = bound.on(&program, sharing).expect("room");
    let what = format!("{text} on {:?} of {} nodes", config.mesh, config.nodes);
    let (plan, _) = compile(&program, &bound, config).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(plan.mesh.axes, config.mesh);
    emit::emit(&plan).unwrap_or_else(|e| panic!("{what}: {e}"));
    let reread: Plan = plan.to_string().parse().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(reread, plan);
    let size = |name: &String| plan.mesh.axis(name).map_or(1, |axis| axis.size as usize);
    let ranks = program.mesh_axes().iter().map(size).product();
    let case = Case { program: &program, bound: &bound, ranks };
    let routings = [Routing::Random, Routing::One, Routing::Padded];
    for (seed, (schedule, routing)) in (0..).zip(schedules.iter().zip(routings.iter().cycle())) {
        let options = CpuOptions {
            schedule: *schedule,
            seed,
            launches: 2,
            routing: *routing,
            ..CpuOptions::default()
        };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let last = run.judged.last().expect("a launch");
        assert_eq!(last.len(), config.ranks as usize);
        for (rank, judged) in last.iter().enumerate() {
            let right = judged.passes() && judged.judged > 0;
            assert!(right, "{what}, {routing:?}, {schedule}, rank {rank}: {judged}");
        }
    }
    plan
}

#[test]
fn matrices_over_the_other_axis() {
    for axes in some(MESHES, 4) {
        for sum in ["all_reduce(tp)", "reduce_scatter(tp)"] {
            right(&layer(sum), &SIZES, axes, &[Schedule::Random]);
        }
    }
}

/// Without gates; with a bias; what tokens had is added; rows that do not fit are dropped; tokens that ranks along `tp`
/// do not divide; ids of 64 bits.
#[test]
fn other_layers() {
    let plain = format!(
        "fn layer({TOKENS}, w1: bf16[E, H, I] @ shard(0, ep) @ shard(2, tp), {DOWN}) {{ \
         dispatch(x, ids) -> grouped_gemm(w1) -> silu -> grouped_gemm(w2) -> combine(gate) -> all_reduce(tp) }}"
    );
    let (more, ragged) = (&SIZES[1..], [("T", 26)]);
    let ragged: Vec<_> = ragged.iter().chain(more).copied().collect();
    for axes in some([MESHES[0], MESHES[3]], 2) {
        right(&plain, &SIZES, axes, &[Schedule::Random]);
        let biased = plain
            .replace(") {", ", b1: bf16[E, I] @ shard(0, ep) @ shard(1, tp)) {")
            .replace("(w1)", "(w1) -> bias(b1)");
        right(&biased, &SIZES, axes, &[Schedule::Random]);
        let added = plain.replace(") {", ", s: bf16[T, H] @ shard(0, ep)) {");
        let added = added.replace("all_reduce(tp)", "all_reduce(tp) -> add(s)");
        right(&added, &SIZES, axes, &[Schedule::Random]);
        let scattered = added
            .replace("all_reduce", "reduce_scatter")
            .replace("s: bf16[T, H] @ shard(0, ep)", "s: bf16[T, H] @ shard(0, ep) @ shard(0, tp)");
        right(&scattered, &ragged, axes, &[Schedule::Random]);
        right(&layer("all_reduce(tp)").replace("i32", "i64"), &ragged, axes, &[Schedule::Random]);
        let dropped = layer("all_reduce(tp)").replace("ids)", "ids, capacity = 1280, drop)");
        right(&dropped, &SIZES, axes, &[Schedule::Random]);
    }
}

/// What a backward is made of, kernel by kernel.
#[test]
fn gradients() {
    let back = format!(
        "fn f({TOKENS}, {DOWN}, h: bf16[R, 2, I] @ shard(0, ep) @ shard(2, tp)) {{ \
         dispatch(x, ids, gate, capacity = R) -> grouped_gemm(w2.t) -> swiglu_grad(h) }}"
    );
    let [rows, cut] = ["@ shard(0, ep)", "@ shard(0, ep) @ shard(1, tp)"];
    let down = format!(
        "fn f(a: bf16[R, I] {cut}, ids: i32[T, K] {rows}, d: bf16[R, H] {rows}) {{ \
         ragged(a, ids) -> grouped_wgrad(d, experts = E) }}"
    );
    let up = format!(
        "fn f(a: bf16[R, H] {rows}, ids: i32[T, K] {rows}, d: bf16[R, I] {cut}) {{ \
         ragged(a, ids) -> grouped_wgrad(d, experts = E) }}"
    );
    let tokens = format!(
        "fn f(d: bf16[R, I] {cut}, ids: i32[T, K] {rows}, ones: f32[T, K] {rows}, \
         w: bf16[E, H, I] {rows} @ shard(2, tp)) {{ \
         ragged(d, ids) -> grouped_gemm(w.t) -> combine(ones) -> reduce_scatter(tp) }}"
    );
    // Gradients of matrices take experts that ranks divide.
    let sizes = [("T", 48), ("H", 16), ("I", 48), ("E", 8), ("K", 2), ("R", 2048)];
    for axes in some([MESHES[0], MESHES[1], MESHES[2]], 3) {
        for text in [&back, &down, &up, &tokens, &gates(""), &gates(", drop")] {
            right(text, &sizes, axes, &[Schedule::Random]);
        }
    }
}

/// Products of rows and gradients, of what each rank contributes to rows.
fn gates(drop: &str) -> String {
    let rows = "@ shard(0, ep)";
    format!(
        "fn f(a: bf16[R, I] {rows} @ shard(1, tp), ids: i32[T, K] {rows}, {DOWN}, d: bf16[T, H] {rows}) {{ \
         ragged(a, ids{drop}) -> grouped_gemm(w2) -> combine_grad(d) -> all_reduce(tp) }}"
    )
}

/// The derived backward of all parameters, kernel by kernel; the gradient of scattered tokens is gathered before.
#[test]
fn backward() {
    let sizes =
        [("T", 48), ("H", 16), ("I", 48), ("E", 8), ("K", 2), ("room_0", 1536), ("I_2", 96)];
    let meshes = [MESHES[0], MESHES[3], MESHES[7], MESHES[6]];
    let sums = ["reduce_scatter(tp)", "all_reduce(tp)"];
    for (axes, sum) in some(meshes.into_iter().zip(sums.iter().cycle()), 4) {
        let (program, _) = read(&layer(sum), &sizes);
        let made = grad(&program, None, Saves::default()).expect("a backward");
        let backward = made.backward.expect("gradients");
        let text = Excerpt::whole(&backward).text();
        let (_, bound) = read(&text, &sizes);
        let config = on(axes);
        let steps = cut(&backward, &bound, config.ranks, &config.mesh);
        let steps = steps.unwrap_or_else(|e| panic!("{text}: {e}"));
        let texts: Vec<_> = steps.into_iter().map(|step| step.text).collect();
        for of in ["swiglu_grad", "combine(ones) -> all_reduce", "combine_grad", "grouped_wgrad"] {
            assert!(texts.iter().any(|text| text.contains(of)), "{of} of {texts:?}");
        }
        for text in texts.iter().filter(|text| text.contains("grouped")) {
            right(text, &sizes, axes, &[Schedule::Random]);
        }
    }
}

/// Along axes that a pipeline does not name, ranks have experts and tokens of their own.
#[test]
fn experts_over_one_axis_of_a_mesh() {
    let text =
        layer("all_reduce(tp)").replace(" @ shard(3, tp)", "").replace(" @ shard(1, tp)", "");
    let text = text.replace(" -> all_reduce(tp)", "");
    for axes in [
        &[("dp", 2), ("ep", 2)][..],
        &[("ep", 2), ("dp", 2)],
        &[("ep", 3), ("dp", 2)],
        &[("dp", 2), ("ep", 2), ("pp", 2)],
    ] {
        right(&text, &SIZES, axes, &[Schedule::Random]);
    }
    let counted = "fn f(x: bf16[R, H] @ shard(0, ep), n: i32[E] @ shard(0, ep), w1: bf16[E, H, I] @ shard(0, ep)) { \
                   ragged(x, n) -> grouped_gemm(w1) -> silu }";
    let sizes = [("R", 512), ("H", 16), ("I", 24), ("E", 4)];
    for axes in [&[("ep", 2), ("dp", 2)][..], &[("dp", 2), ("ep", 2)]] {
        right(counted, &sizes, axes, &[Schedule::Random]);
    }
}

/// Each node has one rank of those that share experts, and all that share its matrices.
#[test]
fn experts_over_nodes() {
    let more = SIZES.map(|(name, n)| (name, if name == "T" { 42 } else { n }));
    let many = SIZES.map(|(name, n)| (name, if name == "T" { 520 } else { n }));
    let worlds = [
        (MESHES[0], NicOrdering::InOrder),
        (MESHES[2], NicOrdering::Unordered),
        (&[("ep", 3), ("tp", 2)], NicOrdering::InOrder),
    ];
    for (axes, net) in some(worlds, 3) {
        let config = Config { nodes: axes[0].1, net, ..on(axes) };
        for sum in some(["all_reduce(tp)", "reduce_scatter(tp)"], 2) {
            right_on(&layer(sum), &more, &config, &[Schedule::Random]);
        }
        let added = layer("reduce_scatter(tp) -> add(s)");
        let added = added.replace(") {", ", s: bf16[T, H] @ shard(0, ep) @ shard(0, tp)) {");
        right_on(&added, &SIZES, &config, &[Schedule::Random]);
    }
    let config = Config { nodes: 2, ..on(MESHES[0]) };
    // Tokens of several chunks, which their ranks do not begin with.
    right_on(&layer("reduce_scatter(tp)"), &many, &config, &[Schedule::Random]);
    let dropped = layer("all_reduce(tp)").replace("ids)", "ids, capacity = 1280, drop)");
    right_on(&dropped, &SIZES, &config, &[Schedule::Random]);
    // Along another axis ranks have experts and tokens of their own.
    let text =
        layer("all_reduce(tp)").replace(" @ shard(3, tp)", "").replace(" @ shard(1, tp)", "");
    let text = text.replace(" -> all_reduce(tp)", "");
    let worlds =
        [([("ep", 2), ("dp", 2)], 2), ([("ep", 4), ("dp", 2)], 2), ([("dp", 2), ("ep", 4)], 4)];
    for (axes, nodes) in some(worlds, 3) {
        let config = Config { nodes, ..on(&axes) };
        right_on(&text, &SIZES, &config, &[Schedule::Random]);
    }
}

#[test]
fn any_order_of_steps() {
    for (sum, axes) in [("all_reduce(tp)", MESHES[1]), ("reduce_scatter(tp)", MESHES[0])] {
        right(&layer(sum), &SIZES, axes, &Schedule::all(4));
    }
}

/// Sixty-four ranks, either axis innermost.
#[test]
fn eight_by_eight_is_proved() {
    let sizes = [("T", 64), ("H", 16), ("I", 64), ("E", 8), ("K", 2), ("R", 2048)];
    let all = [
        (layer("all_reduce(tp)"), [("ep", 8), ("tp", 8)]),
        (layer("reduce_scatter(tp)"), [("tp", 8), ("ep", 8)]),
        (gates(""), [("tp", 8), ("ep", 8)]),
    ];
    for (text, axes) in some(all, 3) {
        let (program, bound) = read(&text, &sizes);
        let (plan, _) = compile(&program, &bound, &on(&axes)).unwrap_or_else(|e| panic!("{e}"));
        emit::emit(&plan).expect("emits");
    }
}

#[test]
fn what_no_kernel_does_is_refused() {
    let refused = |text: &str, axes: Axes| {
        let (program, bound) = read(text, &SIZES);
        match lower(&program, &bound, &on(axes)) {
            Err(LowerError::Unsupported { why, help, .. }) => format!("{why}; {help}"),
            other => panic!("{other:?}"),
        }
    };
    let fits = layer("all_reduce(tp)");
    let odd = refused(&fits, &[("ep", 2), ("tp", 5)]);
    assert!(odd.contains("48, is not as long on each of 5 ranks"), "{odd}");
    let few = refused(&fits, &[("ep", 16), ("tp", 2)]);
    assert!(few.contains("7 experts over 16 ranks"), "{few}");
    let over_nodes = |text: &str, sizes: &[(&str, u64)], axes: Axes| {
        let (program, bound) = read(text, sizes);
        let config = Config { nodes: 2, ..on(axes) };
        lower(&program, &bound, &config).expect_err("several nodes").to_string()
    };
    let shared = over_nodes(&fits, &SIZES, MESHES[1]);
    assert!(
        shared.contains("`sum of combined rows`") && shared.contains("memory of every rank"),
        "{shared}"
    );
    let sizes = [("T", 48), ("H", 16), ("I", 48), ("E", 8), ("K", 2), ("R", 2048)];
    let products = over_nodes(&gates(""), &sizes, MESHES[0]);
    assert!(products.contains("its products are summed along an axis"), "{products}");
    let relu = refused(&layer("all_reduce(tp) -> relu"), MESHES[0]);
    assert!(relu.contains("other than an `add`"), "{relu}");
    let scattered = gates("").replace("all_reduce", "reduce_scatter").replace("R, I", "2048, I");
    let scattered = refused(&scattered, MESHES[0]);
    assert!(scattered.contains("products are scattered; write `all_reduce`"), "{scattered}");
    let columns = refused(&layer("reduce_scatter(tp, dim = 1)"), MESHES[0]);
    assert!(columns.contains("columns of tokens"), "{columns}");
}

#[test]
fn kernels_compile() {
    match find_nvrtc(&JitOptions::default()) {
        Err(Error::NvrtcMissing { .. }) => return skip(Need::Nvrtc, ""),
        found => found.map(|_| ()).expect("a compiler"),
    }
    let sizes = [("T", 2048), ("H", 512), ("I", 512), ("E", 16), ("K", 4), ("R", 40960)];
    for (text, axes, nodes) in [
        (layer("all_reduce(tp)"), MESHES[0], 1),
        (layer("reduce_scatter(tp)"), MESHES[5], 1),
        (layer("reduce_scatter(tp)"), MESHES[0], 2),
        (gates(""), MESHES[1], 1),
    ] {
        let (program, bound) = read(&text, &sizes);
        let block = Config::default().block;
        let config = Config { block, compute_sms: None, nodes, ..on(axes) };
        let plan = lower(&program, &bound, &config).expect("lowers");
        let kernel = emit::emit(&plan).expect("emits");
        let cache_dir = Some(std::env::temp_dir().join("mk-test-cache"));
        let compiled = jit::compile(&kernel, &JitOptions { cache_dir, ..JitOptions::default() });
        compiled.unwrap_or_else(|e| panic!("{program}: {e}"));
    }
}
