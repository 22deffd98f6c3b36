//! Pipelines over two axes of a mesh, one of which is over nodes: proved, run on the executor against f64, and compiled.

#[path = "sweep/drawn.rs"]
mod drawn;
#[path = "sweep/on_mesh.rs"]
mod on_mesh;

use drawn::some;
use mk_codegen::{
    emit,
    passes::{LowerError, lower},
    settings::{AllReduce, Config, NicOrdering, Reduction},
    sim::Schedule,
};
use mk_harness::Judgement;
use mk_runtime::{
    Error,
    jit::{self, JitOptions, find_nvrtc},
};
use mk_skip::{Need, skip};
use on_mesh::{Shapes, on, read, right, run};

/// Each axis inside nodes and over them: the outer one is over nodes.
const MESHES: [[(&str, u32); 2]; 8] = [
    [("dp", 2), ("tp", 2)],
    [("tp", 2), ("dp", 2)],
    [("dp", 2), ("tp", 3)],
    [("tp", 2), ("dp", 3)],
    [("dp", 3), ("tp", 2)],
    [("tp", 3), ("dp", 2)],
    [("dp", 4), ("tp", 2)],
    [("tp", 2), ("dp", 4)],
];

/// Nodes of one rank of each group along the outer axis.
fn over(mesh: &[(&str, u32)], net: NicOrdering) -> Config {
    Config { nodes: mesh[0].1, net, ..on(mesh) }
}

/// One in so many meshes, of either ordering in turn.
fn worlds(one_in: usize) -> impl Iterator<Item = Config> {
    let nets = [NicOrdering::InOrder, NicOrdering::Unordered];
    let all = MESHES.iter().enumerate().map(move |(i, mesh)| over(mesh, nets[(i / 2 + i) % 2]));
    some(all.collect::<Vec<_>>(), one_in)
}

/// Rows that neither ranks nor tiles divide, of whole 16 bytes, as messages have them.
const RAGGED: Shapes = &[("a", &[131, 96]), ("b", &[96, 192])];
/// Sizes that ranks of all meshes divide.
const EVEN: Shapes = &[("a", &[768, 192]), ("b", &[192, 192])];
/// Rows gathered over `tp`, K shared over `dp`.
const BOTH: &str =
    "f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp))";

#[test]
fn gathered_over_one_axis_and_summed_over_another() {
    for config in worlds(8) {
        for sum in ["reduce_scatter(dp)", "all_reduce(dp)", "all_reduce(dp) -> silu"] {
            let body = format!("gather(a, tp) -> gemm(b) -> {sum}");
            right(&read(BOTH, &body, RAGGED), &config);
            right(&read(BOTH, &body, EVEN), &config);
            let body = format!("let x = gather(a, tp); (x -> gemm(b) -> {sum}, x)");
            right(&read(BOTH, &body, RAGGED), &config);
        }
    }
}

/// Gradients of weights in parts over `tp`, summed over `dp`; of tokens, summed over `tp`.
#[test]
fn gradients() {
    let columns = "f(x: bf16[T, M] @ shard(0, dp), d: bf16[T, N] @ shard(0, dp) @ shard(1, tp))";
    let rows = "f(x: bf16[T, M] @ shard(0, dp) @ shard(1, tp), d: bf16[T, N] @ shard(0, dp))";
    let shapes: Shapes = &[("x", &[200, 144]), ("d", &[200, 192])];
    let both = "f(x: bf16[M, K] @ shard(0, dp), w: bf16[K, N] @ shard(1, tp), d: bf16[M, N] @ shard(0, dp) @ shard(1, tp))";
    let all: Shapes = &[("x", &[132, 96]), ("w", &[96, 192]), ("d", &[132, 192])];
    for config in worlds(8) {
        for sum in ["reduce_scatter(dp)", "all_reduce(dp)"] {
            right(&read(columns, &format!("gemm(x.t, d) -> {sum}"), shapes), &config);
            let body = format!("(gemm(d, w.t) -> reduce_scatter(tp), gemm(x.t, d) -> {sum})");
            right(&read(both, &body, all), &config);
        }
        right(&read(rows, "gemm(x.t, d) -> all_reduce(dp)", shapes), &config);
    }
}

/// Tokens over both axes; a weight that is gathered before.
#[test]
fn tokens() {
    let signature = "f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, F] @ shard(1, tp), v: bf16[F, K] @ shard(0, tp))";
    let mlp = "gather(x, tp) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter(tp)";
    let shapes: Shapes = &[("x", &[132, 96]), ("w", &[96, 192]), ("v", &[192, 96])];
    // Rows over `dp` are gathered over nodes, and sums over `tp` are inside, or the other way round.
    let other = "f(x: bf16[M, K] @ shard(0, dp) @ shard(1, tp), w: bf16[K, N] @ shard(0, tp))";
    for config in worlds(8) {
        right(&read(signature, mlp, shapes), &config);
        for sum in ["reduce_scatter(tp)", "all_reduce(tp)"] {
            let body = format!("gather(x, dp) -> gemm(w) -> {sum}");
            right(&read(other, &body, &[("x", &[131, 192]), ("w", &[192, 96])]), &config);
        }
    }
}

/// Factors go with their rows: over nodes in a message of their own.
#[test]
fn scaled_rows() {
    let scaled = |axis: &str, other: &str| {
        format!(
            "f(x: e4m3[M, K] scaled(1, 128) @ shard(0, {axis}), w: e4m3[N, K] scaled(128, 128) @ shard(0, {other}))"
        )
    };
    let shapes: Shapes = &[("x", &[768, 256]), ("w", &[1536, 256])];
    for config in worlds(8) {
        let config = Config { block: [128, 128, 64], ..config };
        right(&read(&scaled("dp", "tp"), "gather(x, dp) -> gemm(w.t)", shapes), &config);
    }
}

#[test]
fn collectives_alone() {
    let signature = "f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[M, K] @ shard(1, tp) @ partial(dp))";
    for config in worlds(8) {
        let Config { ranks, mesh, nodes, net, .. } = config;
        let config = Config { ranks, mesh, nodes, net, ..Config::default() };
        let shapes: Shapes = &[("a", &[131, 192]), ("b", &[131, 192])];
        right(&read(signature, "(gather(a, tp), b -> all_reduce(dp))", shapes), &config);
    }
}

/// Settings keep to the axis that they are for: inside nodes all are there.
#[test]
fn every_way_inside_nodes() {
    let signature = "f(x: bf16[M, K] @ shard(0, dp), w: bf16[K, N] @ shard(1, tp), d: bf16[M, N] @ shard(0, dp) @ shard(1, tp))";
    let body = "(gemm(d, w.t) -> reduce_scatter(tp), gemm(x.t, d) -> all_reduce(dp))";
    let shapes: Shapes = &[("x", &[132, 96]), ("w", &[96, 192]), ("d", &[132, 192])];
    let all = read(signature, body, shapes);
    let even = read(BOTH, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", EVEN);
    let net = NicOrdering::InOrder;
    for mesh in &MESHES[..2] {
        right(&even, &Config { reduction: Reduction::AfterLastWave, ..over(mesh, net) });
        right(&even, &Config { split_k: 2, ..over(mesh, net) });
    }
    let inside = over(&[("tp", 2), ("dp", 2)], net);
    right(&all, &Config { all_reduce: AllReduce::OneShot, ..inside.clone() });
    right(&all, &Config { all_reduce: AllReduce::ByColumns, ..inside.clone() });
    let columns = "f(x: bf16[T, M] @ shard(0, dp), d: bf16[T, N] @ shard(0, dp) @ shard(1, tp))";
    let shapes: Shapes = &[("x", &[200, 144]), ("d", &[200, 192])];
    let sum = read(columns, "gemm(x.t, d) -> reduce_scatter(dp)", shapes);
    right(&sum, &Config { reduction: Reduction::Ring, ..inside });
    right(&even, &Config { k_slices: 3, ..over(&[("dp", 2), ("tp", 2)], net) });
}

#[test]
fn any_order_of_steps() {
    let pipeline = read(BOTH, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", RAGGED);
    for (mesh, net) in [(&MESHES[2], NicOrdering::Unordered), (&MESHES[5], NicOrdering::InOrder)] {
        let plan = right(&pipeline, &over(mesh, net));
        for schedule in Schedule::all(6) {
            assert!(run(&pipeline, &plan, schedule).iter().all(Judgement::passes), "{schedule}");
        }
    }
}

/// Beside a third axis some nodes have nothing to do with each other: neither tells the other of its entry.
#[test]
fn three_axes() {
    let pipeline = read(BOTH, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", RAGGED);
    for (mesh, nodes, rail) in [
        ([("pp", 2), ("dp", 2), ("tp", 2)], 4, "kRail = 2, kRailStride = 2;"),
        ([("dp", 2), ("pp", 2), ("tp", 2)], 4, "kRail = 2, kRailStride = 4;"),
        ([("dp", 2), ("tp", 2), ("pp", 2)], 2, "kRail = 2, kRailStride = 4;"),
        ([("pp", 2), ("dp", 2), ("tp", 2)], 2, "kRail = 1, kRailStride = 1;"),
    ] {
        let plan = right(&pipeline, &Config { nodes, ..on(&mesh) });
        let kernel = emit::emit(&plan).expect("emits");
        assert!(kernel.cuda.contains(rail), "{mesh:?}");
    }
}

#[test]
fn what_no_card_carries_is_refused() {
    let refused = |signature: &str, body: &str, shapes: Shapes, config: Config| {
        let (program, bound) = read(signature, body, shapes);
        match lower(&program, &bound, &config) {
            Err(LowerError::Unsupported { op, why, help }) => format!("{op}: {why}; {help}"),
            Err(LowerError::OutOfRange { what, help }) => format!("{what}; {help}"),
            Err(LowerError::Setting(refusal)) => refusal.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let both = "gather(a, tp) -> gemm(b) -> all_reduce(dp)";
    let mesh = [("dp", 2), ("tp", 2)];
    let plain = over(&mesh, NicOrdering::InOrder);
    let of = |config: Config| refused(BOTH, both, RAGGED, config);
    let why = of(Config { nodes: 4, ..on(&mesh) });
    assert!(why.contains("along `tp` and along `dp` are on several nodes; let each node"), "{why}");
    let why = of(Config { nodes: 2, ..on(&[("dp", 4), ("tp", 2)]) });
    assert!(why.contains("a group along `dp` has 2 ranks on each of 2 nodes"), "{why}");
    let why = of(Config { nodes: 2, ..on(&[("dp", 3), ("tp", 2)]) });
    assert!(why.contains("2 nodes cut the axis `tp`"), "{why}");
    let why = of(Config { all_reduce: AllReduce::OneShot, ..plain.clone() });
    assert!(why.contains("`all_reduce=one_shot or by_columns`: one shot reads"), "{why}");
    let odd = refused(BOTH, both, &[("a", &[131, 96]), ("b", &[96, 36])], plain.clone());
    assert!(odd.contains("the rows of a sum are no multiple of 16 bytes"), "{odd}");
    let heads = "f(q: bf16[B, S, H, D] @ shard(1, cp) @ shard(1, up), k: bf16[B, S, H, D] @ shard(1, cp) @ shard(1, up), v: bf16[B, S, H, D] @ shard(1, cp) @ shard(1, up))";
    let exchange = |name: &str| format!("all_to_all({name}, up, split = 2, concat = 1)");
    let [q, k, v] = ["q", "k", "v"].map(exchange);
    let body = format!("let h = {q}; let x = {k}; let y = {v}; ring(x, y, cp) -> attention(h)");
    let shapes: Shapes = &[("q", &[1, 64, 2, 64]), ("k", &[1, 64, 2, 64]), ("v", &[1, 64, 2, 64])];
    let config = Config { nodes: 2, block: Config::default().block, ..on(&[("cp", 2), ("up", 2)]) };
    let why = refused(heads, &body, shapes, config.clone());
    assert!(why.contains("ring behind all_to_all: it touches the memory of every rank"), "{why}");
    let config = Config { mesh: vec![("up".into(), 2), ("cp".into(), 2)], ..config };
    let why = refused(heads, &body, shapes, config);
    assert!(why.contains("all_to_all: it touches the memory of every rank"), "{why}");
}

#[test]
fn kernels_compile() {
    match find_nvrtc(&JitOptions::default()) {
        Err(Error::NvrtcMissing { .. }) => return skip(Need::Nvrtc, ""),
        found => found.map(|_| ()).expect("a compiler"),
    }
    let wide: Shapes = &[("a", &[1001, 512]), ("b", &[512, 528])];
    let other = "f(a: bf16[M, K] @ shard(0, dp) @ shard(1, tp), b: bf16[K, N] @ shard(0, tp))";
    let heads = "f(q: bf16[B, S, H, D] @ zigzag(1, dp) @ shard(2, tp), k: bf16[B, S, H, D] @ zigzag(1, dp) @ shard(2, tp), v: bf16[B, S, H, D] @ zigzag(1, dp) @ shard(2, tp))";
    let long: Shapes = &[("q", &[1, 600, 2, 64]), ("k", &[1, 600, 2, 64]), ("v", &[1, 600, 2, 64])];
    let [two, three] = [&[("dp", 2), ("tp", 2)][..], &[("dp", 2), ("pp", 2), ("tp", 2)]];
    for (signature, body, shapes, mesh, nodes, net) in [
        (BOTH, "gather(a, tp) -> gemm(b) -> all_reduce(dp)", wide, two, 2, NicOrdering::InOrder),
        (
            other,
            "gather(a, dp) -> gemm(b) -> reduce_scatter(tp)",
            wide,
            three,
            4,
            NicOrdering::Unordered,
        ),
        (heads, "ring(k, v, dp) -> attention(q, causal)", long, two, 2, NicOrdering::Unordered),
    ] {
        let (program, bound) = read(signature, body, shapes);
        let block = Config::default().block;
        let config = Config { compute_sms: None, copy_stages: 12, block, nodes, net, ..on(mesh) };
        let kernel = emit::emit(&lower(&program, &bound, &config).expect("lowers")).expect("emits");
        let cache_dir = Some(std::env::temp_dir().join("mk-test-cache"));
        let compiled = jit::compile(&kernel, &JitOptions { cache_dir, ..JitOptions::default() });
        compiled.unwrap_or_else(|e| panic!("{program}: {e}"));
    }
}
