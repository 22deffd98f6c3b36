//! Pipelines that check, print, emit and build.

use crate::command::{TempDir, command, mk};
use mk_skip::{Need, skip};
use std::io::Read;
use std::process::Stdio;

const GATHER_GEMM: &[&str] =
    &["gather(a) -> gemm(b)", "--shape", "a=256x64", "--shape", "b=64x256"];

fn with<'a>(command: &'a str, rest: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [&[command], rest, more].concat()
}

#[test]
fn help_and_version() {
    assert!(mk(&["--version"]).ok().starts_with("mk 0."));
    assert!(mk(&["run", "--help"]).ok().contains("--schedule"));
    mk(&[]).fails(2, &["Usage: mk [OPTIONS] <COMMAND>"]);
}

#[test]
fn derivatives_are_texts() {
    let text = mk(&["grad", "gather(x) -> gemm(w) -> gelu"]).ok();
    for words in [
        "-> gelu_grad(v3)",
        "-> reduce_scatter;",
        "// v3: result 1 of forward",
        "// gradient of `w`: result 1 of backward",
    ] {
        assert!(text.contains(words), "no `{words}` in\n{text}");
    }
    let some = mk(&["grad", "gather(x) -> gemm(w)", "--wanted", "w", "--save", "shard"]).ok();
    assert!(!some.contains("reduce_scatter") && some.matches("gather(x)").count() == 2, "{some}");
    // Of a gathered result every rank has a part of the gradient.
    let gathered = mk(&["grad", "gather(a) -> gemm(b) -> silu -> gather"]).ok();
    assert!(gathered.contains("d_out: bf16[a_0, b_1] @ partial"), "{gathered}");
    assert!(gathered.contains("reduce_scatter(d_out, dim = 1) -> silu_grad(v3)"), "{gathered}");
    let kernels = mk(&with("grad", GATHER_GEMM, &["--kernels", "--ranks", "2"])).ok();
    assert_eq!(kernels.matches("fn ").count(), 2, "{kernels}");
    mk(&["grad", "gather(x) -> gemm(w)", "--wanted", "y"]).fails(1, &["no parameter `y`"]);
}

#[test]
fn doctor_always_answers() {
    let text = mk(&["doctor"]).ok();
    assert!(text.contains("driver") && text.contains("NVRTC"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&mk(&["doctor", "--json"]).ok()).expect("JSON");
    assert!(json["gpus"].is_array() && json["can_run"].is_boolean(), "{json}");
}

#[test]
fn doctor_tries_the_cache() {
    let dir = TempDir::new();
    let path = dir.file("new/cache");
    let doctor = |cache: &str| {
        let output = command(&["doctor"]).env("MK_CACHE_DIR", cache).output().expect("starts");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let text = doctor(&path);
    assert!(text.contains(&format!("cache     {path}\n")), "{text}");
    assert!(!text.contains("missing   for keeping"), "{text}");
    let text = doctor("/proc/self");
    let why = "the kernel cache /proc/self cannot be used: writing a file of 1 MiB failed";
    assert!(text.contains("cache     none") && text.contains(why), "{text}");
    assert!(text.contains("set MK_CACHE_DIR to a directory"), "{text}");
}

#[test]
fn strings_and_files_check() {
    let text = mk(&with("check", GATHER_GEMM, &[])).ok();
    assert!(text.contains("pairs ordered") && text.contains("verified in"), "{text}");
    for file in ["gather_gemm", "mlp_up", "gemm", "gather", "ring_attention"] {
        let path = format!("examples/{file}.mk");
        assert!(mk(&["check", &path]).ok().ends_with("OK\n"), "{file}");
    }
}

#[test]
fn options_override_the_header() {
    let plan = |more: &[&str]| mk(&with("plan", &["examples/gather_gemm.mk"], more)).ok();
    assert!(plan(&[]).contains("M = 512"));
    assert!(plan(&["--dim", "M=1_024"]).contains("M = 1024"));
    assert!(plan(&["--shape", "x=1024x128"]).contains("K = 128"));
    assert!(plan(&["--ranks", "8"]).contains("mesh world=8"));
    assert!(plan(&["--set", "intra_comm_sms=4"]).contains("intra_comm ctas 4"));
    assert_ne!(plan(&["--set", "block=128x128x64"]), plan(&["--set", "block=128x64x64"]));
}

/// Along one axis of a mesh, either of which is inside.
#[test]
fn ranks_form_axes() {
    let pipeline = ["gather(a, tp) -> gemm(b)", "--shape", "a=131x64", "--shape", "b=64x72"];
    for mesh in ["tp=2,dp=2", "dp=2,tp=2"] {
        let of = |command| mk(&with(command, &pipeline, &["--mesh", mesh])).ok();
        assert!(of("plan").contains(&format!("mesh {}\n", mesh.replace(',', " "))), "{mesh}");
        assert!(of("check").ends_with("OK\n"), "{mesh}");
        let cpu = mk(&with("run", &pipeline, &["--mesh", mesh, "--device", "cpu"])).ok();
        assert!(cpu.contains("3 launches on 4 ranks"), "{cpu}");
    }
    let two = "fn f(a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)) \
               { gather(a, tp) -> gemm(b) -> reduce_scatter(dp) }";
    let args = ["run", two, "--device", "cpu", "--mesh", "tp=2,dp=2"];
    let sizes = ["--dim", "M=131", "--dim", "K=72", "--dim", "N=136"];
    assert!(mk(&[&args[..], &sizes[..]].concat()).ok().contains("PASS"));
    let explain = ["explain", two, "--mesh", "tp=2,dp=2"];
    let said = mk(&[&explain[..], &sizes[..]].concat()).ok();
    assert!(said.contains("as the options say") && said.contains("along several axes"), "{said}");
    // Gradients of weights are summed over the tokens' axis by the kernel that makes them.
    let layer = "fn f(x: bf16[M, K] @ shard(0, dp), w: bf16[K, N] @ shard(1, tp)) { x -> gemm(w) }";
    let grad = ["grad", layer, "--mesh", "dp=2,tp=2", "--kernels"];
    let even = ["--dim", "M=132", "--dim", "K=72", "--dim", "N=136"];
    let said = mk(&[&grad[..], &even[..]].concat()).ok();
    assert!(said.contains("gemm(x.t, d_out) -> all_reduce(dp)"), "{said}");
    // Rows that both axes share.
    let both = "fn f(x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, N] @ shard(1, tp)) { gather(x, tp) -> gemm(w) }";
    let on = |command, more: &[&str]| {
        mk(&[&[command, both, "--mesh", "tp=2,dp=2"], &even[..], more].concat()).ok()
    };
    assert!(on("run", &["--device", "cpu"]).contains("PASS"));
    assert!(on("explain", &[]).contains("along several axes"));
    let said = on("grad", &["--kernels"]);
    for step in ["gemm(d_out, w.t) -> reduce_scatter(tp)", "-> all_reduce(dp)"] {
        assert!(said.contains(step), "{said}");
    }
    // A plan says its mesh itself.
    let dir = TempDir::new();
    let path = dir.file("axes.plan");
    std::fs::write(&path, mk(&with("plan", &pipeline, &["--mesh", "dp=2,tp=2"])).ok())
        .expect("written");
    let reference = ["run", &path, "--device", "cpu", "--reference"];
    let sizes = &pipeline[1..];
    assert!(mk(&[&reference[..], &pipeline[..1], sizes].concat()).ok().contains("PASS"));
    let other = ["gather(a, cp) -> gemm(b)"];
    mk(&[&reference[..], &other[..], sizes].concat()).fails(1, &["no axis `cp`", "= help: "]);
}

#[test]
fn the_text_of_a_plan_has_a_line_for_each_wait_post_and_access() {
    let text = mk(&with("plan", GATHER_GEMM, &[])).ok();
    for word in ["wait", "post", "access"] {
        let lines = text.lines().filter(|l| l.split_whitespace().next() == Some(word));
        assert!(lines.count() > 1, "{word}");
    }
}

#[test]
fn a_block_has_as_many_stages_as_fit_and_warpgroups_may_take_turns() {
    let fits = ["gemm(a, b)", "--shape", "a=512x256", "--shape", "b=256x640", "--ranks", "1"];
    let plan = |more: &[&str]| mk(&with("plan", &fits, more)).ok();
    let turns = plan(&["--set", "block=128x160x64 consumers=ping_pong"]);
    assert!(
        turns.contains("block=128x160x64 stages=5 b=kn store=tma consumers=ping_pong"),
        "{turns}"
    );
    let together = plan(&["--set", "block=256x160x64", "--set", "consumers=cooperative"]);
    assert!(together.contains("block=256x160x64 stages=4 b=kn store=tma\n"), "{together}");
    mk(&with("plan", GATHER_GEMM, &["--set", "consumers=ping_pong"]))
        .fails(1, &["no warpgroup multiplies a tile of 128 x 256 by itself", "`block=128x160x64`"]);
}

/// The line that `mk explain` prints is one argument of `--set`.
#[test]
fn settings_are_taken_as_they_are_printed() {
    let plan = |more: &[&str]| mk(&with("plan", GATHER_GEMM, more)).ok();
    let explained = mk(&with("explain", GATHER_GEMM, &[])).ok();
    let line = explained.lines().find_map(|l| l.strip_prefix("settings")).expect("its settings");
    assert_eq!(plan(&["--set", line.trim()]), plan(&["--tuned"]));
    assert_eq!(plan(&["--set", "last_wave=none"]), plan(&[]));
    let spelt = |word| plan(&["--set", &format!("block=128x128x64 consumers={word}")]);
    assert_eq!(spelt("ping_pong"), spelt("ping-pong"));
}

#[test]
fn json_parses_and_names_the_same_entities() {
    let text = mk(&with("plan", GATHER_GEMM, &["--format", "json"])).ok();
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let families = json["families"].as_array().expect("families");
    let plan = mk(&with("plan", GATHER_GEMM, &[])).ok();
    assert_eq!(families.len(), plan.lines().filter(|l| l.starts_with("family")).count());
    assert!(families.iter().all(|f| f["name"].is_string() && f["accesses"].is_array()));
    assert_eq!(json["schema"], 1);
}

#[test]
fn a_plan_as_json_is_checked_as_text_is() {
    let dir = TempDir::new();
    let path = dir.file("x.json");
    let text = mk(&with("plan", GATHER_GEMM, &["--format", "json"])).ok();
    std::fs::write(&path, &text).expect("written");
    let said = mk(&["check", &path]).ok();
    assert!(said.contains("pairs ordered") && said.ends_with("OK\n"), "{said}");
    assert_eq!(mk(&["plan", &path]).ok(), mk(&with("plan", GATHER_GEMM, &[])).ok());
    std::fs::write(&path, text.replace("\"schema\": 1", "\"schema\": 2")).expect("written");
    mk(&["check", &path]).fails(1, &["x.json", "`\"schema\": 2`", "--format json"]);
}

#[test]
fn files_may_begin_with_a_byte_order_mark() {
    let dir = TempDir::new();
    let pipeline = dir.file("x.mk");
    let text = std::fs::read_to_string(crate::command::root().join("examples/gather_gemm.mk"));
    std::fs::write(&pipeline, format!("\u{feff}{}", text.expect("an example"))).expect("written");
    mk(&["check", &pipeline]).ok();
    let plan = dir.file("x.plan");
    let text = mk(&["plan", &pipeline]).ok();
    std::fs::write(&plan, format!("\u{feff}{text}")).expect("written");
    assert_eq!(mk(&["plan", &plan]).ok(), text);
}

#[test]
fn emission_is_deterministic() {
    let dir = TempDir::new();
    let path = dir.file("kernel.cu");
    let first = mk(&with("emit", GATHER_GEMM, &[])).ok();
    assert!(first.contains("mk_kernel") && first.contains("// plan \"gather_gemm\""));
    let said = mk(&with("emit", GATHER_GEMM, &["-o", &path])).ok();
    assert!(said.contains("lines"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).expect("written"), first);
}

#[test]
fn tracing_is_an_option_of_a_kernel() {
    let plain = mk(&with("emit", GATHER_GEMM, &[])).ok();
    let traced = mk(&with("emit", GATHER_GEMM, &["--trace"])).ok();
    assert!(!plain.contains("trace_") && traced.contains("trace_end(ctx);"));
    assert!(mk(&["trace", "--help"]).ok().contains("--svg"));
}

#[test]
fn a_cubin_is_built() {
    let dir = TempDir::new();
    let path = dir.file("kernel.cubin");
    let done = mk(&with("build", GATHER_GEMM, &["-o", &path, "--no-cache"]));
    if done.err.contains("NVRTC") {
        assert_eq!(done.status, 1);
        assert!(done.err.contains("cargo xtask setup"), "{}", done.err);
        return skip(Need::Nvrtc, "");
    }
    let text = done.ok();
    for piece in ["registers", "spills         0 bytes", "shared memory", "compile time", "SASS"] {
        assert!(text.contains(piece), "no {piece} in:\n{text}");
    }
    assert_eq!(std::fs::read(&path).expect("written")[..4], *b"\x7fELF");
}

#[test]
fn a_reader_that_leaves_is_no_panic() {
    let mut child = command(&with("emit", GATHER_GEMM, &[]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let status = child.wait().expect("ends");
    let mut err = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("reads");
    assert_eq!((status.code(), err.as_str()), (Some(141), ""));
}

/// Nobody gave the settings with which this one takes more registers than there are; given ones are refused.
#[test]
fn a_default_builds() {
    let text =
        "let h = gather(x) -> gemm(w); let g = h -> gelu; (g -> gemm(v) -> reduce_scatter, h, g)";
    let shapes = ["--shape", "x=129x64", "--shape", "w=64x192", "--shape", "v=192x3"];
    let build = [&["build", text, "--ranks", "5"], &shapes[..]].concat();
    let done = mk(&build);
    if done.err.contains("NVRTC") {
        return skip(Need::Nvrtc, "");
    }
    assert_eq!(done.status, 0, "{}", done.err);
    if done.out.contains("spills         0 bytes stored") {
        return;
    }
    assert!(done.err.contains("note: with these settings, which are not given"), "{}", done.err);
    mk(&[&build[..], &["--set", "group_m=8"]].concat()).fails(1, &["spills registers"]);
}
