//! Pipelines become plans: snapshots of the plan text, and refusals that say what works instead.

mod common;
#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;

use common::{CASES, VARIANTS, plan};
use drawn::some;
use mk_codegen::{
    passes::{LowerError, lower},
    plan::{Expr, Operand, Plan, Points, Schedule, TableSet},
    settings::{AllReduce, Config, Consumers, Gather, LastWave, Reduction},
};
use mk_syntax::Program;
use std::collections::BTreeMap;

#[test]
fn plans() {
    for (name, source, ranks, shapes) in CASES {
        let plan = plan(source, *ranks, shapes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let json = plan.to_json().expect("JSON");
        assert_eq!(Plan::from_json(&json).expect(name), plan, "{name}");
        for (round, spelt) in [("round_bf16", "\"RoundBf16\""), ("round_e4m3", "\"RoundE4m3\"")] {
            assert_eq!(plan.to_string().contains(round), json.contains(spelt), "{name}: {spelt}");
        }
        insta::assert_snapshot!(*name, plan);
    }
}

#[test]
fn refusals_say_what_works() {
    const SHAPES: &[(&str, &[u64])] = &[("a", &[64, 64]), ("b", &[64, 64])];
    let cases: &[common::Case] = &[
        (
            "sum_for_two",
            "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) {
                 let h = gemm(a, b) -> reduce_scatter;
                 (h -> gelu, h)
             }",
            4,
            SHAPES,
        ),
        (
            "saved_for_two",
            "fn f(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) {
                 let h = gather(a) -> gemm(b);
                 (h -> gelu, h -> silu, h)
             }",
            4,
            SHAPES,
        ),
        (
            "cut_blocks_of_k",
            "fn f(x: e4m3[M, K] scaled(1, 128) @ shard(1), w: e4m3[N, K] @ shard(1)) {
                 gemm(x, w.t) -> reduce_scatter
             }",
            2,
            &[("x", &[512, 640]), ("w", &[384, 640])],
        ),
        (
            "cut_blocks_of_weights",
            "fn f(x: e4m3[M, K] @ shard(0), w: e4m3[N, K] scaled(128, 128) @ shard(0)) {
                 gather(x) -> gemm(w.t)
             }",
            4,
            &[("x", &[512, 640]), ("w", &[640, 640])],
        ),
        (
            "biased_gates",
            "fn f(a: bf16[M, K], w: bf16[K, 2, F], c: bf16[F]) { gemm(a, w) -> bias(c) -> swiglu }",
            1,
            &[("a", &[64, 64]), ("w", &[64, 2, 64])],
        ),
        (
            "saved_contribution",
            "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) {
                 let h = gemm(a, b);
                 (h -> scale(0.5) -> reduce_scatter, h)
             }",
            4,
            SHAPES,
        ),
    ];
    for (name, source, ranks, shapes) in cases {
        let error = plan(source, *ranks, shapes).expect_err(name).to_string();
        assert!(error.contains("help:"), "{name}: {error}");
        insta::assert_snapshot!(format!("refused_{name}"), error);
    }
}

#[test]
fn what_is_summed_is_multiplied_first() {
    for results in ["(dx, dw)", "(dw, dx)"] {
        let text = format!(
            "fn f(x: bf16[M, K], dy: bf16[M, N] @ shard(1), w: bf16[K, N] @ shard(1)) {{
                 let dx = gemm(dy, w.t) -> reduce_scatter;
                 let dw = gemm(x.t, dy);
                 {results}
             }}"
        );
        let plan = plan(&text, 2, &[("x", &[512, 256]), ("dy", &[512, 512])]).expect(results);
        let first = plan.families.values().find(|f| f.name == "gemm0").expect("a product");
        let c = first.accesses.iter().find(|a| a.operand == Operand::C).expect("a result");
        assert_eq!(plan.buffers[c.buffer].name, "slots", "{results}");
    }
}

#[test]
fn slices_fit_a_stage_or_rows_travel_whole() {
    // Elements of K, slices at most, and what comes of them.
    for (k, most, slices) in [
        (32768, 2, None),
        (32768, 8, Some(8)),
        (65536, 4, None),
        (8192, 3, Some(2)),
        (4096, u32::MAX, Some(64)),
        (64, 8, None),
        (4104, 8, None),
    ] {
        let config = Config { ranks: 4, k_slices: most, ..Config::default() };
        let shapes = &[("a", vec![512, k]), ("b", vec![k, 512])];
        let plan = with_config("gather(a) -> gemm(b)", shapes, &config).expect("lowers");
        let waits_inside = plan.families.values().any(|f| f.inner.is_some());
        let depth = plan.buffers.values().find(|b| b.name == "a_all").map(|b| b.shape.len());
        assert_eq!((waits_inside, depth == Some(4)), (slices.is_some(), slices.is_some()), "{k}");
        mk_codegen::emit::emit(&plan).unwrap_or_else(|e| panic!("{k} in {most}: {e}"));
        if let Some(n) = slices {
            assert!(plan.to_string().contains(&format!("inner q in {n}\n")), "{k} in {most}");
        }
    }
}

/// Reduction behind products share CTAs where that leaves them rows enough; those of an all-reduce, whose rows go on over the links, do not.
/// Copies beside products are of 32 rows and 8 KiB.
#[test]
fn sums_are_as_flat_as_their_place_allows() {
    let tasks = |source: &str, m: u64, sums, family: &str| {
        let config = Config { reduction: sums, ..four() };
        let shapes = &[("a", vec![m, 512]), ("b", vec![512, 8192])];
        let plan = with_config(source, shapes, &config).expect("lowers");
        let family = plan.families.values().find(|f| f.name == family).expect(family);
        let extents = family.domain.iter().map(|(_, extent)| match extent {
            Expr::Const(n) => *n,
            other => panic!("{other:?}"),
        });
        extents.product::<i32>()
    };
    let (scatter, all) = ("gemm(a, b) -> reduce_scatter", "gemm(a, b) -> all_reduce");
    // Tiles of 256 columns, 32 in a row; rows of a rank over rows of a tile.
    assert_eq!(tasks(scatter, 8192, Reduction::AfterLastWave, "reduce"), 2048 / 128 * 32);
    assert_eq!(tasks(scatter, 4096, Reduction::AfterLastWave, "reduce"), 1024 / 64 * 32);
    assert_eq!(tasks(scatter, 2048, Reduction::AfterLastWave, "reduce"), 512 / 32 * 32);
    assert_eq!(tasks(scatter, 512, Reduction::AfterLastWave, "reduce"), 128 / 32 * 32);
    assert_eq!(tasks(scatter, 128, Reduction::AfterLastWave, "reduce"), 32 / 8 * 32);
    assert_eq!(tasks(all, 2048, Reduction::AfterLastWave, "reduce"), 512 / 128 * 32);
    assert_eq!(tasks(all, 2048, Reduction::AfterLastWave, "collect"), 3 * 512 / 128 * 32);
    assert_eq!(tasks(all, 2048, Reduction::DedicatedSms, "reduce"), 512 / 128 * 32);
    assert_eq!(tasks(all, 2048, Reduction::DedicatedSms, "collect"), 3 * 512 / 32 * 2);
}

/// With a dynamic schedule products, sums and copies through registers are for whoever is free; bulk copies are dealt out.
#[test]
fn a_dynamic_tile_scheduler() {
    let shapes = &[("a", vec![2048, 512]), ("b", vec![512, 8192])];
    let lowered = |sums, tile_scheduler| {
        let config = Config { reduction: sums, tile_scheduler, ..four() };
        with_config("gemm(a, b) -> all_reduce", shapes, &config).expect("lowers")
    };
    let dynamic = |plan: &Plan| {
        let families = plan.families.values().filter(|f| f.schedule == Schedule::Dynamic);
        families.map(|f| f.name.clone()).collect::<Vec<_>>()
    };
    let free = lowered(Reduction::AfterLastWave, Schedule::Dynamic);
    assert_eq!(dynamic(&free), ["gemm", "reduce", "collect"]);
    assert_eq!(dynamic(&lowered(Reduction::DedicatedSms, Schedule::Dynamic)), ["gemm", "reduce"]);
    assert!(dynamic(&lowered(Reduction::AfterLastWave, Schedule::Static)).is_empty());

    let mut wrong = free;
    let enter = wrong.families.iter().find(|(_, f)| f.name == "enter").expect("there").0;
    wrong.families[enter].schedule = Schedule::Dynamic;
    let errors = wrong.check_structure().expect_err("an entry is not dealt out");
    assert!(errors[0].message.contains("only products, sums and copies"), "{errors:?}");
}

#[test]
fn settings_that_fit_nothing_are_refused() {
    let shapes = &[("a", vec![512, 512]), ("b", vec![512, 512]), ("g", vec![512, 2, 512])];
    let last_wave = |blocks, columns, parts| Some(LastWave { blocks, columns, parts });
    let engine = |parts| Gather::CopyEngine { parts };
    let cases: &[(&str, Config, &str)] = &[
        ("gather(a) -> gemm(b)", Config { k_slices: 0, ..four() }, "rows in 0 slices"),
        ("gemm(a, b) -> all_reduce", Config { k_slices: 2, ..four() }, "nothing here is gathered"),
        ("gather(a)", Config { k_slices: 2, ..four() }, "there are none"),
        ("gather(a) -> gemm(b)", Config { gather: engine(0), ..four() }, "shards in 0 parts"),
        (
            "gemm(a, b) -> all_reduce",
            Config { gather: engine(1), ..four() },
            "nothing here is gathered",
        ),
        ("gemm(a, b)", Config { group_m: Some(0), ..four() }, "`group_m=0`: 0 row blocks"),
        ("gather(a)", Config { block: [128, 128, 64], ..four() }, "there are none"),
        ("gemm(a, b)", Config { intra_comm_sms: Some(4), ..four() }, "no role `intra_comm`"),
        ("gemm(a, b)", Config { compute_sms: Some(133), ..four() }, "do not fit 132 SMs"),
        (
            "gather(a) -> gemm(b)",
            Config { gather: engine(1), k_slices: 2, ..four() },
            "cannot send rows in 2 slices",
        ),
        (
            "gather(a) -> gemm(b)",
            Config { last_wave: last_wave(1, 256, 0), ..four() },
            "and 0 parts",
        ),
        (
            "gather(a) -> gemm(b)",
            Config { block: [128, 96, 64], last_wave: last_wave(1, 64, 1), ..four() },
            "tiles of 96 columns cannot share",
        ),
        (
            "gather(a) -> gemm(b)",
            Config { last_wave: last_wave(0, 256, 2), ..four() },
            "0 blocks of last rows",
        ),
        (
            "gather(a) -> gemm(b)",
            Config { last_wave: last_wave(1, 256, 1), ..four() },
            "1 blocks of last rows",
        ),
        (
            "gather(a) -> gemm(b) -> gelu",
            Config { last_wave: last_wave(1, 256, 2), ..four() },
            "in 2 parts",
        ),
        (
            "gemm(a, b) -> all_reduce",
            Config { last_wave: last_wave(1, 256, 2), ..four() },
            "can have a last wave",
        ),
        (
            "gemm(a, b) -> reduce_scatter",
            Config { all_reduce: AllReduce::ByColumns, ..four() },
            "is summed by an `all_reduce`",
        ),
        (
            "gather(a) -> gemm(b)",
            Config { all_reduce: AllReduce::OneShot, ..four() },
            "is summed by an `all_reduce`",
        ),
        (
            "gemm(a, b)",
            Config { consumers: Consumers::PingPong, ..four() },
            "no warpgroup multiplies a tile of 128 x 256 by itself",
        ),
        (
            "gemm(a, b)",
            Config { block: [64, 128, 64], consumers: Consumers::PingPong, ..four() },
            "no warpgroup multiplies a tile of 64 x 128 by itself",
        ),
        (
            "gemm(a, b) -> reduce_scatter",
            Config { reduction: Reduction::Ring, split_k: 2, ..four() },
            "cannot be added tile by tile",
        ),
        ("gather(a)", Config { consumers: Consumers::PingPong, ..four() }, "there are none"),
        ("gemm(a, b)", Config { stages: Some(5), ..four() }, "use 2 to 4"),
        ("gemm(a, b)", Config { stages: Some(1), ..four() }, "1 stages of tiles of 128 x 256 x 64"),
        ("gemm(a, b)", Config { block: [64, 192, 64], ..four() }, "tiles of 64 x 192"),
        ("gemm(a, b)", Config { block: [256, 192, 64], ..four() }, "tiles of 256 x 192"),
        ("gemm(a, b)", Config { block: [192, 256, 64], ..four() }, "tiles of 192 x 256"),
        ("gemm(a, b)", Config { block: [40, 128, 64], ..four() }, "tiles of 40 x 128"),
        (
            "gemm(a, g) -> swiglu",
            Config { block: [192, 192, 64], ..four() },
            "no tiles of 192 x 192",
        ),
        (
            "gather(a) -> gemm(b)",
            Config { block: [192, 192, 64], last_wave: last_wave(1, 64, 1), ..four() },
            "no smaller tiles beside those of 192 x 192",
        ),
        (
            "gemm(a, b) -> reduce_scatter",
            Config { block: [192, 192, 64], reduction: Reduction::Ring, ..four() },
            "no registers left to add sums",
        ),
        (
            "gemm(a, b) -> reduce_scatter",
            Config { block: [192, 192, 64], reduction: Reduction::AfterLastWave, ..four() },
            "no registers left to add sums",
        ),
        ("gemm(a, b)", Config { block: [192, 192, 64], stages: Some(5), ..four() }, "use 2 to 4"),
        ("gemm(a, b)", Config { block: [128, 256, 32], ..four() }, "tiles of 128 x 256 x 32"),
        ("gemm(a, b)", Config { block: [208, 192, 64], ..four() }, "tiles of 208 x 192"),
        ("gather(a) -> gemm(b)", Config { block: [64, 64, 64], ..four() }, "only a product alone"),
        (
            "gather(a) -> gemm(b)",
            Config { block: [176, 192, 64], ..four() },
            "only a product alone",
        ),
        (
            "fn f(a: bf16[M, K] @ replicate, b: bf16[K, N] @ replicate) -> bf16[M, N] @ replicate { gemm(a, b) }",
            Config { block: [112, 192, 64], cluster: 2, ..four() },
            "three warpgroups leave no registers",
        ),
        ("gemm(a, g) -> swiglu", Config { block: [64, 256, 64], ..four() }, "no tiles of 64 x 256"),
        (
            "gather(a) -> gemm(b)",
            Config { block: [64, 256, 64], last_wave: last_wave(1, 64, 1), ..four() },
            "in tiles of 64 columns",
        ),
    ];
    for (source, config, says) in cases {
        let error = with_config(source, shapes, config).expect_err(says).to_string();
        assert!(error.contains(says) && error.contains("help:"), "{source}: {error}");
    }
}

#[test]
fn rows_that_end_inside_a_tile_take_whole_panels() {
    const SUMMED: &str = "gemm(a, b) -> reduce_scatter";
    const LAUNCHED: &str = "fn rows<M: dyn <= 1024>(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0)) { gemm(a, b) -> reduce_scatter }";
    let tiles = |columns| Config { block: [128, columns, 64], ..four() };
    let lower = |source, rows, columns| {
        let shapes: &[_] = &[("a", vec![rows, 512]), ("b", vec![512, 1024])];
        with_config(source, shapes, &tiles(columns))
    };
    lower(SUMMED, 1024, 160).expect("256 rows each");
    lower(SUMMED, 1000, 192).expect("whole panels");
    lower(LAUNCHED, 1024, 192).expect("whole panels");
    for (source, rows) in [(SUMMED, 1000), (LAUNCHED, 1024)] {
        let error = lower(source, rows, 160).expect_err("half a panel").to_string();
        assert!(error.contains("rows end inside tiles of 128 x 160"), "{source}: {error}");
        assert!(error.contains("help: use a multiple of 64 columns"), "{error}");
    }
}

#[test]
fn groups_of_more_rows_than_there_are_hold_all() {
    let shapes = &[("a", vec![4096, 512]), ("b", vec![512, 512])];
    let plan = |group_m| {
        let config = Config { ranks: 1, group_m: Some(group_m), ..Config::default() };
        with_config("gemm(a, b)", shapes, &config).expect("lowers")
    };
    let all = plan(32);
    assert_ne!(all, plan(8));
    for group_m in [33, 1 << 20, i32::MAX as u32, u32::MAX] {
        assert_eq!(plan(group_m), all, "{group_m}");
    }
}

/// Own tiles, which stay, take less of a CTA's time than those that leave.
#[test]
fn every_cta_multiplies_for_every_owner() {
    const CTAS: usize = 132;
    let shapes = &[("a", vec![8192, 8192]), ("b", vec![8192, 8192])];
    let config = Config { ranks: 4, reduction: Reduction::AfterLastWave, ..Config::default() };
    let plan = with_config("gemm(a, b) -> reduce_scatter", shapes, &config).expect("lowers");
    let (id, _) = plan.families.iter().find(|(_, f)| f.name == "gemm").expect("there is one");
    let tables = TableSet::new(&plan, |_, _| Vec::new());
    let tasks = Points::new(&plan, &tables).tasks(id, 0, 1).expect("evaluates");
    for cta in 0..CTAS {
        let mine: Vec<_> = tasks.iter().skip(cta).step_by(CTAS).collect();
        let stay = mine.iter().filter(|t| t.domain()[1] == 3).count();
        assert!((2..=6).contains(&stay), "{stay} of {} of CTA {cta}", mine.len());
    }
}

#[test]
fn extents_and_numbers_of_any_size_are_refused_or_lowered() {
    let huge = 1 << 30;
    for (m, k, n) in [(huge, huge, huge), (huge, 64, 1), (1, huge, huge), (4, 64, huge)] {
        for slices in [2, 1 << 31, u32::MAX] {
            for copying in [1, 131, 1 << 31, u32::MAX] {
                let last_wave = Some(LastWave { blocks: u32::MAX, columns: 64, parts: u32::MAX });
                let config =
                    Config { k_slices: slices, intra_comm_sms: Some(copying), last_wave, ..four() };
                let shapes = &[("a", vec![m, k]), ("b", vec![k, n])];
                let _ = with_config("gather(a) -> gemm(b)", shapes, &config);
            }
        }
        for (ranks, split_k) in [(1, 2), (4, u32::MAX), (64, u32::MAX)] {
            for all_reduce in [AllReduce::TwoShot, AllReduce::OneShot, AllReduce::ByColumns] {
                let (block, sums) = ([64, 128, 64], Reduction::AfterLastWave);
                let way = Config { ranks, split_k, all_reduce, block, reduction: sums, ..four() };
                let shapes = &[("a", vec![m, k]), ("b", vec![k, n])];
                let _ = with_config("gemm(a, b) -> all_reduce", shapes, &way);
            }
        }
    }
}

fn four() -> Config {
    Config { ranks: 4, ..Config::default() }
}

fn with_config(
    source: &str,
    shapes: &[(&str, Vec<u64>)],
    config: &Config,
) -> Result<Plan, LowerError> {
    let program = Program::parse(source).expect("parses");
    let used = |name: &str| program.tensors().iter().any(|t| t.name == name);
    let shapes = shapes.iter().filter(|(n, _)| used(n));
    let shapes = shapes.map(|(n, s)| (n.to_string(), s.clone())).collect();
    let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
    lower(&program, &bound, config)
}

#[test]
fn worlds_of_no_size_are_refused() {
    for ranks in [0, 65, u32::MAX] {
        let refused = plan("gather(a)", ranks, &[("a", &[64, 64])]).expect_err("refused");
        assert!(refused.to_string().contains("use 1 to 64"), "{refused}");
    }
}

#[test]
fn every_lowered_plan_verifies_and_has_a_kernel() {
    for (name, source, ranks, shapes) in CASES {
        for ranks in some([*ranks, 1, 2, 3, 8], 5) {
            let plan = match plan(source, ranks, shapes) {
                Ok(plan) => plan,
                Err(e) => panic!("{name} on {ranks} ranks: {e}"),
            };
            let begin = std::time::Instant::now();
            match mk_codegen::valid::verify(&plan) {
                Ok(proof) => println!("{name} on {ranks}: {:?}\n{proof}", begin.elapsed()),
                Err(e) => panic!("{name} on {ranks} ranks: {e}\n{plan}"),
            }
            if let Err(e) = mk_codegen::emit::emit(&plan) {
                panic!("{name} on {ranks} ranks: {e}");
            }
        }
    }
}

#[test]
fn every_way_of_lowering_verifies_and_has_a_kernel() {
    for v in VARIANTS {
        let (name, _, ranks, _) = v.case;
        for ranks in some([ranks, 1, 2, 3, 8], 5) {
            let plan = v.plan(ranks).unwrap_or_else(|e| panic!("{name} on {ranks} ranks: {e}"));
            if let Err(e) = mk_codegen::valid::verify(&plan) {
                panic!("{name} on {ranks} ranks: {e}\n{plan}");
            }
            if let Err(e) = mk_codegen::emit::emit(&plan) {
                panic!("{name} on {ranks} ranks: {e}");
            }
        }
        let plan = v.plan(ranks).unwrap_or_else(|e| panic!("{name}: {e}"));
        insta::assert_snapshot!(name, plan);
    }
}

/// A program's symbols may have the names that loops have: a plan still reads back as what it is.
#[test]
fn symbols_with_the_names_of_loops() {
    for (source, shapes) in [
        (
            "fn f(a: bf16[i, k] @ shard(0), b: bf16[k, j] @ shard(1)) { gather(a) -> gemm(b) }",
            [500, 256, 520],
        ),
        (
            "fn f(a: bf16[p, s] @ shard(1), b: bf16[s, q] @ shard(0)) { gemm(a, b) -> all_reduce }",
            [300, 512, 520],
        ),
    ] {
        let [m, k, n] = shapes;
        for (sums, split_k, all_reduce) in [
            (Reduction::DedicatedSms, 1, AllReduce::TwoShot),
            (Reduction::AfterLastWave, 2, AllReduce::ByColumns),
        ] {
            let config = match source.contains("reduce") {
                true => {
                    Config { ranks: 2, reduction: sums, split_k, all_reduce, ..Config::default() }
                }
                false => Config { ranks: 2, ..Config::default() },
            };
            let shapes = &[("a", vec![m, k]), ("b", vec![k, n])];
            let plan = with_config(source, shapes, &config).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(plan.to_string().parse(), Ok(plan), "{source}");
        }
    }
}

#[test]
fn a_sum_replaces_the_parameter_that_it_is_added_to() {
    let pairs = |text: &str| {
        let program = Program::parse(text).expect(text);
        let shapes = [("x", [512, 256]), ("dy", [512, 384])];
        let shapes = shapes.map(|(name, shape)| (name.to_string(), shape.to_vec())).into();
        let bound = program.bind(&BTreeMap::new(), &shapes).expect(text);
        let config = Config { ranks: 2, ..Config::default() };
        let plan = lower(&program, &bound, &config).expect(text);
        let name = |id| plan.buffers[id].name.clone();
        let pairs = mk_codegen::plan::in_place(&plan).into_iter();
        pairs.map(|(result, parameter)| format!("{} {}", name(result), name(parameter))).collect()
    };
    let sums = "fn f(x: bf16[M, K], dy: bf16[M, N], c: f32[K, N]) -> f32[K, N] { gemm(x.t, dy) -> cast(f32) -> add(c) }";
    let found: Vec<String> = pairs(sums);
    assert_eq!(found, ["out c"]);
    // Two products read it: one may have written what the other reads.
    let twice = "fn f(x: bf16[M, K], dy: bf16[M, N], c: f32[K, N]) -> (f32[K, N], bf16[K, N]) {
        (gemm(x.t, dy) -> cast(f32) -> add(c), gemm(x.t, dy) -> cast(f32) -> mul(c) -> cast(bf16)) }";
    let found: Vec<String> = pairs(twice);
    assert_eq!(found, [""; 0]);
}
