//! Plans become CUDA: snapshots of the generated part, determinism, and the audit of edges.

mod common;
#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;

use common::{CASES, VARIANTS, Variant, plan};
use mk_codegen::{
    emit::{audit, emit, library},
    plan::{Consumers, Plan},
    settings::Config,
};

/// Snapshots of users hold the generated part: nothing of the library may be in it, and nothing else may be left out.
#[test]
fn the_generated_part_is_all_but_the_library() {
    for (name, source, ranks, shapes) in CASES {
        let plan = plan(source, *ranks, shapes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let kernel = emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = kernel.generated();
        let (before, after) = kernel.cuda.split_at(kernel.cuda.len() - generated.len());
        assert_eq!(after, generated, "{name}");
        assert!(before.ends_with(library::END) && !generated.contains(library::END), "{name}");
        assert!(before.contains(library::FILES[0].0) && generated.contains("mk_kernel"), "{name}");
        for (path, _) in library::FILES {
            assert!(!generated.contains(path), "{name}: {path} is in the generated part");
        }
    }
}

#[test]
fn kernels() {
    for (name, source, ranks, shapes) in CASES {
        let plan = plan(source, *ranks, shapes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let kernel = emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        insta::assert_snapshot!(format!("cuda_{name}"), kernel.generated());
    }
}

#[test]
fn kernels_of_other_ways_of_lowering() {
    for name in [
        "one_shot_few_rows",
        "split_one_shot",
        "tail_gathered",
        "slices_tail",
        "ring",
        "rows64_one_shot",
        "by_columns_mlp",
        "ping_pong",
        "ping_pong_slices_tail",
        "engine",
        "queued_all_after",
        "three_slices",
        "three_scatter",
        "shifted",
    ] {
        let v = VARIANTS.iter().find(|v| v.case.0 == name).expect("there is such a variant");
        let plan = v.plan(v.case.2).unwrap_or_else(|e| panic!("{name}: {e}"));
        let kernel = emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        insta::assert_snapshot!(format!("cuda_{name}"), kernel.generated());
    }
}

/// A plan is text that anybody may write: what no warpgroup has registers for is an error here, and not NVRTC's.
#[test]
fn a_tile_that_one_warpgroup_cannot_multiply_is_refused() {
    let v = VARIANTS.iter().find(|v| v.case.0 == "ping_pong_ring").expect("there is one");
    let text = v.plan(2).expect("lowers").to_string();
    for block in ["block=256x128x64 stages=4", "block=128x256x64 stages=4"] {
        let plan = text.replace("block=128x128x64 stages=6", block);
        assert_ne!(plan, text);
        let error = emit(&plan.parse().expect("reads")).expect_err(block).to_string();
        assert!(error.contains("one warpgroup multiplies"), "{error}");
    }
}

#[test]
fn three_warpgroups_hand_on_no_sums() {
    let v = VARIANTS.iter().find(|v| v.case.0 == "ring").expect("there is one");
    let text = v.plan(2).expect("lowers").to_string();
    let plan = text.replace("block=128x256x64", "block=192x192x64");
    assert_ne!(plan, text);
    let error = emit(&plan.parse().expect("reads")).expect_err("sums").to_string();
    assert!(error.contains("tiles of three warpgroups go on with no sums"), "{error}");
    let v = VARIANTS.iter().find(|v| v.case.0 == "cluster_of_four").expect("there is one");
    let text = v.plan(1).expect("lowers").to_string();
    let plan = text.replace("block=128x128x64", "block=192x192x64");
    let error = emit(&plan.parse().expect("reads")).expect_err("a cluster").to_string();
    assert!(error.contains("no cluster shares their depth"), "{error}");
}

/// One warpgroup that multiplies is alone in a CTA as large as others.
#[test]
fn a_second_warpgroup_is_idle_beside_one() {
    let v = VARIANTS.iter().find(|v| v.case.0 == "swapped_one").expect("there is one");
    let plan = v.plan(1).expect("lowers");
    let cuda = emit(&plan).expect("emits").cuda;
    assert!(cuda.contains("__launch_bounds__(384, 1)"));
    assert_eq!(cuda.matches("sm90_regs_release<24>();").count(), 1);
    audit(&plan, &cuda).expect("as emitted");
    let tall = plan.to_string().replace("block=64x64x64", "block=208x192x64");
    let error = emit(&tall.parse().expect("reads")).expect_err("accumulators").to_string();
    assert!(error.contains("at most 192 rows"), "{error}");
}

/// Beside one that multiplies, a second moves rows; the first CTA of a cluster repacks for all.
#[test]
fn a_second_warpgroup_repacks_beside_one() {
    let v = VARIANTS.iter().find(|v| v.case.0 == "shifted").expect("there is one");
    let plan = v.plan(1).expect("lowers");
    let cuda = emit(&plan).expect("emits").cuda;
    assert!(!cuda.contains("sm90_regs_release<24>();"));
    let guard = "if (warpgroup <= 1) sm90_gemm_consumer";
    let first = "(cta_index() - 0) % 4 != 0 ? end() : first_task";
    for text in [guard, first] {
        assert_eq!(cuda.matches(text).count(), 1, "{text}");
    }
    assert!(!plan.families.values().any(|f| f.name.contains("pack.b")));
    audit(&plan, &cuda).expect("as emitted");
    let wide = plan.to_string().replace("block=48x64x64", "block=128x64x64");
    let wide: mk_plan::Plan = wide.parse().expect("reads");
    let errors = wide.check_structure().expect_err("tiles that multiply as they are");
    assert!(errors.iter().any(|e| e.to_string().contains("`shifted` is of")), "{errors:?}");
}

/// Beside tiles of three warpgroups, the third of a CTA that adds gives up its registers, and the audit knows it.
#[test]
fn a_third_warpgroup_is_idle_beside_tiles_of_three() {
    let v = VARIANTS.iter().find(|v| v.case.0 == "three_scatter").expect("there is one");
    let plan = v.plan(v.case.2).expect("lowers");
    let cuda = emit(&plan).expect("emits").cuda;
    assert!(cuda.contains("__launch_bounds__(512, 1)"));
    let release = "sm90_regs_release<24>();";
    assert_eq!(cuda.matches(release).count(), 1);
    audit(&plan, &cuda).expect("as emitted");
    audit(&plan, &cuda.replace(release, "")).expect_err("nobody gives up registers");
}

#[test]
fn partial_sums_that_a_loader_cannot_bring_are_refused() {
    let v = VARIANTS.iter().find(|v| v.case.0 == "ring").expect("there is one");
    let text = v.plan(4).expect("lowers").to_string();
    let emits = |(from, to): (&str, &str)| {
        assert!(text.contains(from), "{from}: {text}");
        emit(&text.replacen(from, to, 1).parse().expect(to))
    };
    let read = " at inner when q == 1\n";
    for (from, to, says) in [
        ("store=tma", "store=direct", "only TMA stores tiles to peers"),
        ("epilogue=carry", "epilogue=carry,relu", "`carry` is the last operation"),
        (read, " at end\n", "of `carry` at end, in iterations [0] of 2"),
        (read, " at inner\n", "in iterations [0, 1] of 2"),
        (read, " at inner when q == 2\n", "in iterations [] of 2"),
        (read, " at inner each h in 1 when q == 1\n", "one partial sum, without `each`"),
    ] {
        let error = emits((from, to)).expect_err(to).to_string();
        assert!(error.contains(says), "{to}: {error}");
    }
    // What counts is when it is read, and not how a plan says so.
    let kernel = emits((read, " at inner when 1 < 2 * q\n")).expect("the second of two iterations");
    let plain = emits((read, read)).expect("as lowered");
    assert_eq!(kernel.generated(), plain.generated());
}

#[test]
fn what_passes_through_the_cache_leaves_it_first() {
    let wide = 50 << 20 >> 11;
    for (source, a, b, once) in [
        ("gemm(a, b)", [64, 1024], [1024, wide + 256], true),
        ("gemm(a, w.t)", [100, 1024], [wide + 256, 1024], true),
        // It would stay until the next launch; two rows of tiles read it.
        ("gemm(a, b)", [64, 1024], [1024, wide], false),
        ("gemm(a, b)", [129, 1024], [1024, wide + 256], false),
        // Tiles beside each other share lines.
        ("gemm(a, b)", [64, 1024], [1024, wide + 264], false),
        // Twice, by the two products.
        (
            "fn f(a: bf16[M, K], b: bf16[K, K]) { gemm(a, b) -> silu -> gemm(b) }",
            [64, 8192],
            [8192, 8192],
            false,
        ),
    ] {
        let w = if source.contains("w.t") { "w" } else { "b" };
        let plan = plan(source, 1, &[("a", &a), (w, &b)]).unwrap_or_else(|e| panic!("{e}"));
        let kernel = emit(&plan).unwrap_or_else(|e| panic!("{e}"));
        let says = kernel.generated().contains(".b_evict_first = true");
        assert_eq!(says, once, "{source} {a:?} {b:?}");
    }
}

/// A stage is borrowed where there are more results than staging takes, and the next tile does not end without it.
#[test]
fn the_last_stage_takes_what_staging_does_not() {
    type Shapes = &'static [(&'static str, &'static [u64])];
    type Row = (&'static str, Shapes, fn(&mut Config), bool);
    const DEEP: Shapes = &[("a", &[1000, 512]), ("b", &[512, 1024])];
    const FOUR_STEPS: Shapes = &[("a", &[1000, 200]), ("b", &[200, 1024])];
    const THREE_STEPS: Shapes = &[("a", &[1000, 192]), ("b", &[192, 1024])];
    const ODD: Shapes = &[("a", &[1000, 512]), ("b", &[512, 1003])];
    const ACROSS: Shapes = &[("a", &[512, 1000]), ("b", &[512, 1024])];
    const GATED: Shapes = &[("a", &[1000, 512]), ("b", &[512, 2, 1024])];
    // Each CTA has several.
    fn tiles(c: &mut Config, block: [u32; 3]) {
        (c.block, c.compute_sms) = (block, Some(2));
    }
    fn wide(c: &mut Config) {
        tiles(c, [128, 256, 64]);
    }
    fn three(c: &mut Config) {
        tiles(c, [192, 192, 64]);
    }
    fn in_turn(c: &mut Config) {
        tiles(c, [128, 128, 64]);
        c.consumers = Consumers::PingPong;
    }
    let (plain, f32) = ("gemm(a, b)", "gemm(a, b) -> cast(f32)");
    let gated = "fn f(a: bf16[M, K], b: bf16[K, 2, N]) { gemm(a, b) -> swiglu }";
    let dynamic = "fn f<M: dyn <= 700>(a: bf16[M, K], b: bf16[K, N]) { gemm(a, b) }";
    let table: [Row; 23] = [
        (plain, FOUR_STEPS, wide, true),
        // And four stages.
        (plain, THREE_STEPS, wide, false),
        (plain, DEEP, |c| tiles(c, [128, 192, 64]), true),
        (plain, DEEP, |c| tiles(c, [256, 128, 64]), true),
        // Three warpgroups borrow all of it, over rows of any layout, but not for twice as many bytes; nor in few steps.
        (plain, FOUR_STEPS, three, true),
        ("gemm(a.t, b)", ACROSS, three, true),
        (plain, THREE_STEPS, three, false),
        (f32, DEEP, three, false),
        (plain, ODD, three, false),
        // Swapped, own columns of B, for what staging has no room for.
        (plain, FOUR_STEPS, |c| tiles(c, [176, 192, 64]), true),
        (plain, DEEP, |c| tiles(c, [112, 192, 64]), false),
        (plain, &[("a", &[1000, 1024]), ("b", &[1024, 1024])], |c| tiles(c, [144, 64, 64]), true),
        (plain, DEEP, |c| tiles(c, [64, 64, 64]), false),
        (dynamic, &[("b", &[512, 1024])], three, false),
        // Warps would overwrite what others read: panels of 64 bytes, and rows of A that lie across.
        (plain, DEEP, |c| tiles(c, [128, 160, 64]), false),
        ("gemm(a.t, b)", ACROSS, wide, false),
        // All of it fits.
        (plain, DEEP, |c| tiles(c, [128, 128, 64]), false),
        (f32, DEEP, |c| tiles(c, [64, 256, 64]), false),
        (gated, GATED, wide, false),
        (f32, DEEP, |c| tiles(c, [128, 128, 64]), true),
        // The other consumer multiplies meanwhile.
        (f32, DEEP, in_turn, false),
        // Nothing is staged.
        (plain, ODD, wide, false),
        // In a launch with few rows some tiles have one step.
        (dynamic, &[("b", &[512, 1024])], wide, false),
    ];
    for (n, (source, shapes, set, borrows)) in table.into_iter().enumerate() {
        let plan = Variant { case: ("borrowed", source, 1, shapes), set }.plan(1);
        let plan = plan.unwrap_or_else(|e| panic!("{n}: {e}"));
        let kernel = emit(&plan).unwrap_or_else(|e| panic!("{n}: {e}"));
        assert_eq!(kernel.generated().contains(".borrowed_stage = true"), borrows, "{n}: {source}");
    }
}

#[test]
fn a_sum_goes_to_a_number_of_places_that_is_known() {
    let shapes: &[(&str, &[u64])] = &[("a", &[512, 256]), ("b", &[256, 512])];
    let plan = plan("gemm(a, b) -> all_reduce", 4, shapes).expect("compiles").to_string();
    let to_peers = |times: &str| {
        let mut replaced = 0;
        let lines = plan.lines().map(|line| match line.strip_suffix("at end each p in 3") {
            Some(access) if access.contains("dst: write") => {
                replaced += 1;
                format!("{access}at end each p in {times}")
            }
            _ => line.to_string(),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        assert_eq!(replaced, 1, "one family of sums goes to peers");
        emit(&text.parse::<Plan>().expect("parses"))
    };
    assert!(to_peers("3").is_ok());
    for times in ["0", "65", "3 + i"] {
        let error = to_peers(times).expect_err(times).to_string();
        assert!(error.contains("1 to 64 places"), "{times}: {error}");
    }
}

#[test]
fn two_runs_give_the_same_bytes() {
    for (_, source, ranks, shapes) in CASES {
        let one = emit(&plan(source, *ranks, shapes).expect("lowers")).expect("emits");
        let two = emit(&plan(source, *ranks, shapes).expect("lowers")).expect("emits");
        assert_eq!(one, two);
    }
}

/// Words that only synchronisation uses, in the library and in the generated part.
const SYNCHRONISATION: &[&str] = &[
    "mbarrier_wait",
    "mbarrier_arrive",
    "named_barrier_sync",
    "named_barrier_arrive",
    "wait_signal<",
    "wait_entered<",
    "post_signal<",
    "post_entered<",
    "fence_",
    "bulk_wait",
    "bulk_commit",
    "__syncthreads",
    "__syncwarp",
    "launch_begin",
    "launch_end",
    "launch_count_in",
    "init_barriers",
    "init_staging_barriers",
    "read_past",
    "elect_one",
    "red_release",
    "ld_acquire",
    "sm90_wgmma_fence",
    "sm90_wgmma_commit",
    "sm90_wgmma_wait",
    "staged =",
    "drained =",
    "full =",
    "empty =",
    "_loader<",
    "_storer<",
    "_consumer<",
    "copy_rows<",
    "reduce_rows<",
    "dot_rows<",
    "swiglu_grad_rows<",
];

/// A plan of `tests/plans`.
fn fixture(name: &str) -> Plan {
    let path = format!("{}/../tests/plans/{name}.plan", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.parse().unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Leaves that no pipeline has.
const FIXTURES: &[&str] = &["swiglu_grad"];

#[test]
fn kernels_of_fixtures() {
    for name in FIXTURES {
        let kernel = emit(&fixture(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        insta::assert_snapshot!(format!("cuda_{name}_fixture"), kernel.generated());
    }
}

#[test]
fn deleting_any_synchronisation_line_fails_the_audit() {
    let cases = drawn::some(CASES, 6).map(|(name, source, ranks, shapes)| {
        (*name, plan(source, *ranks, shapes).expect("lowers"))
    });
    for (name, plan) in cases.chain(FIXTURES.iter().map(|name| (*name, fixture(name)))) {
        let cuda = emit(&plan).expect("emits").cuda;
        audit(&plan, &cuda).expect("the kernel as emitted");
        let lines: Vec<_> = cuda.lines().collect();
        let mut deleted = 0;
        for (i, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            if !SYNCHRONISATION.iter().any(|w| code.contains(w)) {
                continue;
            }
            let without: Vec<_> = lines[..i].iter().chain(&lines[i + 1..]).copied().collect();
            let result = audit(&plan, &without.join("\n"));
            assert!(result.is_err(), "{name}: nobody noticed that line {} is gone: {line}", i + 1);
            deleted += 1;
        }
        assert!(deleted > 50, "{name}: only {deleted} lines were tried");
    }
}

/// A stage of the ring expects one number of bytes, and a map's box brings as many as it has rows: a loop whose families' boxes differ
/// would wait for ever, behind the point where waits have limits.
fn boxes_of_left_factors_are_what_loops_expect(name: &str, cuda: &str) -> usize {
    let number = |text: &str, after: &str| -> Option<u32> {
        text.split_once(after)?.1.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let rows_of_box = |map: &str| {
        let line = cuda.lines().find(|l| l.starts_with(&format!("constexpr u32 {map} =")));
        number(line.unwrap_or_else(|| panic!("{name}: no {map}")), "boxes of ").expect("a box")
    };
    let (mut expected, mut ends, mut checked) = (None, None, 0);
    for line in cuda.lines() {
        if line.starts_with("using Compute") && line.contains(".a = ALayout::") {
            let rows = number(line, ".a_rows = ").or_else(|| number(line, ".block_m = "));
            // Each of the CTAs that load together brings a part.
            let beside = number(line, ".beside = ").unwrap_or(1);
            expected = rows.filter(|_| line.contains(".a = ALayout::KMajor")).map(|n| n / beside);
            ends = number(line, ".a_ends = ").map(|n| n / beside);
        }
        let map = |of: &str| line.trim().strip_prefix(of).and_then(|m| m.strip_suffix("];"));
        if let (Some(map), Some(expected)) = (map("work.a = &params.maps["), expected) {
            assert_eq!(rows_of_box(map), expected, "{name}: rows of the box of {map}");
            checked += 1;
        }
        if let Some(map) = map("work.a_ends = &params.maps[") {
            assert_eq!(Some(rows_of_box(map)), ends, "{name}: rows of the box of {map}");
            checked += 1;
        }
    }
    checked
}

#[test]
fn every_tile_of_a_loop_loads_as_many_rows() {
    let mut checked = 0;
    let mut check = |name: &str, plan: Plan| {
        let kernel = emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        checked += boxes_of_left_factors_are_what_loops_expect(name, kernel.generated());
    };
    for v in VARIANTS {
        check(v.case.0, v.plan(v.case.2).unwrap_or_else(|e| panic!("{}: {e}", v.case.0)));
    }
    // Own rows are fewer than a tile has room for, those of all ranks are not.
    let chain = "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter";
    for (text, rows, ranks) in [
        ("gather(a) -> gemm(b)", 197, 2),
        ("gather(a) -> gemm(b)", 50, 4),
        ("gather(a) -> gemm(b)", 5, 2),
        (chain, 200, 4),
    ] {
        let shapes: &[(&str, &[u64])] = match text == chain {
            true => &[("x", &[rows, 256]), ("w1", &[256, 520]), ("w2", &[520, 256])],
            false => &[("a", &[rows, 256]), ("b", &[256, 1024])],
        };
        check(text, plan(text, ranks, shapes).unwrap_or_else(|e| panic!("{text}: {e}")));
    }
    assert!(checked > VARIANTS.len(), "{checked}");
}
