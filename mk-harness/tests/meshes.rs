//! Pipelines over one axis of a mesh of several, and over two: proved, run on the executor against f64, and compiled. Groups along the axis have inputs of their own.

#[path = "sweep/drawn.rs"]
mod drawn;
#[path = "sweep/on_mesh.rs"]
mod on_mesh;

use drawn::some;
use mk_codegen::{
    emit,
    equivalence::{self, FieldError},
    passes::{LowerError, compile, lower},
    plan::Plan,
    settings::{AllReduce, Config, Gather, NicOrdering, Reduction},
    sim::Schedule,
    valid,
};
use mk_harness::Judgement;
use mk_runtime::{
    Error,
    jit::{self, JitOptions, find_nvrtc},
};
use mk_skip::{Need, skip};
use mk_syntax::{Bound, Program};
use on_mesh::{Shapes, on, read, right, run};

/// Inner, outer, and in the middle, of axes as long and longer.
const MESHES: [&[(&str, u32)]; 5] = [
    &[("dp", 2), ("tp", 2)],
    &[("tp", 2), ("dp", 2)],
    &[("dp", 2), ("tp", 2), ("pp", 2)],
    &[("tp", 2), ("dp", 2), ("pp", 2)],
    &[("tp", 3), ("dp", 2)],
];

/// Rows that neither ranks nor tiles divide.
const RAGGED: Shapes = &[("a", &[131, 72]), ("b", &[72, 136])];
/// Sizes that ranks of all meshes divide, in whole rows of 16 bytes.
const EVEN: Shapes = &[("a", &[768, 192]), ("b", &[192, 192])];
const ROWS: &str = "f(a: bf16[M, K] @ shard(0, tp), b: bf16[K, N] @ replicate)";
const DEPTH: &str = "f(a: bf16[M, K] @ shard(1, tp), b: bf16[K, N] @ shard(0, tp))";

#[test]
fn gathers() {
    for mesh in some(MESHES, 4) {
        right(&read(ROWS, "gather(a, tp) -> gemm(b)", RAGGED), &on(mesh));
    }
    let pipeline = read(ROWS, "let x = gather(a, tp); (x -> gemm(b), x)", RAGGED);
    let fixed = read(ROWS, "gather(a, tp) -> gemm(b)", &[("a", &[192, 128]), ("b", &[128, 72])]);
    for mesh in &MESHES[..2] {
        right(&pipeline, &on(mesh));
        right(&fixed, &Config { k_slices: 2, ..on(mesh) });
        right(&fixed, &Config { gather: Gather::CopyEngine { parts: 2 }, ..on(mesh) });
    }
}

#[test]
fn sums() {
    for mesh in some(MESHES, 4) {
        right(&read(DEPTH, "gemm(a, b) -> reduce_scatter(tp)", RAGGED), &on(mesh));
        right(&read(DEPTH, "gemm(a, b) -> all_reduce(tp)", RAGGED), &on(mesh));
    }
    let all = read(DEPTH, "gemm(a, b) -> all_reduce(tp)", RAGGED);
    let scatter = read(DEPTH, "gemm(a, b) -> reduce_scatter(tp)", RAGGED);
    for mesh in &MESHES[..3] {
        right(&all, &Config { all_reduce: AllReduce::OneShot, ..on(mesh) });
        right(&all, &Config { all_reduce: AllReduce::ByColumns, ..on(mesh) });
        right(&scatter, &Config { reduction: Reduction::Ring, ..on(mesh) });
        right(&scatter, &Config { reduction: Reduction::AfterLastWave, ..on(mesh) });
    }
}

#[test]
fn chains() {
    let signature = "f(a: bf16[M, K] @ shard(0, tp), b: bf16[K, F] @ shard(1, tp), c: bf16[F, N] @ shard(0, tp))";
    let shapes: Shapes = &[("a", &[131, 72]), ("b", &[72, 144]), ("c", &[144, 72])];
    let layer = read(
        signature,
        "gather(a, tp) -> gemm(b) -> gelu -> gemm(c) -> reduce_scatter(tp)",
        shapes,
    );
    for mesh in some(MESHES, 4) {
        right(&layer, &on(mesh));
    }
    // A pipeline that names other axes, and has nothing along them.
    let signature =
        "f(a: bf16[M, K] @ shard(0, tp) @ replicate(dp), b: bf16[K, N] @ replicate(dp))";
    let several = read(signature, "gather(a, tp) -> gemm(b)", RAGGED);
    assert_eq!(several.0.mesh_axes().len(), 2);
    right(&several, &on(MESHES[0]));
}

#[test]
fn rings() {
    for (at, mask) in
        [("shard(1, cp)", ""), ("shard(1, cp)", ", causal"), ("zigzag(1, cp)", ", causal")]
    {
        let kv = format!("bf16[B, S, G, D] @ {at}");
        let signature = format!("f(q: bf16[B, S, H, D] @ {at}, k: {kv}, v: {kv})");
        let body = format!("ring(k, v, cp) -> attention(q{mask})");
        let shapes: Shapes =
            &[("q", &[1, 75, 2, 64]), ("k", &[1, 75, 1, 64]), ("v", &[1, 75, 1, 64])];
        let pipeline = read(&signature, &body, shapes);
        for mesh in [[("dp", 2), ("cp", 2)], [("cp", 2), ("dp", 2)], [("cp", 3), ("dp", 2)]] {
            let config =
                Config { intra_comm_sms: Some(2), block: Config::default().block, ..on(&mesh) };
            right(&pipeline, &config);
        }
    }
}

/// Meshes of two axes: either innermost, of as many ranks and of more, of one rank.
const TWO: [&[(&str, u32)]; 8] = [
    &[("tp", 2), ("dp", 2)],
    &[("dp", 2), ("tp", 2)],
    &[("tp", 2), ("dp", 3)],
    &[("dp", 3), ("tp", 2)],
    &[("tp", 4), ("dp", 2)],
    &[("dp", 4), ("tp", 2)],
    &[("tp", 1), ("dp", 2)],
    &[("tp", 2), ("dp", 1)],
];

/// Rows gathered over `tp`, K shared over `dp`.
const BOTH: &str =
    "f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp))";

/// Tokens over `dp`, columns of a weight over `tp`.
const GRADIENT: &str =
    "f(x: bf16[T, M] @ shard(0, dp), d: bf16[T, N] @ shard(0, dp) @ shard(1, tp))";

#[test]
fn gathered_over_one_axis_and_summed_over_another() {
    for mesh in some(TWO, 6) {
        for sum in ["reduce_scatter(dp)", "all_reduce(dp)"] {
            let body = format!("gather(a, tp) -> gemm(b) -> {sum}");
            right(&read(BOTH, &body, RAGGED), &on(mesh));
            right(&read(BOTH, &body, EVEN), &on(mesh));
            // What a backward has saved.
            let body = format!("let x = gather(a, tp); (x -> gemm(b) -> {sum}, x)");
            right(&read(BOTH, &body, RAGGED), &on(mesh));
        }
    }
}

#[test]
fn every_way_to_sum_over_the_other_axis() {
    let all = read(BOTH, "gather(a, tp) -> gemm(b) -> all_reduce(dp)", RAGGED);
    let scatter = read(BOTH, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", RAGGED);
    let even = read(BOTH, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", EVEN);
    for mesh in some([TWO[0], TWO[3], TWO[4]], 3) {
        right(&all, &Config { all_reduce: AllReduce::OneShot, ..on(mesh) });
        right(&all, &Config { all_reduce: AllReduce::ByColumns, ..on(mesh) });
        right(&scatter, &Config { reduction: Reduction::AfterLastWave, ..on(mesh) });
        right(&even, &Config { gather: Gather::CopyEngine { parts: 2 }, ..on(mesh) });
        right(&even, &Config { k_slices: 3, ..on(mesh) });
        right(&even, &Config { split_k: 2, ..on(mesh) });
    }
}

/// Gradients of weights that are in parts over `tp`, summed over `dp`.
#[test]
fn gradients_of_weights() {
    // Tokens over `dp`; columns, or rows, of the gradient over `tp`.
    let shapes: Shapes = &[("x", &[200, 136]), ("d", &[200, 72])];
    let rows = "f(x: bf16[T, M] @ shard(0, dp) @ shard(1, tp), d: bf16[T, N] @ shard(0, dp))";
    for mesh in some(TWO, 4) {
        right(&read(GRADIENT, "gemm(x.t, d) -> reduce_scatter(dp)", shapes), &on(mesh));
        right(&read(GRADIENT, "gemm(x.t, d) -> all_reduce(dp)", shapes), &on(mesh));
        right(&read(rows, "gemm(x.t, d) -> all_reduce(dp)", shapes), &on(mesh));
    }
    // Whole layers over `tp`, of K that `dp` shares.
    let signature = "f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, F] @ shard(1, tp) @ shard(0, dp), c: bf16[M, F] @ shard(1, tp))";
    let shapes: Shapes = &[("a", &[131, 72]), ("b", &[72, 144]), ("c", &[131, 144])];
    let layer =
        read(signature, "gather(a, tp) -> gemm(b) -> all_reduce(dp) -> gelu -> mul(c)", shapes);
    some(&TWO[..4], 4).for_each(|mesh| drop(right(&layer, &on(mesh))));
}

/// Tokens over both axes, weights in parts over `tp`.
const TOKENS: &str = "f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, F] @ shard(1, tp), v: bf16[F, K] @ shard(0, tp))";
/// What its backward reads.
const BACKWARD: &str = "f(x: bf16[M, K] @ shard(0, dp), w: bf16[K, N] @ shard(1, tp), d: bf16[M, N] @ shard(0, dp) @ shard(1, tp))";

/// Rows that ranks of `dp` divide, and neither those of `tp` nor tiles.
const TOKENS_RAGGED: Shapes = &[("x", &[132, 72]), ("w", &[72, 144]), ("v", &[144, 72])];
const TOKENS_EVEN: Shapes = &[("x", &[768, 192]), ("w", &[192, 384]), ("v", &[384, 192])];
const BACKWARD_RAGGED: Shapes = &[("x", &[132, 72]), ("w", &[72, 144]), ("d", &[132, 144])];
const BACKWARD_EVEN: Shapes = &[("x", &[768, 192]), ("w", &[192, 384]), ("d", &[768, 384])];

#[test]
fn tokens_over_both_axes() {
    let up = TOKENS.split(", v:").next().expect("a weight").to_string() + ")";
    for (i, mesh) in some(TWO.into_iter().enumerate(), 6) {
        for shapes in [TOKENS_RAGGED, TOKENS_EVEN].into_iter().take(if i < 4 { 2 } else { 1 }) {
            let mlp = "gather(x, tp) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter(tp)";
            right(&read(TOKENS, mlp, shapes), &on(mesh));
            let saved = "let h = gather(x, tp); (h -> gemm(w), h)";
            right(&read(&up, saved, &shapes[..2]), &on(mesh));
            right(&read(&up, "gather(x, tp) -> gemm(w) -> silu", &shapes[..2]), &on(mesh));
        }
    }
    // Named the other way round; inside of `tp` where that comes first; and alone.
    let weight = "f(w: bf16[K, F] @ shard(1, tp), x: bf16[M, K] @ shard(0, dp) @ shard(0, tp))";
    let inside = "f(x: bf16[M, K] @ shard(0, tp) @ shard(0, dp), w: bf16[K, F])";
    let alone = "f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp))";
    for mesh in some(&TWO[..4], 4) {
        right(&read(weight, "gather(x, tp) -> gemm(w)", &TOKENS_RAGGED[..2]), &on(mesh));
        right(&read(inside, "gather(x, dp) -> gemm(w)", &TOKENS_RAGGED[..2]), &on(mesh));
        right(&read(inside, "gemm(x, w)", &TOKENS_RAGGED[..2]), &on(mesh));
        let Config { ranks, mesh, .. } = on(mesh);
        let config = Config { ranks, mesh, ..Config::default() };
        right(&read(alone, "gather(x, tp)", &TOKENS_RAGGED[..1]), &config);
    }
}

#[test]
fn gradients_of_tokens_over_both_axes() {
    for (i, mesh) in some(TWO.into_iter().enumerate(), 6) {
        let all = [BACKWARD_RAGGED, BACKWARD_EVEN];
        for shapes in all.into_iter().take(if i < 4 { 2 } else { 1 }) {
            let tokens = BACKWARD.replace("x: bf16[M, K] @ shard(0, dp), ", "");
            right(&read(&tokens, "gemm(d, w.t) -> reduce_scatter(tp)", &shapes[1..]), &on(mesh));
            for sum in ["all_reduce(dp)", "reduce_scatter(dp)"] {
                let body = format!("(gemm(d, w.t) -> reduce_scatter(tp), gemm(x.t, d) -> {sum})");
                right(&read(BACKWARD, &body, shapes), &on(mesh));
            }
        }
    }
    // Of a weight that all ranks have, contributions of one rank of each axis.
    let both = "f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), d: bf16[M, N] @ shard(0, dp) @ shard(0, tp))";
    let shapes: Shapes = &[("x", &[132, 72]), ("d", &[132, 144])];
    for mesh in some(&TWO[..4], 4) {
        right(&read(both, "gemm(x.t, d) -> all_reduce(dp)", shapes), &on(mesh));
        right(&read(both, "gemm(x.t, d) -> reduce_scatter(tp)", shapes), &on(mesh));
    }
}

#[test]
fn every_way_with_tokens_over_both_axes() {
    let mlp = "gather(x, tp) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter(tp)";
    let ragged = read(TOKENS, mlp, TOKENS_RAGGED);
    let even = read(TOKENS, mlp, TOKENS_EVEN);
    let both = "(gemm(d, w.t) -> reduce_scatter(tp), gemm(x.t, d) -> all_reduce(dp))";
    let all = read(BACKWARD, both, BACKWARD_RAGGED);
    let scattered = read(BACKWARD, &both.replace("all_reduce", "reduce_scatter"), BACKWARD_RAGGED);
    for mesh in some([TWO[0], TWO[3], TWO[5]], 3) {
        right(&ragged, &Config { reduction: Reduction::AfterLastWave, ..on(mesh) });
        right(&even, &Config { gather: Gather::CopyEngine { parts: 2 }, ..on(mesh) });
        right(&even, &Config { k_slices: 3, ..on(mesh) });
        right(&even, &Config { split_k: 2, ..on(mesh) });
        right(&all, &Config { all_reduce: AllReduce::OneShot, ..on(mesh) });
        right(&all, &Config { all_reduce: AllReduce::ByColumns, ..on(mesh) });
        right(&scattered, &Config { reduction: Reduction::Ring, ..on(mesh) });
    }
    let pipeline = read(TOKENS, mlp, TOKENS_RAGGED);
    let plan = right(&pipeline, &on(TWO[1]));
    for schedule in some(Schedule::all(3), 3) {
        assert!(run(&pipeline, &plan, schedule).iter().all(Judgement::passes), "{schedule}");
    }
}

#[test]
fn collectives_alone_over_two_axes() {
    let signature = "f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[M, K] @ shard(1, tp) @ partial(dp))";
    let body = "(gather(a, tp), b -> all_reduce(dp))";
    for mesh in &TWO[..4] {
        let Config { ranks, mesh, .. } = on(mesh);
        let config = Config { ranks, mesh, ..Config::default() };
        right(&read(signature, body, &[("a", &[131, 72]), ("b", &[131, 72])]), &config);
        right(&read(signature, body, &[("a", &[192, 96]), ("b", &[192, 96])]), &config);
    }
}

#[test]
fn any_order_of_steps_over_two_axes() {
    let pipeline = read(BOTH, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", RAGGED);
    let plan = right(&pipeline, &on(TWO[3]));
    for schedule in Schedule::all(6) {
        assert!(run(&pipeline, &plan, schedule).iter().all(Judgement::passes), "{schedule}");
    }
}

/// Owners of rows that are gathered over another axis look different from each rank; where rows are not, one rank stands
/// for all 64.
#[test]
fn eight_by_eight_is_proved() {
    let shapes: Shapes = &[("a", &[2048, 1024]), ("b", &[1024, 1024])];
    let gradients = "f(a: bf16[T, M] @ shard(0, dp), b: bf16[T, N] @ shard(0, dp) @ shard(1, tp))";
    let square: Shapes = &[("a", &[1024, 1024]), ("b", &[1024, 1024])];
    let wide: Shapes = &[("x", &[8192, 512]), ("w", &[512, 1024]), ("v", &[1024, 512])];
    let cases = [
        (read(BOTH, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", shapes), false),
        (read(BOTH, "gather(a, tp) -> gemm(b) -> all_reduce(dp)", shapes), false),
        (read(gradients, "gemm(a.t, b) -> reduce_scatter(dp)", square), true),
        (read(gradients, "gemm(a.t, b) -> all_reduce(dp)", square), true),
        (
            read(TOKENS, "gather(x, tp) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter(tp)", wide),
            true,
        ),
    ];
    for ((program, bound), folded) in cases {
        for mesh in [[("tp", 8), ("dp", 8)], [("dp", 8), ("tp", 8)]] {
            let config = Config { compute_sms: None, ..on(&mesh) };
            let (plan, proof) = compile(&program, &bound, &config).expect("a proof");
            assert_eq!(proof.folded, folded, "{plan}");
        }
    }
}

#[test]
fn what_has_no_kernel_over_two_axes_is_refused() {
    let refused = |(program, bound): &(Program, Bound), config: &Config| match lower(
        program, bound, config,
    ) {
        Err(LowerError::Unsupported { why, help, .. }) => format!("{why}; {help}"),
        Err(LowerError::Setting(refusal)) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    let both = read(BOTH, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", RAGGED);
    let why = refused(&both, &Config { reduction: Reduction::Ring, ..on(TWO[0]) });
    assert!(why.contains("tile by tile"), "{why}");
    let why = refused(&both, &Config { nodes: 2, ..on(TWO[0]) });
    assert!(why.contains("the rows of `a` are no multiple of 16 bytes"), "{why}");
    let why = refused(&both, &on(&[("tp", 2), ("pp", 2)]));
    assert!(why.contains("over the axis `dp`, and the mesh is tp=2,pp=2"), "{why}");
    let why = refused(&both, &Config { ranks: 4, mesh: Vec::new(), ..on(TWO[0]) });
    assert!(why.contains("over the axis"), "{why}");
    let rows = "f(x: bf16[T, M] @ shard(0, dp) @ shard(1, tp), d: bf16[T, N] @ shard(0, dp))";
    let odd = read(rows, "gemm(x.t, d) -> all_reduce(dp)", &[("x", &[64, 131]), ("d", &[64, 72])]);
    let why = refused(&odd, &on(TWO[0]));
    assert!(why.contains("131 rows are not as many on each of 2 ranks"), "{why}");
    let odd = read(
        TOKENS,
        "gather(x, tp) -> gemm(w) -> gemm(v) -> reduce_scatter(tp)",
        &[("x", &[131, 72]), ("w", &[72, 144]), ("v", &[144, 72])],
    );
    let why = refused(&odd, &on(TWO[0]));
    assert!(why.contains("131 rows are not as many on each of 2 ranks"), "{why}");
    let signature =
        "f<M: dyn>(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(0, dp))";
    let dynamic = read(signature, "gather(a, tp) -> gemm(b) -> all_reduce(dp)", RAGGED);
    let why = refused(&dynamic, &on(TWO[0]));
    assert!(why.contains("comes with each launch"), "{why}");
}

#[test]
fn any_order_of_steps() {
    let pipeline = read(DEPTH, "gemm(a, b) -> all_reduce(tp)", RAGGED);
    let plan = right(&pipeline, &on(MESHES[0]));
    for schedule in Schedule::all(4) {
        assert!(run(&pipeline, &plan, schedule).iter().all(Judgement::passes), "{schedule}");
    }
}

/// An axis inside nodes, across them, and both.
#[test]
fn axes_over_nodes() {
    let gather = read(ROWS, "gather(a, tp) -> gemm(b)", RAGGED);
    let all = read(DEPTH, "gemm(a, b) -> all_reduce(tp)", RAGGED);
    for (mesh, nodes) in [
        (&[("dp", 2), ("tp", 2)], 2),
        (&[("tp", 2), ("dp", 2)], 2),
        (&[("tp", 4), ("dp", 2)], 2),
        (&[("dp", 2), ("tp", 4)], 4),
    ] {
        for net in [NicOrdering::InOrder, NicOrdering::Unordered] {
            right(&gather, &Config { nodes, net, ..on(mesh) });
            right(&all, &Config { nodes, net, ..on(mesh) });
        }
    }
}

#[test]
fn what_has_no_plan_is_refused() {
    let refused = |(program, bound): &(Program, Bound), config: &Config| match lower(
        program, bound, config,
    ) {
        Err(LowerError::Unsupported { why, help, .. }) => format!("{why}; {help}"),
        Err(LowerError::OutOfRange { what, help }) => format!("{what}; {help}"),
        other => panic!("{other:?}"),
    };
    let one = read(ROWS, "gather(a, tp) -> gemm(b)", RAGGED);
    let why = refused(&one, &on(&[("cp", 2), ("dp", 2)]));
    assert!(why.contains("`tp`, and the mesh is cp=2,dp=2"), "{why}");
    let why = refused(&one, &Config { ranks: 5, ..on(MESHES[0]) });
    assert!(why.contains("dp=2,tp=2 is not of 5 ranks"), "{why}");
    let why = refused(&one, &Config { nodes: 2, ..on(&[("tp", 3), ("dp", 2)]) });
    assert!(why.contains("2 nodes cut the axis `tp`"), "{why}");
    let why = refused(&one, &Config { nodes: 3, ..on(MESHES[0]) });
    assert!(why.contains("3 nodes cut the axis `tp`"), "{why}");
}

/// A plan that reads from, or waits for, a rank of another group is no plan of the pipeline.
#[test]
fn groups_are_apart() {
    let (program, bound) = read(ROWS, "gather(a, tp) -> gemm(b)", RAGGED);
    let plan = lower(&program, &bound, &on(MESHES[0])).expect("lowers");
    // Along `dp` in place of `tp`.
    let other = Plan {
        mesh: lower(&program, &bound, &on(MESHES[1])).expect("lowers").mesh,
        ..plan.clone()
    };
    assert!(valid::verify(&other).is_ok(), "the same ranks, by other names");
    let found = equivalence::evaluate(&other, &program, &bound, &equivalence::Options::default());
    assert!(matches!(found, Err(FieldError::Wrong(_) | FieldError::Interface { .. })), "{found:?}");
    let judged = run(&(program, bound), &other, Schedule::Random);
    assert!(!judged.iter().all(Judgement::passes));
}

#[test]
fn kernels_compile() {
    match find_nvrtc(&JitOptions::default()) {
        Err(Error::NvrtcMissing { .. }) => return skip(Need::Nvrtc, ""),
        found => found.map(|_| ()).expect("a compiler"),
    }
    let ring = "f(q: bf16[B, S, H, D] @ shard(1, tp), k: bf16[B, S, G, D] @ shard(1, tp), v: bf16[B, S, G, D] @ shard(1, tp))";
    let long: Shapes = &[("q", &[1, 600, 2, 64]), ("k", &[1, 600, 1, 64]), ("v", &[1, 600, 1, 64])];
    let wide: Shapes = &[("a", &[1001, 512]), ("b", &[512, 264])];
    let pipelines = [
        read(ROWS, "gather(a, tp) -> gemm(b)", wide),
        read(DEPTH, "gemm(a, b) -> reduce_scatter(tp)", wide),
        read(DEPTH, "gemm(a, b) -> all_reduce(tp)", wide),
        read(ring, "ring(k, v, tp) -> attention(q, causal)", long),
        read(BOTH, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", wide),
        read(BOTH, "gather(a, tp) -> gemm(b) -> all_reduce(dp)", wide),
        read(
            GRADIENT,
            "gemm(x.t, d) -> reduce_scatter(dp)",
            &[("x", &[512, 264]), ("d", &[512, 1032])],
        ),
        read(
            TOKENS,
            "gather(x, tp) -> gemm(w) -> silu -> gemm(v) -> reduce_scatter(tp)",
            &[("x", &[1012, 512]), ("w", &[512, 1032]), ("v", &[1032, 512])],
        ),
        read(
            BACKWARD,
            "(gemm(d, w.t) -> reduce_scatter(tp), gemm(x.t, d) -> all_reduce(dp))",
            &[("x", &[512, 264]), ("w", &[264, 1040]), ("d", &[512, 1040])],
        ),
    ];
    for (i, (program, bound)) in pipelines.iter().enumerate() {
        // Each axis, of four and of eight ranks; both.
        let one = [MESHES[1], MESHES[2], MESHES[0], MESHES[1]];
        let mesh = [&one[..], &[TWO[1], TWO[4], TWO[0], TWO[1], TWO[4]]].concat()[i];
        let compute_sms = None;
        let config =
            Config { compute_sms, copy_stages: 12, block: Config::default().block, ..on(mesh) };
        let plan = lower(program, bound, &config).expect("lowers");
        let kernel = emit::emit(&plan).expect("emits");
        let cache_dir = Some(std::env::temp_dir().join("mk-test-cache"));
        let compiled = jit::compile(&kernel, &JitOptions { cache_dir, ..JitOptions::default() });
        compiled.unwrap_or_else(|e| panic!("{program}: {e}"));
    }
}
