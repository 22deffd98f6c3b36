//! The plans that are mutated: every pipeline of the catalogue on several worlds and shapes, and every fixture.

use mk_codegen::{
    passes::lower,
    plan::Plan,
    settings::{
        AllReduce, Config, Consumers, Gather, LastWave, NicOrdering, Reduction, Returns, Schedule,
    },
};
use mk_syntax::{Bound, Program};
use std::{collections::BTreeMap, fs, path::Path};

/// A pipeline and the extents of its tensors: rows are `M`, `L` is another that fits into no tile.
type Pipeline = (&'static str, &'static [(&'static str, &'static [char])]);

const PIPELINES: &[Pipeline] = &[
    ("gather(a)", &[("a", &['M', 'K'])]),
    ("reduce_scatter(x)", &[("x", &['M', 'N'])]),
    ("all_reduce(x)", &[("x", &['M', 'N'])]),
    ("gather(a) -> gemm(b)", &[("a", &['M', 'K']), ("b", &['K', 'N'])]),
    (
        "gather(a) -> gemm(b) -> bias(c) -> gelu",
        &[("a", &['M', 'K']), ("b", &['K', 'N']), ("c", &['N'])],
    ),
    ("gemm(a, b) -> reduce_scatter", &[("a", &['M', 'K']), ("b", &['K', 'N'])]),
    ("gemm(a, b) -> all_reduce", &[("a", &['M', 'K']), ("b", &['K', 'N'])]),
    ("gather(a) -> gemm(b) -> reduce_scatter", &[("a", &['M', 'K']), ("b", &['K', 'N'])]),
    (
        "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter",
        &[("x", &['M', 'K']), ("w1", &['K', 'F']), ("w2", &['F', 'N'])],
    ),
    (
        "gather(x) -> gemm(w1) -> bias(c) -> silu -> gemm(w2) -> all_reduce",
        &[("x", &['M', 'K']), ("w1", &['K', 'F']), ("c", &['F']), ("w2", &['F', 'N'])],
    ),
    (
        "gemm(x, w1) -> relu -> gemm(w2) -> bias(d)",
        &[("x", &['M', 'K']), ("w1", &['K', 'F']), ("w2", &['F', 'N']), ("d", &['N'])],
    ),
    (
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[K, 2, F] @ shard(2), w2: bf16[F, N] @ shard(0)) {
             gather(x) -> gemm(w1) -> swiglu -> gemm(w2) -> reduce_scatter
         }",
        &[("x", &['M', 'K']), ("w1", &['K', '2', 'F']), ("w2", &['F', 'N'])],
    ),
    (
        "fn f(dy: bf16[M, K] @ shard(0), w: bf16[F, K] @ shard(0), h: bf16[M, 2, F] @ shard(2)) {
             gather(dy) -> gemm(w.t) -> swiglu_grad(h)
         }",
        &[("dy", &['M', 'K']), ("w", &['F', 'K']), ("h", &['M', '2', 'F'])],
    ),
    (
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[F, K] @ shard(0), w2: bf16[N, F] @ shard(1)) {
             gather(x) -> gemm(w1.t) -> gelu -> gemm(w2.t) -> all_reduce
         }",
        &[("x", &['M', 'K']), ("w1", &['F', 'K']), ("w2", &['N', 'F'])],
    ),
    (
        "fn f(x: bf16[M, K] @ shard(0), dy: bf16[M, N] @ shard(0)) { gemm(x.t, dy) -> reduce_scatter }",
        &[("x", &['M', 'K']), ("dy", &['M', 'N'])],
    ),
    (
        "fn f(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, N] @ shard(0)) {
             let whole = gather(x);
             let h = whole -> gemm(w1) -> gelu;
             (h -> gemm(w2) -> reduce_scatter, whole, h)
         }",
        &[("x", &['M', 'K']), ("w1", &['K', 'F']), ("w2", &['F', 'N'])],
    ),
    (
        "fn f(q: bf16[1, M, 2, 64] @ zigzag(1), k: bf16[1, M, 1, 64] @ zigzag(1), v: bf16[1, M, 1, 64] @ zigzag(1)) {
             let o = ring(k, v) -> attention(q, causal);
             (o, o -> lse)
         }",
        &[("q", QUERIES)],
    ),
    (
        "fn f(q: bf16[1, M, 2, 64] @ zigzag(1), do: bf16[1, M, 2, 64] @ zigzag(1), stats: f32[1, 2, M, 4] @ zigzag(2),
              k: bf16[1, M, 1, 64] @ zigzag(1), v: bf16[1, M, 1, 64] @ zigzag(1)) {
             let dk = ring(q, do, stats) -> attention_dk(k, v, causal);
             (dk, dk -> attention_dv)
         }",
        &[("q", QUERIES)],
    ),
];

const QUERIES: &[char] = &['1', 'M', '2', '6'];

const AB: &[(&str, &[char])] = &[("a", &['M', 'K']), ("b", &['K', 'N'])];
/// Two steps along k on every rank.
const DEEP: &[(&str, &[char])] = &[("a", &['M', 'D']), ("b", &['D', 'N'])];
/// Two steps along k, which every rank has whole.
const DEEP_ROWS: &[(&str, &[char])] = &[("a", &['M', 'G']), ("b", &['G', 'N'])];
/// Columns whose rows TMA can store on every rank; two halves of one step along k on every rank, or what comes.
const HALVES: &[(&str, &[char])] = &[("a", &['M', 'H']), ("b", &['H', 'W'])];
const ALIGNED: &[(&str, &[char])] = &[("a", &['M', 'K']), ("b", &['K', 'W'])];
const MLP: &[(&str, &[char])] = &[("x", &['M', 'K']), ("w1", &['K', 'F']), ("w2", &['F', 'N'])];

/// A strategy: its name, and what it sets.
type Way = (&'static str, fn(&mut Config));

const DEFAULT: Way = ("by default", |_| ());
const ONE_SHOT: Way = ("one shot", |c| c.all_reduce = AllReduce::OneShot);
const AFTER: Way = ("sums after", |c| c.reduction = Reduction::AfterLastWave);
const RING: Way = ("ring", |c| (c.reduction, c.group_m) = (Reduction::Ring, Some(1)));
const SPLIT: Way = ("split", |c| (c.reduction, c.split_k) = (Reduction::AfterLastWave, 2));
const SPLIT_ONE_SHOT: Way = ("split, one shot", |c| {
    (c.reduction, c.split_k, c.all_reduce) = (Reduction::AfterLastWave, 2, AllReduce::OneShot);
});
const BY_COLUMNS: Way = ("by columns", |c| c.all_reduce = AllReduce::ByColumns);
const LAST_WAVE: Way =
    ("tail", |c| c.last_wave = Some(LastWave { blocks: 1, columns: 64, parts: 1 }));

const LAST_WAVE_PARTS: Way =
    ("tail in parts", |c| c.last_wave = Some(LastWave { blocks: 1, columns: 256, parts: 2 }));

const SLICES: Way = ("slices", |c| c.k_slices = 2);
const ENGINE: Way = ("engine", |c| c.gather = Gather::CopyEngine { parts: 1 });
const ENGINE_PARTS: Way = ("engine, in parts", |c| c.gather = Gather::CopyEngine { parts: 2 });
const SLICES_LAST_WAVE: Way = ("slices and a tail in parts", |c| {
    c.k_slices = 2;
    c.last_wave = Some(LastWave { blocks: 1, columns: 128, parts: 2 });
});

const PING_PONG: Way = ("ping-pong", |c| {
    c.block = [128, 128, 64];
    (c.consumers, c.k_slices) = (Consumers::PingPong, 2);
    c.last_wave = Some(LastWave { blocks: 1, columns: 64, parts: 1 });
});

const QUEUED: Way = ("queued", |c| c.tile_scheduler = Schedule::Dynamic);
const QUEUED_AFTER: Way = ("queued, sums after", |c| {
    (c.reduction, c.tile_scheduler) = (Reduction::AfterLastWave, Schedule::Dynamic);
});
const QUEUED_RING: Way = ("queued, ring", |c| {
    (c.reduction, c.tile_scheduler) = (Reduction::Ring, Schedule::Dynamic);
});

/// Pipelines lowered in other than the default ways.
const VARIANTS: &[(Pipeline, Way)] = &[
    (("gemm(a, b) -> all_reduce", AB), ONE_SHOT),
    (("gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> all_reduce", MLP), ONE_SHOT),
    (("gemm(a, b) -> reduce_scatter", AB), AFTER),
    (("gemm(a, b) -> all_reduce", AB), AFTER),
    (("gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter", MLP), AFTER),
    (("gemm(a, b) -> reduce_scatter", HALVES), RING),
    (("gemm(a, b) -> reduce_scatter", ALIGNED), RING),
    (("gemm(a, b) -> reduce_scatter", DEEP), SPLIT),
    (("gemm(a, b) -> all_reduce", DEEP), SPLIT_ONE_SHOT),
    (("gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> all_reduce", MLP), BY_COLUMNS),
    (("gather(a) -> gemm(b)", AB), LAST_WAVE),
    (("gather(a) -> gemm(b)", DEEP_ROWS), LAST_WAVE_PARTS),
    (("gather(a) -> gemm(b)", DEEP_ROWS), SLICES),
    (("gather(a) -> gemm(b)", DEEP_ROWS), SLICES_LAST_WAVE),
    (("gather(a) -> gemm(b)", DEEP_ROWS), PING_PONG),
    (("gather(a) -> gemm(b)", DEEP_ROWS), ENGINE),
    (("gather(a) -> gemm(b)", DEEP_ROWS), ENGINE_PARTS),
    (("gemm(a, b) -> reduce_scatter", AB), QUEUED_AFTER),
    (("gemm(a, b) -> reduce_scatter", ALIGNED), QUEUED_RING),
    (("gemm(a, b) -> all_reduce", AB), QUEUED),
    (("gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter", MLP), QUEUED_AFTER),
];

/// Extents by letter, rows for each rank.
type Shape = (&'static str, u64, &'static [(char, u64)]);

const SHAPES: &[Shape] = &[
    ("one tile", 128, &[('K', 64), ('N', 256), ('F', 240)]),
    ("two tiles", 256, &[('K', 128), ('N', 320), ('F', 512)]),
    ("ragged", 131, &[('K', 72), ('N', 264), ('F', 136)]),
    ("odd pitches", 130, &[('K', 33), ('N', 65), ('F', 130)]),
];

/// Extents that are quick to compute with, and as many tiles.
const SMALL: &[Shape] = &[
    ("small, one tile", 3, &[('K', 8), ('N', 8), ('F', 16)]),
    ("small, two tiles", 130, &[('K', 8), ('N', 264), ('F', 8)]),
    ("small, odd", 5, &[('K', 3), ('N', 9), ('F', 7)]),
];

/// A plan with a name, and its pipeline, if it has one.
pub struct Case {
    pub name: String,
    pub plan: Plan,
    pub pipeline: Option<(Program, Bound)>,
}

impl Case {
    pub fn lowered(name: String, program: Program, bound: Bound, config: &Config) -> Case {
        let plan = lower(&program, &bound, config).unwrap_or_else(|e| panic!("{name}: {e}"));
        Case { name, plan, pipeline: Some((program, bound)) }
    }
}

/// The fixtures of `tests/plans`.
pub fn fixtures() -> Vec<Case> {
    folder("")
}

/// The plans in a folder of `tests/plans`.
pub fn folder(name: &str) -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans").join(name);
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "plan"));
    paths.sort();
    let read = |p: &Path| {
        let text = fs::read_to_string(p).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
        let plan = text.parse().unwrap_or_else(|e| panic!("{}: {e}", p.display()));
        let name = p.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Case { name, plan, pipeline: None }
    };
    paths.iter().map(|p| read(p)).collect()
}

/// The catalogue. `few`: on one world and shape each, in turn, and not on all.
pub fn pipelines(few: bool) -> Vec<Case> {
    catalogue(few, SHAPES)
}

/// The catalogue in small.
pub fn small(few: bool) -> Vec<Case> {
    catalogue(few, SMALL)
}

fn catalogue(few: bool, shapes: &[Shape]) -> Vec<Case> {
    let mut out = Vec::new();
    let all = PIPELINES.iter().map(|p| (p, DEFAULT));
    let all = all.chain(VARIANTS.iter().map(|(p, way)| (p, *way)));
    for (i, ((source, tensors), way)) in all.enumerate() {
        for (j, ranks) in [2u32, 3].into_iter().enumerate() {
            for (k, shape) in shapes.iter().enumerate() {
                // Shapes take turns, the first and the last ones.
                let turn = [0, shapes.len() - 2, shapes.len() - 1][i % 3];
                if few && (k != turn || j != i % 2) {
                    continue;
                }
                let name = format!("{source}, {ranks} ranks, {}, {}", shape.0, way.0);
                let (program, bound, config) =
                    bind(source, ranks, tensors, (shape.1, shape.2), way.1);
                out.push(Case::lowered(name, program, bound, &config));
            }
        }
    }
    out
}

/// Pipelines of the catalogue, each in its way.
pub const CATALOGUE: usize = PIPELINES.len() + VARIANTS.len();

/// A pipeline of the catalogue with any extents, if it lowers.
pub fn random(pipeline: usize, ranks: u32, rows: u64, width: u64) -> Option<Plan> {
    let all = PIPELINES.iter().map(|p| (p, DEFAULT));
    let mut all = all.chain(VARIANTS.iter().map(|(p, way)| (p, *way)));
    let ((source, tensors), (_, set)) = all.nth(pipeline)?;
    let extents = [('K', 1 + width % 9), ('N', width), ('F', 1 + width % 13)];
    let (program, bound, config) = bind(source, ranks, tensors, (rows, &extents), set);
    lower(&program, &bound, &config).ok()
}

/// Pipelines with a number of rows that comes with each launch.
const DYNAMIC: &[&str] = &[
    "fn f<M: dyn <= ROWS>(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) { gather(x) -> gemm(w) }",
    "fn f<M: dyn <= ROWS>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> reduce_scatter }",
    "fn f<M: dyn <= ROWS>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> all_reduce }",
    "fn f<M: dyn <= ROWS>(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0)) {
         gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter
     }",
];

/// Attention of chunks that go around a ring, and on each rank by itself, of as few heads and rows as there are kinds of chunks.
pub fn attention(few: bool) -> Vec<Case> {
    const ALONE: &str = "attention(q, k, v)";
    const RING: &str = "ring(k, v) -> attention(q)";
    const CAUSAL: &str = "let o = ring(k, v) -> attention(q, causal); (o, o -> lse)";
    const ULYSSES: &str = "let x = all_to_all(k, split = 2, concat = 1); let y = all_to_all(v, split = 2, concat = 1);
        all_to_all(q, split = 2, concat = 1) -> attention(x, y) -> all_to_all(split = 1, concat = 2)";
    const BOTH: &str = "let h = all_to_all(q, up, split = 2, concat = 1);
        let x = all_to_all(k, up, split = 2, concat = 1); let y = all_to_all(v, up, split = 2, concat = 1);
        ring(x, y, cp) -> attention(h, causal) -> all_to_all(up, split = 1, concat = 2)";
    const KEPT: &str = "let x = all_to_all(k, split = 2, concat = 1); let y = all_to_all(v, split = 2, concat = 1);
        let o = all_to_all(q, split = 2, concat = 1) -> attention(x, y); (o -> all_to_all(split = 1, concat = 2), x, o)";
    const BEHIND: &str = "attention(q, k, v) -> all_to_all(split = 1, concat = 2)";
    let all = [
        (ULYSSES, "shard(1)", 2, 24),
        (BOTH, "shard(1, cp) @ shard(1, up)", 4, 24),
        (KEPT, "shard(1)", 2, 24),
        (BEHIND, "shard(2)", 2, 140),
        (RING, "shard(1)", 3, 24),
        (CAUSAL, "zigzag(1)", 2, 64),
        (ALONE, "replicate", 1, 40),
        (CAUSAL, "shard(1)", 3, 144),
        (CAUSAL, "zigzag(1)", 3, 300),
        (RING, "shard(1)", 2, 520),
    ];
    let one = |(body, placement, ranks, sequence): &(&str, &str, u32, u64)| {
        let name = format!("{body} @ {placement}, {ranks} ranks, {sequence} rows");
        let kv = format!("bf16[B, S, G, D] @ {placement}");
        let text =
            format!("fn f(q: bf16[B, S, H, D] @ {placement}, k: {kv}, v: {kv}) {{ {body} }}");
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        // Ranks have heads of keys of their own.
        let groups = if body.contains("all_to_all") { 2 } else { 1 };
        let dims = [("B", 1), ("S", *sequence), ("H", 2), ("G", groups), ("D", 64)];
        let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
        let bound =
            program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let axes: &[&str] = if *body == BOTH { &["cp", "up"] } else { &[] };
        let mesh = axes.iter().map(|axis| (axis.to_string(), 2)).collect();
        Case::lowered(name, program, bound, &Config { ranks: *ranks, mesh, ..Config::default() })
    };
    all.iter().take(if few { 6 } else { all.len() }).map(one).collect()
}

/// Tokens to their experts and back, of as few as there are kinds: ranks have unequally many tokens and experts.
pub fn experts(few: bool) -> Vec<Case> {
    const OF: &str =
        "x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), w: bf16[E, H, H] @ shard(0)";
    let alone = format!("fn f({OF}) {{ dispatch(x, ids) -> grouped_gemm(w) }}");
    let layer = format!(
        "fn f({OF}, gate: f32[T, K] @ shard(0)) {{ dispatch(x, ids) -> grouped_gemm(w) -> silu -> combine(gate) }}"
    );
    // Matrices that ranks along another axis share, and what tokens get back, summed.
    let both = |sum: &str| {
        format!(
            "fn f(x: bf16[T, H] @ shard(0, ep), ids: i64[T, K] @ shard(0, ep), gate: f32[T, K] @ shard(0, ep), \
             w: bf16[E, H, N] @ shard(0, ep) @ shard(2, tp), v: bf16[E, N, H] @ shard(0, ep) @ shard(1, tp)) {{ \
             dispatch(x, ids) -> grouped_gemm(w) -> silu -> grouped_gemm(v) -> combine(gate) -> {sum}(tp) }}"
        )
    };
    let [all_reduced, scattered] = ["all_reduce", "reduce_scatter"].map(both);
    let gates = "fn f(a: bf16[R, N] @ shard(0, ep) @ shard(1, tp), ids: i32[T, K] @ shard(0, ep), \
        v: bf16[E, N, H] @ shard(0, ep) @ shard(1, tp), d: bf16[T, H] @ shard(0, ep)) { \
        ragged(a, ids) -> grouped_gemm(v) -> combine_grad(d) -> all_reduce(tp) }"
        .to_string();
    let products =
        "fn f(a: bf16[R, N] @ shard(0), ids: i32[T, K] @ shard(0), v: bf16[E, N, H] @ shard(0), \
        d: bf16[T, H] @ shard(0)) { ragged(a, ids) -> grouped_gemm(v) -> combine_grad(d) }"
            .to_string();
    let weighed =
        "fn f(d: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), \
        v: bf16[E, N, H] @ shard(0), h: bf16[R, 2, N] @ shard(0)) { \
        let u = d -> dispatch(ids, capacity = R) -> grouped_gemm(v.t); let a = h -> swiglu; \
        (u -> weigh(gate) -> swiglu_grad(h), a -> ragged(ids) -> weigh(gate), u -> weigh_grad(a)) }"
            .to_string();
    let (rows, sums) = (Returns::Rows, Returns::Sums);
    // The second over nodes of a rank.
    let all = [
        (&layer, 2, 3, 3, 1, 1, rows),
        (&layer, 2, 3, 3, 1, 2, rows),
        (&weighed, 2, 3, 3, 2, 1, rows),
        (&layer, 2, 3, 3, 2, 1, sums),
        (&products, 2, 3, 3, 2, 1, sums),
        (&all_reduced, 4, 4, 3, 1, 1, rows),
        (&scattered, 4, 6, 3, 2, 1, rows),
        (&gates, 4, 4, 3, 1, 1, rows),
        (&alone, 2, 3, 2, 1, 1, rows),
        (&layer, 3, 5, 3, 2, 1, rows),
        (&layer, 3, 5, 3, 2, 1, sums),
        (&scattered, 4, 6, 3, 2, 2, rows),
    ];
    let one = |of: &(&String, u32, u64, u64, u64, u32, Returns)| {
        let (text, ranks, tokens, experts, slots, nodes, combine) = of;
        let name = format!("{text}, {ranks} ranks on {nodes} nodes, {combine:?}");
        let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let dims =
            [("T", *tokens), ("H", 8), ("K", *slots), ("E", *experts), ("N", 16), ("R", 768)];
        let dims = dims.iter().filter(|(name, _)| program.symbol(name).is_some());
        let dims = dims.map(|(name, n)| (name.to_string(), *n)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
        let axes: &[&str] = match text.contains("tp)") {
            true if *nodes > 1 => &["ep", "tp"],
            true => &["tp", "ep"],
            false => &[],
        };
        let mesh = axes.iter().map(|axis| (axis.to_string(), 2)).collect();
        let config =
            Config { ranks: *ranks, nodes: *nodes, mesh, combine: *combine, ..Config::default() };
        Case::lowered(name, program, bound, &config)
    };
    all.iter().take(if few { 8 } else { all.len() }).map(one).collect()
}

/// Pipelines over two axes of a mesh, of few rows that both axes share, evenly and not.
pub fn meshes(few: bool) -> Vec<Case> {
    const ROWS: &str =
        "a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)";
    const TOKENS: &str =
        "x: bf16[T, M] @ shard(0, dp), d: bf16[T, N] @ shard(0, dp) @ shard(1, tp)";
    const BOTH: &str = "x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, N] @ shard(1, tp)";
    const BACKWARD: &str = "x: bf16[M, K] @ shard(0, dp), w: bf16[K, N] @ shard(1, tp), d: bf16[M, N] @ shard(0, dp) @ shard(1, tp)";
    let all = [
        (ROWS, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", [("tp", 2), ("dp", 2)], 1),
        // Over nodes of two ranks.
        (ROWS, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", [("dp", 2), ("tp", 2)], 2),
        (BOTH, "gather(x, tp) -> gemm(w)", [("dp", 2), ("tp", 2)], 1),
        (
            BACKWARD,
            "(gemm(d, w.t) -> reduce_scatter(tp), gemm(x.t, d) -> all_reduce(dp))",
            [("dp", 2), ("tp", 2)],
            1,
        ),
        (ROWS, "gather(a, tp) -> gemm(b) -> all_reduce(dp)", [("dp", 2), ("tp", 2)], 2),
        (TOKENS, "gemm(x.t, d) -> all_reduce(dp)", [("dp", 2), ("tp", 2)], 1),
        (TOKENS, "gemm(x.t, d) -> reduce_scatter(dp)", [("tp", 2), ("dp", 2)], 1),
        (
            ROWS,
            "let x = gather(a, tp); (x -> gemm(b) -> all_reduce(dp), x)",
            [("dp", 2), ("tp", 2)],
            1,
        ),
        (ROWS, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", [("dp", 3), ("tp", 2)], 1),
    ];
    let one = |(signature, body, mesh, nodes): &(&str, &str, [(&str, u32); 2], u32)| {
        let name = format!("{body}, on {mesh:?}, {nodes} nodes");
        // Messages are of whole 16 bytes.
        let n = if *nodes > 1 { 16 } else { 8 };
        let text = format!("fn f({signature}) {{ {body} }}");
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let dims = [("T", 6), ("M", 12), ("K", 12), ("N", n)];
        let dims = dims.iter().filter(|(name, _)| program.symbol(name).is_some());
        let dims = dims.map(|(name, n)| (name.to_string(), *n)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mesh: Vec<_> = mesh.iter().map(|(axis, n)| (axis.to_string(), *n)).collect();
        let ranks = mesh.iter().map(|(_, n)| n).product();
        Case::lowered(
            name,
            program,
            bound,
            &Config { ranks, mesh, nodes: *nodes, ..Config::default() },
        )
    };
    all.iter().take(if few { 3 } else { all.len() }).map(one).collect()
}

/// Pipelines over two nodes, on networks of both kinds.
pub fn nodes(few: bool) -> Vec<Case> {
    const SOURCES: &[&str] = &[
        "gather(a) -> gemm(b)",
        "gemm(a, b) -> reduce_scatter",
        "gemm(a, b) -> all_reduce",
        "gather(a) -> gemm(b) -> reduce_scatter",
    ];
    let shapes = [("a", vec![64, 16]), ("b", vec![16, 24])];
    let mut out = Vec::new();
    for (i, source) in SOURCES.iter().enumerate() {
        for (j, net) in [NicOrdering::InOrder, NicOrdering::Unordered].into_iter().enumerate() {
            if few && (i % 2 == 1 || j == i / 2) {
                continue;
            }
            let name = format!("{source}, 2 nodes, {net:?}");
            let program = Program::parse(source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
            let shapes = shapes.iter().map(|(n, s)| (n.to_string(), s.clone())).collect();
            let bound = program.bind(&BTreeMap::new(), &shapes).unwrap_or_else(|e| panic!("{e:?}"));
            let config = Config { ranks: 4, nodes: 2, net, ..Config::default() };
            out.push(Case::lowered(name, program, bound, &config));
        }
    }
    for (i, (mask, part)) in [("", "shard(1)"), (", causal", "zigzag(1)")].into_iter().enumerate() {
        let net = [NicOrdering::Unordered, NicOrdering::InOrder][i];
        if few && i > 0 {
            continue;
        }
        let text = format!(
            "fn f(q: bf16[B, S, H, D] @ {part}, k: bf16[B, S, H, D] @ {part}, v: bf16[B, S, H, D] @ {part}) {{ ring(k, v) -> attention(q{mask}) }}"
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        let dims = [("B", 1), ("S", 32), ("H", 1), ("D", 64)].map(|(n, v)| (n.to_string(), v));
        let bound =
            program.bind(&dims.into(), &BTreeMap::new()).unwrap_or_else(|e| panic!("{e:?}"));
        let config = Config { ranks: 4, nodes: 2, net, ..Config::default() };
        out.push(Case::lowered(format!("{text}, 2 nodes, {net:?}"), program, bound, &config));
    }
    out
}

/// How many there are.
pub const RUN_TIME: usize = DYNAMIC.len();

/// One of them with any extents, if it lowers.
pub fn random_run_time(pipeline: usize, ranks: u32, rows: u64, width: u64) -> Option<Plan> {
    let rows = rows * u64::from(ranks);
    let source = DYNAMIC.get(pipeline)?.replace("ROWS", &rows.to_string());
    let program = Program::parse(&source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
    let dims = [("K", 1 + width % 9), ("N", width), ("F", 1 + width % 13)];
    let used = |(name, _): &(&str, u64)| program.symbols().iter().any(|s| s.name == *name);
    let dims = dims.into_iter().filter(used).map(|(n, v)| (n.to_string(), v)).collect();
    let bound = program.bind(&dims, &BTreeMap::new());
    let bound = bound.unwrap_or_else(|e| panic!("{source}: {e:?}"));
    lower(&program, &bound, &Config { ranks, ..Config::default() }).ok()
}

fn bind(
    source: &str,
    ranks: u32,
    tensors: &[(&str, &[char])],
    (rows, extents): (u64, &[(char, u64)]),
    set: fn(&mut Config),
) -> (Program, Bound, Config) {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
    let extent = |c: &char| match extents.iter().find(|s| s.0 == *c) {
        Some((_, n)) => *n,
        None if *c == '1' => 1,
        None if *c == '2' => 2,
        None if *c == '6' => 64,
        None if *c == 'D' => 128 * u64::from(ranks),
        None if *c == 'G' => 128,
        None if *c == 'H' => 128 * u64::from(ranks),
        None if *c == 'W' => 264,
        None => rows * u64::from(ranks),
    };
    let shapes: BTreeMap<_, Vec<u64>> =
        tensors.iter().map(|(n, s)| (n.to_string(), s.iter().map(extent).collect())).collect();
    let bound =
        program.bind(&BTreeMap::new(), &shapes).unwrap_or_else(|e| panic!("{source}: {e:?}"));
    let mut config = Config { ranks, ..Config::default() };
    set(&mut config);
    (program, bound, config)
}
