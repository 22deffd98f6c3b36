//! Every generated kernel through the real compiler: no spills, no serialised wgmma, the instructions that were meant.
//!
//! One in 64, which the printed seed draws (`MK_SEED` repeats it); all by `cargo xtask sweep kernels`, as CI does.

#[path = "../mk-codegen/tests/common/attention.rs"]
mod attention;
#[path = "../mk-codegen/tests/common/mod.rs"]
mod common;
#[path = "../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
#[path = "nvrtc/experts.rs"]
mod layers;

use attention::ATTENTION;
use common::{CASES, VARIANTS, Variant, plan};
use mk::Program;
use mk::build::{Composition, Making};
use mk::emit::Options;
use mk::function::FunctionError;
use mk::kept::Proofs;
use mk::passes::LowerError;
use mk::plan::{EpilogueOp, Family, Leaf, MmaTile, Plan};
use mk::runtime::Error;
use mk::runtime::jit::{self, JitOptions};
use mk::settings::{AllReduce, Config, Reduction};
use mk::syntax::grad::{Saves, grad};
use mk::tune::{self, Choice, Conditions, Fuse, Fusion, Reason, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

#[test]
fn kernels_compile_to_cubin() {
    compile(Options::default());
}

#[test]
fn traced_kernels_compile_to_cubin() {
    compile(Options { trace: true });
}

#[test]
fn attention_compiles() {
    for (name, a) in ATTENTION {
        judge(&format!("attention_{name}"), Options::default(), || {
            a.text().parse().unwrap_or_else(|e| panic!("{name}: {e}"))
        });
    }
    let shard = "bf16[B, S, H, D] @ zigzag(1)";
    let ring = format!(
        "fn f(q: {shard}, k: {shard}, v: {shard}) {{ ring(k, v) -> attention(q, causal) }}"
    );
    let shape: &[u64] = &[1, 4096, 16, 128];
    judge("attention_traced", Options { trace: true }, || {
        plan(&ring, 4, &[("q", shape), ("k", shape), ("v", shape)]).expect("lowers")
    });
}

/// Sinks, alone and over a ring, with windows, caps and documents, with heads of 64 and 128.
#[test]
fn sinks_compile() {
    let all = ["", ", causal, window = 128", ", causal, softcap = 30, cu_seqlens = cu"];
    for (depth, words, ring) in
        [64, 128].iter().flat_map(|d| all.map(|w| [(d, w, false), (d, w, true)])).flatten()
    {
        let p = if ring { "zigzag(1)" } else { "replicate" };
        let keys = format!("bf16[1, 8192, 2, {depth}] @ {p}");
        let cu = if words.contains("cu") { ", cu: i32[65]" } else { "" };
        let text = format!(
            "fn f(q: bf16[1, 8192, 8, {depth}] @ {p}, k: {keys}, v: {keys}, s: f32[8]{cu}) {{ {} }}",
            PARTS[0][usize::from(ring)].replace("WORDS", &format!(", sinks = s{words}"))
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
        let config = Config { ranks: if ring { 4 } else { 1 }, ..Config::default() };
        judge(&text, Options::default(), || {
            mk::passes::lower(&program, &bound, &config).expect("lowers")
        });
    }
}

/// Gradients of sinks, of lengths of a launch and of parts of a sequence; and f32 sums of what ranks have.
#[test]
fn gradients_of_sinks_compile() {
    for case in CASES.iter().filter(|c| ["all_reduce_f32", "reduce_scatter_f32"].contains(&c.0)) {
        judge(case.0, Options::default(), || plan(case.1, case.2, case.3).expect("lowers"));
    }
    for (ranks, stats, dims) in
        [(1, "[2, 8, S, 4]", "<S: dyn <= 8192>"), (4, "[1, 64, 8192, 4] @ zigzag(2)", "")]
    {
        let heads = if ranks == 1 { 8 } else { 64 };
        let text = format!(
            "fn f{dims}(stats: f32{stats}, s: f32[{heads}]) {{ attention_dsinks(stats, s) }}"
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
        let config = Config { ranks, ..Config::default() };
        judge(&text, Options::default(), || {
            mk::passes::lower(&program, &bound, &config).expect("lowers")
        });
    }
}

/// Heads of 192 and 256, and of 192 with values of 128, forward and backward, alone and over a ring, with every mask,
/// caps, sinks and documents, in both types.
#[test]
fn wide_heads_compile() {
    let all = [
        "",
        ", causal",
        ", causal, window = 512",
        ", softcap = 30",
        ", cu_seqlens = cu",
        ", causal, softcap = 30, cu_seqlens = cu",
        ", causal, cu_seqlens = cu",
    ];
    let heads = [[192, 192], [192, 128], [256, 256]];
    for ((part, [depth, wide]), (words, ring)) in (0..PARTS.len())
        .flat_map(|part| heads.map(|h| (part, h)))
        .flat_map(|x| all.iter().flat_map(move |w| [(x, (*w, false)), (x, (*w, true))]))
    {
        let [p, turned] = if ring { ["zigzag(1)", "zigzag(2)"] } else { ["replicate"; 2] };
        let t = if ring { "f16" } else { "bf16" };
        let [k, v] = [depth, wide].map(|wide| format!("{t}[1, 8192, 2, {wide}] @ {p}"));
        let cu = if words.contains("cu") { ", cu: i32[65]" } else { "" };
        let (words, more) = match part {
            0 => (format!(", sinks = s{words}"), ", s: f32[8]".to_string()),
            _ => {
                let stats = format!("f32[1, 8, 8192, 4] @ {turned}");
                let d_o = format!("{t}[1, 8192, 8, {wide}] @ {p}");
                (words.to_string(), format!(", do: {d_o}, stats: {stats}"))
            }
        };
        let text = format!(
            "fn f(q: {t}[1, 8192, 8, {depth}] @ {p}, k: {k}, v: {v}{more}{cu}) {{ {} }}",
            PARTS[part][usize::from(ring)].replace("WORDS", &words)
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
        let config = Config { ranks: if ring { 4 } else { 1 }, ..Config::default() };
        judge(&text, Options::default(), || {
            mk::passes::lower(&program, &bound, &config).expect("lowers")
        });
    }
}

/// Packed sequences: every mask that their bounds are made of, with caps, forward and backward, heads of 64 and 128,
/// alone and over a ring.
#[test]
fn packed_sequences_compile() {
    let words = ["", ", causal", ", causal, window = 512, softcap = 30"];
    for (part, bodies) in PARTS.iter().enumerate() {
        for (depth, words, ring) in
            [64, 128].iter().flat_map(|d| words.map(|w| [(*d, w, false), (*d, w, true)])).flatten()
        {
            let [p, turned] = if ring { ["zigzag(1)", "zigzag(2)"] } else { ["replicate"; 2] };
            let more = match part {
                0 => String::new(),
                _ => {
                    format!(", do: bf16[1, T, 8, {depth}] @ {p}, stats: f32[1, 8, T, 4] @ {turned}")
                }
            };
            let keys = format!("bf16[1, T, 2, {depth}] @ {p}");
            let body = bodies[usize::from(ring)];
            let body = body.replace("WORDS", &format!("{words}, cu_seqlens = cu"));
            let text = format!(
                "fn f(q: bf16[1, T, 8, {depth}] @ {p}{more}, k: {keys}, v: {keys}, cu: i32[N]) {{ {body} }}"
            );
            let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
            let sizes = [("T", 8192), ("N", 65)].map(|(n, v)| (n.to_string(), v)).into();
            let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
            let config = Config { ranks: if ring { 4 } else { 1 }, ..Config::default() };
            judge(&text, Options::default(), || {
                mk::passes::lower(&program, &bound, &config).expect("lowers")
            });
        }
    }
}

/// As many heads of keys as of queries, of long packed sequences: nothing is shared, and places are large.
#[test]
fn long_packed_sequences_compile() {
    for (bodies, words) in PARTS.iter().flat_map(|b| ["", ", causal"].map(|w| (b, w))) {
        let more = match bodies[0].contains("stats") {
            false => "",
            true => ", do: bf16[1, T, 16, 128], stats: f32[1, 16, T, 4]",
        };
        let heads = "bf16[1, T, 16, 128]";
        let body = bodies[0].replace("WORDS", &format!("{words}, cu_seqlens = cu"));
        let text =
            format!("fn f(q: {heads}{more}, k: {heads}, v: {heads}, cu: i32[33]) {{ {body} }}");
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let sizes = [("T".to_string(), 32768)].into();
        let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
        judge(&text, Options::default(), || {
            mk::passes::lower(&program, &bound, &Config::default()).expect("lowers")
        });
    }
}

/// Few queries behind many keys, in parts, with and without sinks: alone beside heads that share keys, or several.
#[test]
fn parts_of_keys_compile() {
    for (queries, heads, words) in [
        (1, [128, 128], ""),
        (1, [64, 64], ", causal, window = 30000"),
        (7, [128, 128], ", causal, sinks = s"),
        (16, [192, 128], ", causal, softcap = 30"),
        (2, [256, 256], ", causal, sinks = s"),
    ] {
        let [k, v] = heads.map(|wide| format!("bf16[1, 65536, 2, {wide}]"));
        let sinks = if words.contains("sinks") { ", s: f32[8]" } else { "" };
        let text = format!(
            "fn f(q: bf16[1, {queries}, 8, {}], k: {k}, v: {v}{sinks}) {{ let o = attention(q, k, v{words}); (o, o -> lse) }}",
            heads[0]
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
        judge(&text, Options::default(), || {
            let plan = mk::passes::lower(&program, &bound, &Config::default()).expect("lowers");
            assert!(plan.families.values().any(|f| f.leaf.name() == "merge_tile"), "{text}");
            plan
        });
    }
}

/// Attention and the parts of its backward, alone and over a ring; `WORDS` are those behind the operands.
const PARTS: [[&str; 2]; 3] = [
    [
        "let o = attention(q, k, vWORDS); (o, o -> lse)",
        "let o = ring(k, v) -> attention(qWORDS); (o, o -> lse)",
    ],
    ["attention_dq(q, do, stats, k, vWORDS)", "ring(k, v) -> attention_dq(q, do, statsWORDS)"],
    [
        "let dk = attention_dk(k, v, q, do, statsWORDS); (dk, dk -> attention_dv)",
        "let dk = ring(q, do, stats) -> attention_dk(k, vWORDS); (dk, dk -> attention_dv)",
    ],
];

/// Windows and capped scores, alone and both, forward and backward, with heads of 64 and 128, alone and over a ring.
#[test]
fn windows_and_caps_compile() {
    let words = ["causal, window = 1000", "softcap = 50", "causal, window = 512, softcap = 30"];
    for (part, bodies) in PARTS.iter().enumerate() {
        for (depth, words, ring) in
            [64, 128].iter().flat_map(|d| words.map(|w| [(d, w, false), (d, w, true)])).flatten()
        {
            let placed = if ring { ["zigzag(1)", "zigzag(2)"] } else { ["replicate"; 2] };
            let [p, turned] = placed;
            let more = match part {
                0 => String::new(),
                _ => {
                    format!(", do: bf16[1, S, 4, {depth}] @ {p}, stats: f32[1, 4, S, 4] @ {turned}")
                }
            };
            let text = format!(
                "fn f<S: dyn <= 4000>(q: bf16[1, S, 4, {depth}] @ {p}{more}, k: bf16[1, S, 2, {depth}] @ {p}, v: bf16[1, S, 2, {depth}] @ {p}) {{ {} }}",
                bodies[usize::from(ring)].replace("WORDS", &format!(", {words}"))
            );
            let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
            let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
            let config = Config { ranks: if ring { 3 } else { 1 }, ..Config::default() };
            judge(&format!("{part} {depth} {words} {ring}"), Options::default(), || {
                mk::passes::lower(&program, &bound, &config).expect("lowers")
            });
        }
    }
    // Of fixed lengths ptxas keeps more in registers.
    for (depth, n) in [(64, 90), (64, 1078), (128, 8), (128, 90)] {
        let (q, kv) = (format!("bf16[1, {n}, 4, {depth}]"), format!("bf16[1, {n}, 2, {depth}]"));
        let body = PARTS[2][0].replace("WORDS", ", causal, window = 1, softcap = 30");
        let text = format!(
            "fn f(q: {q}, do: {q}, stats: f32[1, 4, {n}, 4], k: {kv}, v: {kv}) {{ {body} }}"
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
        judge(&format!("{depth} {n}"), Options::default(), || {
            mk::passes::lower(&program, &bound, &Config::default()).expect("lowers")
        });
    }
}

/// Results of eight bits in tiles of every kind that stores them, and by clusters, with an operand of the chain; and as
/// results of sums and copies. Operands of eight bits in clusters, with factors of rows and of blocks.
#[test]
fn results_of_eight_bits_compile() {
    let results = "fn f(a: f16[M, K], b: f16[K, N], y: f16[M, N]) { gemm(a, b) -> mul(y) -> gelu -> cast(e5m2) }";
    let rows =
        "fn f(a: e4m3[M, K] scaled(1, K), b: e5m2[N, K] scaled(1, K)) { gemm(a, b.t) -> gelu }";
    let blocks = &rows.replacen("(1, K)", "(1, 128)", 1).replace("(1, K)", "(128, 128)");
    for (text, set, [m, n]) in [
        (results, "block=64x128x64", [500, 1000]),
        (results, "block=128x64x64", [1000, 1001]),
        (results, "block=192x192x64", [1000, 768]),
        (results, "block=128x128x64 consumers=ping_pong", [1000, 768]),
        (results, "block=64x256x64 cluster=2", [128, 768]),
        (rows, "block=64x128x64 cluster=2", [500, 1040]),
        (blocks, "block=128x128x64 cluster=3", [500, 1040]),
        (blocks, "block=64x256x64 cluster=8", [128, 768]),
    ] {
        let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let sizes = [("M", m), ("K", 2048), ("N", n)].map(|(name, n)| (name.to_string(), n));
        let bound = program.bind(&sizes.into(), &BTreeMap::new()).expect("binds");
        let mut config = Config::default();
        mk::settings::read(&mut config, set).expect("settings");
        judge(&format!("{set} {}", text.len()), Options::default(), || {
            mk::passes::lower(&program, &bound, &config).unwrap_or_else(|e| panic!("{set}: {e}"))
        });
    }
    for (name, source, ranks, shapes) in
        CASES.iter().filter(|c| c.0.contains("e4m3") || c.0.contains("e5m2"))
    {
        judge(name, Options::default(), || plan(source, *ranks, shapes).expect(name));
    }
}

/// Attention, gradients of queries, and of keys and values, over rings, with heads of 128, of sequences whose length comes with the launch,
/// which takes the most registers; and the example, forward and backward, as it stands.
#[test]
fn gradients_of_attention_compile() {
    let queries = "q: bf16[1, S, 4, 128] @ zigzag(1), do: bf16[1, S, 4, 128] @ zigzag(1), stats: f32[1, 4, S, 4] @ zigzag(2)";
    let keys = "k: bf16[1, S, 2, 128] @ zigzag(1), v: bf16[1, S, 2, 128] @ zigzag(1)";
    let dq = "ring(k, v) -> attention_dq(q, do, stats, causal)";
    let dkv = "let dk = ring(q, do, stats) -> attention_dk(k, v, causal); (dk, dk -> attention_dv)";
    let forward = "let o = ring(k, v) -> attention(q, causal); (o, o -> lse)";
    let own = "q: bf16[1, S, 4, 128] @ zigzag(1)";
    for (queries, body) in [(own, forward), (queries, dq), (queries, dkv)] {
        let program = format!("fn f<S: dyn <= 1000>({queries}, {keys}) {{ {body} }}");
        let program = Program::parse(&program).unwrap_or_else(|e| panic!("{e}"));
        let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
        let config = Config { ranks: 3, ..Config::default() };
        judge(body, Options::default(), || {
            mk::passes::lower(&program, &bound, &config).expect("lowers")
        });
    }
    let source = include_str!("../examples/ring_attention.mk");
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let defaults = mk::file::defaults(source).unwrap_or_else(|e| panic!("{e}"));
    let derived = grad(&program, None, Saves::default()).expect("has a backward");
    let backward = derived.backward.expect("a backward");
    let mut kernels = 0;
    for program in [&derived.forward, &backward] {
        let bound = program.bind(&defaults, &BTreeMap::new()).expect("binds");
        for step in mk::cut::cut(program, &bound, 4, &[]).expect("is cut") {
            let known = |(name, _): &(&String, &u64)| step.program.symbol(name).is_some();
            let sizes = defaults.iter().filter(known).map(|(n, v)| (n.clone(), *v));
            let bound = step.program.bind(&sizes.collect(), &BTreeMap::new()).expect("binds");
            let config = Config { ranks: 4, ..Config::default() };
            judge(step.program.name(), Options::default(), || {
                mk::passes::lower(&step.program, &bound, &config).expect("lowers")
            });
            kernels += usize::from(step.is_kernel);
        }
    }
    assert_eq!(kernels, 4);
}

/// Kernels that send to other nodes, on nodes of one rank and of two.
#[test]
fn plans_over_nodes_compile() {
    const SHAPES: &[(&str, &[u64])] = &[("a", &[1024, 1024]), ("b", &[1024, 512])];
    type Way = (&'static str, &'static str, u32, fn(&mut Config));
    let ways: [Way; 3] = [
        ("gather -> gemm, 2 x 1", "gather(a) -> gemm(b)", 2, |c| c.nodes = 2),
        ("gemm -> reduce_scatter, 2 x 2", "gemm(a, b) -> reduce_scatter", 4, |c| c.nodes = 2),
        ("gemm -> all_reduce, 2 x 2, unordered", "gemm(a, b) -> all_reduce", 4, |c| {
            (c.nodes, c.net) = (2, mk::settings::NicOrdering::Unordered);
        }),
    ];
    for (name, source, ranks, set) in ways {
        let variant = Variant { case: (name, source, ranks, SHAPES), set };
        judge(name, Options::default(), || {
            variant.plan(ranks).unwrap_or_else(|e| panic!("{name}: {e}"))
        });
    }
    let placed = "@ zigzag(1)";
    let (wide, narrow) = ("bf16[1, S, 4, 128]", "bf16[1, S, 2, 128]");
    let keys = format!("k: {narrow} {placed}, v: {narrow} {placed}");
    let queries = format!(
        "q: {wide} {placed}, do: {wide} {placed}, stats: f32[1, 4, S, 4] @ zigzag(2), {keys}"
    );
    let own = format!("q: {wide} {placed}, {keys}");
    for (params, body, net) in [
        (&own, "ring(k, v) -> attention(q, causal)", mk::settings::NicOrdering::InOrder),
        (
            &queries,
            "let dk = ring(q, do, stats) -> attention_dk(k, v, causal); (dk, dk -> attention_dv)",
            mk::settings::NicOrdering::Unordered,
        ),
    ] {
        let text = format!("fn f<S: dyn <= 4000>({params}) {{ {body} }}");
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
        let config = Config { ranks: 4, nodes: 2, net, ..Config::default() };
        judge(&format!("{body} over nodes"), Options::default(), || {
            mk::passes::lower(&program, &bound, &config).expect("lowers")
        });
    }
}

/// The places that a sum is stored to are held in registers, 16 at most: with as many, with one more, and with all that there can be, by
/// roles that only add (which have 200 registers) and by those that multiply as well.
#[test]
fn sums_go_to_every_rank() {
    const SHAPES: &[(&str, &[u64])] = &[("a", &[1088, 1088]), ("b", &[1088, 512])];
    const SUMMED: &str = "gemm(a, b) -> all_reduce";
    type Way = (&'static str, fn(&mut Config));
    let ways: [Way; 3] = [
        ("beside", |_| {}),
        ("after", |c| c.reduction = Reduction::AfterLastWave),
        ("by columns", |c| {
            (c.reduction, c.all_reduce) = (Reduction::AfterLastWave, AllReduce::ByColumns)
        }),
    ];
    for (name, set) in ways {
        for ranks in [16, 17, 64] {
            let variant = Variant { case: (name, SUMMED, ranks, SHAPES), set };
            judge(&format!("{name}, {ranks} ranks"), Options::default(), || {
                variant.plan(ranks).unwrap_or_else(|e| panic!("{name}, {ranks}: {e}"))
            });
        }
    }
}

/// Seen of a chain whose hidden values are results, with the default tiles.
#[test]
fn chosen_settings_that_take_too_many_registers_give_way() {
    const BLOCK: &str =
        "let h = gather(x) -> gemm(w); let g = h -> gelu; (g -> gemm(v) -> reduce_scatter, h, g)";
    let program = Program::parse(BLOCK).expect("parses");
    let shapes = [("x", [129, 64]), ("w", [64, 192]), ("v", [192, 3])];
    let shapes = shapes.map(|(name, shape)| (name.to_string(), shape.to_vec())).into();
    let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
    let config = Config { ranks: 5, ..Config::default() };
    let narrow = Config { block: [128, 128, 64], ..config.clone() };
    let verdict = Verdict::new(Fusion::Fused, Reason::Predicted);
    let choice = Choice { verdict, configs: vec![config.clone()] };
    let options = JitOptions { use_cache: false, ..JitOptions::default() };
    let make = |instead| {
        let making = Making { program: &program, bound: &bound, emission: Options::default() };
        Composition::make(making, &choice, &options, instead, &Proofs::none())
    };
    if drawn::whole() {
        let refused = make(None).map(|(made, _)| made.configs).expect_err("another example");
        assert!(matches!(refused, FunctionError::Runtime(Error::Spill { .. })), "{refused}");
    }
    // The default spills, too: narrower tiles.
    for instead in drawn::some([&config, &narrow], 2) {
        let (made, compiled) = make(Some(instead)).expect("has a kernel");
        assert_eq!((made.configs, made.verdict, made.gave_way), (vec![narrow.clone()], verdict, 1));
        assert_eq!((made.kernels.len(), compiled.len()), (1, 1));
        assert!(!compiled[0].report.all().any(|e| e.spills()));
    }
}

/// Products alone that once had no kernel with what was chosen: a stage that had several loaders was borrowed; three CTAs that share tiles of
/// 128 x 256 spill. And one whose tiles leave no registers for what follows: the same, in narrower tiles.
#[test]
fn chosen_products_have_a_kernel() {
    let [plain, chain] = ["gemm(a, b)", "gemm(a, b) -> bias(v) -> gelu"].map(|chain| {
        let vector = if chain.contains('v') { ", v: bf16[N]" } else { "" };
        let source = format!("fn f(a: bf16[M, K], b: bf16[K, N]{vector}) {{ {chain} }}");
        Program::parse(&source).unwrap_or_else(|e| panic!("{e}"))
    });
    let verdict = Verdict::new(Fusion::Fused, Reason::Predicted);
    let options = JitOptions { use_cache: false, ..JitOptions::default() };
    let make = |program: &Program, [m, k, n]: [u64; 3], of: &dyn Fn(&mk::Bound) -> Config| {
        let sizes = [("M", m), ("K", k), ("N", n)].map(|(name, n)| (name.to_string(), n));
        let bound = program.bind(&sizes.into(), &BTreeMap::new()).expect("binds");
        let chosen = of(&bound);
        let choice = Choice { verdict, configs: vec![chosen.clone()] };
        let instead = Config::default();
        let making = Making { program, bound: &bound, emission: Options::default() };
        let made = Composition::make(making, &choice, &options, Some(&instead), &Proofs::none());
        let (made, compiled) = made.unwrap_or_else(|e| panic!("{m} x {k} x {n}: {e}"));
        assert!(!compiled[0].report.all().any(|e| e.spills()), "{m} x {k} x {n}");
        (chosen, made.configs)
    };
    let shapes = [[287, 5184, 3088], [7872, 552, 1312], [994, 2112, 3672], [1433, 8768, 2008]];
    for shape in drawn::some(shapes, 4) {
        for gpu in ["NVIDIA H100 80GB HBM3", "NVIDIA H200"] {
            let alone = Config { ranks: 1, ..Config::default() };
            let decide = |bound: &mk::Bound| {
                mk::tune::decide_in(&plain, bound, &alone, &gpu.into(), None).config
            };
            let (chosen, made) = make(&plain, shape, &decide);
            assert_eq!(made, [chosen], "{shape:?} on {gpu}");
        }
    }
    let set = |text: &str| {
        let mut config = Config::default();
        mk::settings::read(&mut config, text).expect("settings");
        config
    };
    let (_, made) = make(&chain, [994, 2112, 3672], &|_| set("block=256x128x64 multicast=2x2"));
    assert_eq!(made, [set("block=128x128x64 multicast=2x2")]);
}

/// The kernels of a derived backward, as they are cut and chosen: the first choice of settings has one.
#[test]
fn chosen_settings_of_backwards_have_a_kernel() {
    const GATED: &str = "fn gated(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), v: bf16[F, K] @ shard(0)) {
        gather(x) -> gemm(w) -> swiglu -> gemm(v) -> reduce_scatter
    }";
    let replicated = GATED
        .replace("x: bf16[M, K] @ shard(0)", "x: bf16[M, K]")
        .replace("gather(x) -> gemm(w)", "gemm(x, w)")
        .replace("reduce_scatter", "all_reduce");
    let up = std::fs::read_to_string("examples/mlp_up.mk").expect("an example");
    let [small, large] = [[512, 256, 1024], [4096, 2048, 8192]];
    let cases = [(GATED, large, 2), (GATED, large, 4), (&replicated, large, 4), (&up, small, 2)];
    let options = JitOptions { use_cache: false, ..JitOptions::default() };
    let mut seen = BTreeSet::new();
    for (text, [m, k, f], ranks) in drawn::some(cases, 4) {
        let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let backward = grad(&program, None, Saves::default()).expect("a gradient").backward;
        let backward = backward.expect("a backward");
        let sizes = [("M", m), ("K", k), ("F", f)].map(|(name, n)| (name.to_string(), n));
        let bound = backward.bind(&sizes.into(), &BTreeMap::new()).expect("binds");
        let steps = mk::cut::cut(&backward, &bound, ranks, &[]).expect("steps");
        for step in steps.into_iter().filter(|step| step.is_kernel) {
            let shape = |(id, tensor): (&mk::syntax::ValueId, &mk::syntax::Tensor)| {
                let shape = bound.shape(*id).expect("a shape").to_vec();
                let flat = step.flat.contains(id);
                let shape = if flat { vec![shape[0], shape[1] * shape[2]] } else { shape };
                (tensor.name.clone(), shape)
            };
            let shapes = step.inputs.iter().zip(step.program.tensors()).map(shape).collect();
            let sizes = step.program.bind(&BTreeMap::new(), &shapes).expect("binds");
            let config = Config { ranks, ..Config::default() };
            for gpu in ["NVIDIA H100 80GB HBM3", "NVIDIA H200"] {
                let gpu = gpu.into();
                let search = Some((&gpu, None));
                let terms =
                    Conditions { config: &config, fuse: Fuse::Auto, overlap: false, search };
                let choice = tune::settle(&step.program, &sizes, &terms);
                let text = format!("{}{:?}", step.text, choice.configs);
                if !seen.insert(text.clone()) {
                    continue;
                }
                let (program, emission) = (&step.program, Options::default());
                let instead = Some(&config);
                let making = Making { program, bound: &sizes, emission };
                let made = Composition::make(making, &choice, &options, instead, &Proofs::none());
                let (made, _) = made.unwrap_or_else(|e| panic!("{text}: {e}"));
                assert_eq!(made.gave_way, 0, "{text}");
            }
        }
    }
    println!("{} kernels", seen.len());
    assert!(seen.len() > if drawn::whole() { 6 } else { 0 });
}

/// What decides how tracing hooks into a family's tasks: who does what, and who waits and posts where.
fn kind(family: &Family) -> String {
    let leaf = match &family.leaf {
        Leaf::MmaTile(MmaTile { block, store, epilogue, consumers, .. }) => format!(
            "mma {store:?} {consumers:?} {} {}",
            block[0] == 64,
            epilogue.contains(&EpilogueOp::Carry)
        ),
        other => other.name().to_string(),
    };
    let waits: BTreeSet<_> =
        family.waits.iter().map(|w| format!("{:?} {:?} {:?}", w.by, w.at, w.proxy)).collect();
    let posts: BTreeSet<_> =
        family.posts.iter().map(|p| format!("{:?} {:?} {:?}", p.by, p.at, p.after)).collect();
    format!("{leaf} {} {waits:?} {posts:?}", family.inner.is_some())
}

/// One in so many kernels is compiled where not all are wanted.
const ONE_IN: u64 = 64;

/// Whether this kernel is among those that the seed draws.
fn is_drawn(name: &str, emission: Options) -> bool {
    static SEED: LazyLock<u64> = LazyLock::new(drawn::seed);
    let mut hasher = DefaultHasher::new();
    (*SEED, name, emission.trace).hash(&mut hasher);
    drawn::whole() || hasher.finish().is_multiple_of(ONE_IN)
}

/// Traced kernels are compiled only of plans that have a new kind of task. The other test compiles all, untraced.
fn compile(emission: Options) {
    type Lower<'a> = (&'a str, Box<dyn Fn() -> Result<Plan, LowerError> + Sync + 'a>);
    let defaults = CASES.iter().map(|c| -> Lower<'_> { (c.0, Box::new(|| plan(c.1, c.2, c.3))) });
    let variants =
        VARIANTS.iter().map(|v| -> Lower<'_> { (v.case.0, Box::new(|| v.plan(v.case.2))) });
    let all: Vec<_> =
        defaults.chain(variants).filter(|(name, _)| is_drawn(name, emission)).collect();
    let (next, traced) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    let work = || {
        while let Some((name, lower)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let plan = lower().unwrap_or_else(|e| panic!("{name}: {e}"));
            let is_new = {
                let mut traced = traced.lock().expect("no thread panics with the lock");
                let seen = traced.len();
                traced.extend(plan.families.values().map(kind));
                traced.len() > seen
            };
            if is_new || !emission.trace {
                judge(name, emission, || plan);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
}

/// Lowers and compiles a kernel that is drawn, and looks at its machine code.
fn judge(name: &str, emission: Options, lower: impl FnOnce() -> Plan) {
    if !is_drawn(name, emission) {
        return;
    }
    let plan = &lower();
    let options = JitOptions { use_cache: false, ..JitOptions::default() };
    let kernel = mk::emit::emit_with(plan, emission).unwrap_or_else(|e| panic!("{name}: {e}"));
    if let Some(dir) = std::env::var_os("MK_DUMP_KERNELS") {
        let file = format!("{name}{}.cu", if emission.trace { ".traced" } else { "" });
        std::fs::write(std::path::Path::new(&dir).join(file), &kernel.cuda).expect("writable");
    }
    let compiled = jit::compile(&kernel, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
    let entry = compiled.report.entry(&kernel.entry).expect("the entry point is reported");
    // What warpgroups hand each other adds up to what they begin with: fewer, and a claim waits for ever.
    assert_eq!(entry.registers, 65536 / kernel.block / 8 * 8, "{name}");
    // Traced, agents may keep some words in memory: in inner loops, and beside promoted sums.
    // And so do experts' tiles that save: 16 bytes at most so far, of the 32 that the leaf allows beside other loops.
    // Of layers in eight bits more, outside the steps along K: at most 64 so far, which the leaf allows.
    let saves = |f: &Family| {
        let ops = f.leaf.epilogue();
        ops.iter().any(|op| matches!(op, EpilogueOp::Save | EpilogueOp::Quantize(_)))
    };
    let experts = plan.families.values().any(|f| plan.looks_up(f) && saves(f));
    let allowed = if emission.trace || experts { kernel.spill_bytes } else { 0 };
    assert!(
        entry.spill_store_bytes <= allowed && (allowed > 0 || !entry.spills()),
        "{name} spills: {entry:?}"
    );
    println!(
        "{name}{}: {} registers, {} bytes of stack, {:?}",
        if emission.trace { ", traced" } else { "" },
        entry.registers,
        entry.stack_bytes,
        compiled.compile_time
    );
    if emission.trace {
        return;
    }
    let sass = jit::disassemble(&compiled.cubin).unwrap_or_else(|e| panic!("{name}: {e}"));
    let counts = jit::count_sass(&sass);
    println!("  {} instructions", counts.iter().map(|(_, n)| n).sum::<u32>());
    if plan.families.values().any(|f| f.leaf.product().is_some()) {
        assert!(
            counts.get("HGMMA") + counts.get("QGMMA") > 0 && counts.get("UTMALDG") > 0,
            "{name} does not use the tensor cores by TMA"
        );
    }
}
