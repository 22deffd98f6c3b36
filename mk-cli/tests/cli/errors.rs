//! What is refused, with the reason and a way out.

use crate::command::{TempDir, mk, mk_json};

const MK: &str = "examples/gather_gemm.mk";

#[test]
fn a_pipeline_that_does_not_parse() {
    mk(&["check", "gather(a) -> gemn(b)"]).fails(
        1,
        &["error: unknown operation `gemn`", "pipeline:1:14", "= help: did you mean `gemm`?"],
    );
    let dir = TempDir::new();
    let path = dir.file("wrong.mk");
    std::fs::write(&path, "// M = 0\npub fn f(x: bf16[M, K] @ shard(0)) { gather(y) }\n")
        .expect("written");
    mk(&["check", &path]).fails(1, &["error: ", "wrong.mk:2:", "= help: "]);
    std::fs::write(&path, "// M = 0\ngather(x)\n").expect("written");
    mk(&["check", &path]).fails(1, &["error: ", "wrong.mk:1:"]);
}

#[test]
fn a_file_that_does_not_exist() {
    for name in ["nosuch.txt", "no/such", "nosuch.yaml"] {
        mk(&["check", name]).fails(
            1,
            &[&format!("there is no file `{name}`"), "x.mk is a pipeline, x.plan or x.json"],
        );
    }
    mk(&["check", "nosuch.plan"]).fails(1, &["cannot read nosuch.plan"]);
    // A pipeline without brackets, and one with a number.
    mk(&["check", "gather"]).fails(1, &["error: "]);
    mk(&["check", "gather(a) -> scale(0.5)"]).fails(1, &["`a_0` has no value"]);
}

#[test]
fn a_mesh_that_is_none_of_the_pipelines() {
    let shapes = ["--shape", "a=128x64", "--shape", "b=64x64", "--mesh"];
    let check =
        |pipeline: &str, more: &[&str]| mk(&[&["check", pipeline], &shapes[..], more].concat());
    let one = "gather(a, tp) -> gemm(b)";
    check(one, &["cp=2,dp=2"]).fails(1, &["`tp`, and the mesh is cp=2,dp=2", "= help: "]);
    check(one, &["tp=2,dp=2", "--ranks", "8"]).fails(1, &["is not of 8 ranks", "= help: "]);
    check("gather(a) -> gemm(b)", &["tp=2,dp=2"]).fails(1, &["over the axis `world`", "= help: "]);
    let two = "fn f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(0, dp)) \
               { gather(a, tp) -> gemm(b) -> all_reduce(dp) }";
    check(two, &["tp=2,pp=2"]).fails(1, &["over the axis `dp`", "= help: "]);
    let nodes = |mesh: &str, n: &str, why: &str| {
        check(two, &[mesh, "--nodes", n]).fails(1, &[why, "= help: "]);
    };
    nodes("tp=2,dp=2", "4", "ranks along `tp` and along `dp` are on several nodes");
    nodes("tp=4,dp=2", "2", "a group along `tp` has 2 ranks on each of 2 nodes");
    nodes("tp=3,dp=2", "2", "2 nodes cut the axis `tp`");
    for bad in ["tp", "tp=0", "tp=2,tp=2", "tp=99"] {
        check(one, &[bad]).fails(2, &["--mesh"]);
    }
    for command in ["tune", "trace"] {
        mk(&[&[command, one], &shapes[..], &["tp=2,dp=2"]].concat())
            .fails(1, &["settings are not searched over the axes"]);
    }
}

#[test]
fn a_counterexample_is_drawn() {
    let dir = TempDir::new();
    let path = dir.file("race.svg");
    let broken = "tests/plans/broken/rule1_no_wait_for_arrival.plan";
    mk(&["check", broken, "--svg", &path]).fails(1, &["race: nothing orders"]);
    let svg = std::fs::read_to_string(&path).expect("a picture");
    assert!(svg.starts_with("<svg ") && svg.contains("nothing orders these two"), "{svg}");
    let nowhere = dir.file("no/such/folder.svg");
    mk(&["check", broken, "--svg", &nowhere]).fails(1, &["cannot write", "race: nothing orders"]);
}

#[test]
fn names_that_the_pipeline_lacks() {
    mk(&["check", MK, "--dim", "Q=3"]).fails(1, &["no symbol `Q`", "= help: its symbols are"]);
    mk(&["check", MK, "--shape", "q=3x3"]).fails(1, &["no tensor `q`", "= help: "]);
}

#[test]
fn numbers_that_are_missing_or_wrong() {
    mk(&["check", "gather(a) -> gemm(b)"])
        .fails(1, &["`a_0` has no value", "= help: add `--shape a=<number>x<number>`"]);
    mk(&["check", MK, "--dim", "M=0"]).fails(1, &["`M` is 0", "= help: "]);
    mk(&["check", MK, "--dim", "M=8", "--dim", "M=9"]).fails(1, &["given twice"]);
    mk(&["check", MK, "--dim", "M"]).fails(2, &["write it as M=8192"]);
    mk(&["check", MK, "--shape", "x=8x"]).fails(2, &["`` is not a whole number"]);
    mk(&["check", MK, "--shape", "x=-1x8"]).fails(2, &["`-1` is not a whole number from 0 up"]);
    mk(&["check", MK, "--shape", "x=18446744073709551616x8"])
        .fails(2, &["`18446744073709551616` is too large a number"]);
    mk(&["check", MK, "--ranks", "0"]).fails(2, &["0 is not in 1..=64"]);
}

#[test]
fn settings_that_fit_no_plan() {
    let set = |words: &str| mk(&["check", MK, "--set", words]);
    set("comm=4").fails(2, &["there is no setting `comm`", "the settings are block, "]);
    set("compute_sms=200").fails(1, &["do not fit 132 SMs", "= help: "]);
    set("compute_sms").fails(2, &["write NAME=VALUE"]);
    set("block=100x100x100").fails(1, &["tiles of 100 x 100 x 100"]);
    set("group_m=4 block=128x128x64 group_m=8").fails(2, &["`group_m` is given twice"]);
    mk(&["check", MK, "--set", "group_m=4", "--set", "group_m=4"]).fails(1, &["given twice"]);
}

#[test]
fn files_that_are_not_there() {
    for path in ["no/such.mk", "no/such.plan"] {
        mk(&["check", path]).fails(1, &[&format!("error: cannot read {path}: No such file")]);
    }
    mk(&["emit", MK, "-o", "no/such/dir/x.cu"]).fails(1, &["cannot write no/such/dir/x.cu"]);
    // Not one of the two extensions: it is read as a pipeline, which it is not.
    mk(&["check", "Cargo.toml"]).fails(1, &["there is a file of that name"]);
}

#[cfg(unix)]
#[test]
fn files_that_do_not_end() {
    let dir = TempDir::new();
    for name in ["endless.mk", "endless.plan"] {
        let path = dir.file(name);
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        mk(&["check", &path]).fails(1, &["endless", "it is longer than 16 MiB"]);
    }
    let list = ["tune", "--list", "/dev/zero", "--device", "model"];
    mk(&list).fails(1, &["cannot read /dev/zero: it is longer than 16 MiB"]);
}

#[test]
fn unknown_options() {
    mk(&["check", MK, "--rank", "3"]).fails(2, &["unexpected argument '--rank'"]);
    mk(&["chekc", MK]).fails(2, &["unrecognized subcommand"]);
    mk(&["run", MK, "--schedule", "fair"]).fails(2, &["`fair` is not a schedule"]);
    mk(&["run", MK, "--device", "tpu"]).fails(2, &["possible values: auto, cpu, cuda"]);
}

#[test]
fn sizes_that_nothing_can_hold() {
    let begin = std::time::Instant::now();
    let huge = ["--dim", "M=2147483647", "--dim", "K=2147483647", "--dim", "N=2147483647"];
    let large = ["--dim", "M=65536", "--dim", "K=65536", "--dim", "N=65536"];
    mk(&[&["check", MK], &huge[..]].concat()).fails(1, &["error: ", "help: "]);
    mk(&[&["run", MK, "--device", "cpu"], &large[..]].concat())
        .fails(1, &["multiply-adds", "= help: use smaller numbers"]);
    mk(&["run", "gather(a)", "--shape", "a=1000000x100000", "--device", "cpu"])
        .fails(1, &["elements", "= help: "]);
    mk(&["check", MK, "--dim", "M=1000000", "--dim", "N=1000000"])
        .fails(1, &["= help: use smaller"]);
    assert!(begin.elapsed().as_secs() < 20, "refused after {:?}", begin.elapsed());
}

/// As text and for machines, and without trying to prove it: DeepSeek-V3's layer on 64 ranks.
#[test]
fn a_layer_that_is_too_large_says_what_would_fit() {
    let layer =
        "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
        w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
        dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
    }";
    let sizes = ["K=8", "E=256", "H=7168", "I=2048"].into_iter().flat_map(|size| ["--dim", size]);
    let sizes: Vec<&str> = sizes.collect();
    let words =
        |what, tokens| [&[what, layer, "--ranks", "64", "--dim", tokens], &sizes[..]].concat();
    let fits = "there is a plan with `T` = 4096";
    mk(&words("check", "T=8192")).fails(1, &["error: the plan is too large", "= help: ", fits]);
    let told = mk_json(&[&words("check", "T=8192")[..], &["--json"]].concat(), 1);
    let error = &told["errors"][0];
    assert_eq!(error["kind"], "too_large", "{told}");
    assert!(error["help"].as_str().is_some_and(|help| help.contains(fits)), "{told}");
    assert!(mk(&words("plan", "T=4096")).ok().starts_with("plan \"layer\""));
}
