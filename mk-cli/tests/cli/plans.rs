//! Plans as text: read, verified, refused.

use crate::command::{TempDir, mk, root};

fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).expect("a folder of plans");
    let mut names: Vec<String> = entries
        .map(|e| format!("{folder}/{}", e.expect("an entry").file_name().to_str().expect("UTF-8")))
        .filter(|name| name.ends_with(".plan"))
        .collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

/// What `mk check` accepts is emitted; of what is proved and has no kernel it says so, and why.
#[test]
fn good_plans_are_proved() {
    let (mut emitted, mut others) = (0, 0);
    for path in names("tests/plans") {
        let done = mk(&["check", &path]);
        assert!(done.out.contains("pairs ordered"), "{path}: {}", done.err);
        if done.status == 0 {
            assert!(done.out.ends_with("OK\n"), "{path}: {}", done.out);
            mk(&["emit", &path]).ok();
            emitted += 1;
            continue;
        }
        let says = ["error: no kernel can be emitted for this plan: ", "= help: it still runs on"];
        done.fails(1, &says);
        mk(&["emit", &path]).fails(1, &says);
        others += 1;
    }
    assert!(emitted >= 2 && others >= 2, "{emitted} have a kernel, {others} none");
}

#[test]
fn broken_plans_are_refused_with_a_counterexample() {
    for path in names("tests/plans/broken") {
        let done = mk(&["check", &path]);
        assert_eq!((done.status, done.out.as_str()), (1, ""), "{path}: {}", done.err);
        assert!(
            done.err.contains("is refused") && done.err.contains("\nrule "),
            "{path}: {}",
            done.err
        );
        assert!(!done.err.contains("internal error"), "{path}: {}", done.err);
    }
}

#[test]
fn a_plan_that_is_broken_does_not_run_or_emit() {
    let path = "tests/plans/broken/gather_gemm_no_entered.plan";
    mk(&["run", path, "--device", "cpu"]).fails(1, &["rule 1: race"]);
    mk(&["emit", path]).fails(1, &["rule 1: race"]);
}

/// All ranks have the same `b`.
const PIPELINE: &str =
    "fn f(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ replicate) { gather(a) -> gemm(b) }";

#[test]
fn a_plan_is_held_against_its_pipeline() {
    let sizes = ["--shape", "a=400x136", "--shape", "b=136x320"];
    let dir = TempDir::new();
    let (plan, path) = (&dir.file("right.plan"), dir.file("wrong.plan"));
    let text = mk(&[&["plan", PIPELINE, "--ranks", "3"], &sizes[..]].concat()).ok();
    std::fs::write(plan, &text).expect("written");
    let against = |path: &str, pipeline: &str, more: &[&str]| {
        mk(&[&["check", path, "--against", pipeline], &sizes[..], more].concat())
    };
    let said = against(plan, PIPELINE, &[]).ok();
    assert!(said.contains("computes its pipeline: ") && said.contains("  read in "), "{said}");
    let said = against(plan, PIPELINE, &["--json"]).ok();
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["computes"]["of"], 3 * 400 * 320, "{said}");
    // Another function of the same tensors.
    against(plan, &PIPELINE.replace("gemm(b)", "gemm(b) -> gelu"), &[]).fails(
        1,
        &["error: the plan computes something else", "rank 0: out[0, 0], written by fam"],
    );
    // No race, and the wrong rank's rows.
    let own = "access a: read buf0 @ rank [i * 128";
    assert!(text.contains(own));
    std::fs::write(&path, text.replace(own, "access a: read buf0 @ rank [0 * 128"))
        .expect("written");
    assert!(mk(&["check", &path]).ok().ends_with("OK\n"));
    let wrong = ["computes something else than its pipeline", "instead of a["];
    against(&path, PIPELINE, &[]).fails(1, &wrong);
    mk(&["check", plan, "--against", PIPELINE, "--shape", "a=404x136", "--shape", "b=136x320"])
        .fails(1, &["the plan is none of this pipeline: `a` is [134, 136] on rank 0"]);
    mk(&[
        "check",
        plan,
        "--against",
        &PIPELINE.replace("a:", "x:").replace("gather(a)", "gather(x)"),
        "--shape",
        "x=400x136",
        "--shape",
        "b=136x320",
    ])
    .fails(1, &["the pipeline has no tensor `a`"]);
    mk(&["check", "gather(a) -> gemm(b)", "--against", "gather(a) -> gemm(b)"])
        .fails(1, &["`--against` says what a plan computes"]);
}

/// Right at its bound, and wrong for fewer rows.
const ROWS: &str = r#"plan "dyn"
mesh world=1
target sm_90a
dim dim0 M = 256 runtime <= 256
dim dim1 N = 64
buffer buf0 "x" in bf16[M, N]
buffer buf1 "y" out bf16[M, N]
buffer buf2 "w" scratch bf16[256, N]
signal sig0 "s" [2]
role role0 intra_comm ctas 2
family fam0 "a" role0 {
  leaf copy_tile via=ldst stages=1
  for i in 2
  access src: read buf0 @ rank [i * 128 : min(128, M - i * 128), 0 : N] at start
  access dst: write buf2 @ rank [i * 128 : min(128, M - i * 128), 0 : N] at end
  post e0 sig0[i] @ rank += 1 by copier after program_order scope gpu at end
}
family fam1 "b" role0 {
  leaf copy_tile via=ldst stages=1
  for i in 2
  access src: read buf2 @ rank [i * 128 : 128, 0 : N] at start
  access dst: write buf1 @ rank [i * 128 : 128, 0 : N] at end
  wait e1 sig0[i] >= 1 by copier for generic scope gpu at start
}
"#;

#[test]
fn a_plan_is_verified_below_its_bound_too() {
    let dir = TempDir::new();
    let (path, picture) = (dir.file("rows.plan"), dir.file("rows.svg"));
    std::fs::write(&path, ROWS).expect("written");
    let says = ["plan \"dyn\" is refused with M = 1 (", "outside its buffer"];
    mk(&["check", &path, "--svg", &picture]).fails(1, &says);
    assert!(std::fs::read_to_string(&picture).expect("drawn").contains("<svg"));
    mk(&["emit", &path]).fails(1, &says);
}

#[test]
fn text_makes_the_round_trip() {
    let dir = TempDir::new();
    let path = dir.file("mlp_up.plan");
    let text = mk(&["plan", "examples/mlp_up.mk"]).ok();
    std::fs::write(&path, &text).expect("written");
    assert_eq!(mk(&["plan", &path]).ok(), text);
    assert!(mk(&["check", &path]).ok().contains("read in"));
    assert_eq!(mk(&["emit", &path]).ok(), mk(&["emit", "examples/mlp_up.mk"]).ok());
    let ran = mk(&["run", &path, "--device", "cpu"]).ok();
    assert!(ran.contains("\nRAN (no reference): ") && !ran.contains("PASS"), "{ran}");
}

#[test]
fn a_plan_is_judged_by_its_reference() {
    let dir = TempDir::new();
    let path = dir.file("gelu.plan");
    let sizes = ["--shape", "a=96x40", "--shape", "b=40x64", "--ranks", "2"];
    let text = mk(&[&["plan", "gather(a) -> gemm(b) -> gelu"], &sizes[..]].concat()).ok();
    std::fs::write(&path, text).expect("written");
    let run = |reference| {
        let run = ["run", &path, "--device", "cpu", "--reference", reference];
        mk(&[&run[..], &sizes[..4]].concat())
    };
    assert!(run("gather(a) -> gemm(b) -> gelu").ok().contains("\nPASS: "));
    run("gather(a) -> gemm(b) -> silu").fails(1, &["the result is wrong", "beyond their bounds"]);
    run("gather(a) -> gemm(c) -> gelu").fails(1, &["error: "]);
    mk(&["run", "examples/gemm.mk", "--reference", "examples/gemm.mk"])
        .fails(1, &["`--reference` says what a plan computes", "= help: "]);
}

#[test]
fn a_plan_has_its_numbers_already() {
    let path = "tests/plans/gather_gemm.plan";
    for option in [["--ranks", "2"], ["--dim", "M=3"], ["--set", "compute_sms=3"]] {
        mk(&["check", path, option[0], option[1]])
            .fails(1, &[option[0], "does not apply", "= help: "]);
    }
    mk(&["run", path, "--device", "cuda"]).fails(1, &["does not say what it computes"]);
    mk(&["run", "tests/plans/moe_dispatch.plan"]).fails(1, &["run-time tables"]);
}

#[test]
fn a_plan_that_is_too_large_says_where_its_numbers_are() {
    let dir = TempDir::new();
    let path = dir.file("large.plan");
    let text = "plan \"p\"\nmesh world=1\ntarget sm_90a\nsignal sig0 \"s\" [2000000]\nrole role0 compute ctas 1\n";
    std::fs::write(&path, text).expect("written");
    let done = mk(&["check", &path]);
    assert!(!done.err.contains("--"), "{}", done.err);
    done.fails(1, &["decides no larger plan", "= help: the numbers stand in the plan"]);
}

#[test]
fn text_that_is_no_plan() {
    let dir = TempDir::new();
    let path = dir.file("bad.plan");
    let text = mk(&["plan", "examples/gemm.mk"]).ok();
    for (from, to, piece) in
        [("target sm_90a", "target", "line "), ("ctas 8", "ctas 0", "not a well-formed plan")]
    {
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replace(from, to)).expect("written");
        mk(&["check", &path]).fails(1, &["error: ", "bad.plan", piece]);
    }
    std::fs::write(&path, b"\xff\xfe").expect("written");
    mk(&["check", &path]).fails(1, &["it is not UTF-8 text"]);
}

/// A plan over nodes has its nodes already, and is run with a network in between as its pipeline is.
#[test]
fn a_plan_over_nodes_runs_with_a_transport() {
    let dir = TempDir::new();
    let (nodes, one) = (dir.file("nodes.plan"), dir.file("one.plan"));
    let pipeline = "gather(a) -> gemm(b)";
    let sizes = ["--shape", "a=64x32", "--shape", "b=32x64"];
    let plan = |more: &[&str]| mk(&[&["plan", pipeline], &sizes[..], more].concat()).ok();
    std::fs::write(&nodes, plan(&["--ranks", "4", "--nodes", "2"])).expect("written");
    std::fs::write(&one, plan(&["--ranks", "2"])).expect("written");
    let run = |path: &str, more: &[&str]| {
        let run = ["run", path, "--device", "cpu", "--transport", "loopback"];
        mk(&[&run[..], more].concat())
    };
    let reference = [&["--reference", pipeline], &sizes[..]].concat();
    let ran = run(&nodes, &reference).ok();
    assert!(ran.contains("network   loopback: ") && ran.contains("\nPASS: "), "{ran}");
    run(&nodes, &[]).fails(1, &["runs pipelines", "= help: name the pipeline by `--reference"]);
    run(&one, &reference).fails(1, &["`--transport` joins nodes, and this plan has one"]);
    let says =
        ["`--transport` joins nodes, and there is one", "= help: say how many by `--nodes N`"];
    run(pipeline, &sizes).fails(1, &says);
}

/// Of two axes, the outer one is over nodes.
#[test]
fn a_mesh_over_nodes_runs_with_a_transport() {
    let pipeline = "fn f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)) \
                    { gather(a, tp) -> gemm(b) -> reduce_scatter(dp) }";
    let sizes = ["--shape", "a=100x64", "--shape", "b=64x96", "--nodes", "2"];
    for mesh in ["dp=2,tp=2", "tp=2,dp=2"] {
        let line = [&[pipeline, "--mesh", mesh], &sizes[..]].concat();
        assert!(mk(&[&["check"], &line[..]].concat()).ok().contains("verified"));
        let run = [&["run"], &line[..], &["--device", "cpu"]].concat();
        assert!(mk(&run).ok().contains("\nPASS: "));
        let ran = mk(&[&run[..], &["--transport", "loopback"]].concat()).ok();
        assert!(ran.contains("network   loopback: ") && ran.contains("\nPASS: "), "{ran}");
    }
}
