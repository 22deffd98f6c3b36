//! Tuning and explanations without GPUs.

use crate::command::{Done, TempDir, command, root};

const MACHINE: &str = "mk-cli/tests/cli/machine.json";
const GATHER_GEMM: [&str; 5] =
    ["gather(a) -> gemm(b)", "--shape", "a=2048x4096", "--shape", "b=4096x4096"];
/// Of which all candidates are predicted in less time.
const SMALL: [&str; 5] = ["gather(a) -> gemm(b)", "--shape", "a=1024x512", "--shape", "b=512x2048"];

/// Runs with a cache of its own.
fn mk(args: &[&str], cache: &TempDir) -> Done {
    let output = command(args).env("MK_CACHE_DIR", cache.file("cache")).output().expect("starts");
    Done {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// The text is `explain.txt`; `MK_BLESS=1 cargo test -p mk-command --test cli tune` writes it again.
#[test]
fn an_explanation() {
    let dir = TempDir::new();
    let args = [&["explain"], &GATHER_GEMM[..], &["--model", MACHINE, "--chain", "4"]].concat();
    let text = mk(&args, &dir).ok();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/explain.txt");
    if std::env::var_os("MK_BLESS").is_some() {
        std::fs::write(path, &text).expect("writes");
    }
    assert_eq!(text, std::fs::read_to_string(path).expect("the text"), "see MK_BLESS");
}

/// With given settings, or what the model takes for the best.
#[test]
fn nodes_are_explained() {
    let dir = TempDir::new();
    let over = [&["explain"], &GATHER_GEMM[..], &["--ranks", "4", "--nodes", "2"]].concat();
    let text = mk(&over, &dir).ok();
    let cards = "2 nodes with network cards of 50 GB/s and 5 us, which nobody measured";
    assert!(text.contains(cards) && text.contains(" us  network cards"), "{text}");
    assert!(text.contains("the best of those that were predicted"), "{text}");
    let set = [&over[..], &["--set", "block=128x128x64", "--json"]].concat();
    let said = mk(&set, &dir).ok();
    assert!(said.contains("block=128x128x64") && said.contains("\"network cards\""), "{said}");
}

#[test]
fn a_pipeline_that_is_one_kernel_has_no_verdict() {
    let dir = TempDir::new();
    let args = ["explain", "gemm(a, b)", "--shape", "a=256x256", "--shape", "b=256x256"];
    let text = mk(&args, &dir).ok();
    assert!(text.contains("bound by") && !text.contains("verdict"), "{text}");
}

#[test]
fn candidates_are_ranked_by_prediction() {
    let dir = TempDir::new();
    let json = dir.file("out.json");
    let args = [
        &["tune"],
        &SMALL[..],
        &[
            "--device",
            "model",
            "--model",
            MACHINE,
            "--try",
            "intra_comm_sms=8,999",
            "--json",
            &json,
        ],
    ]
    .concat();
    let text = mk(&args, &dir).ok();
    assert!(text.contains("predicted in") && text.contains("intra_comm_sms=8"), "{text}");
    assert!(text.contains("refused: ") && text.contains("do not fit 132 SMs"), "{text}");
    let best = mk(&[&args[..args.len() - 2], &["--top", "3"]].concat(), &dir).ok();
    assert_eq!(best.matches("block=").count(), 3, "{best}");
    // Also what has lines.
    let lines = dir.file("lines.json");
    let text = "fn f(a: bf16[64, 64] @ shard(0)) {\n  // it's one\n  gather(a)\n}";
    mk(&["tune", text, "--device", "model", "--json", &lines], &dir).ok();
    mk(&["tune", "--from", &lines], &dir).ok();
    // What was written reads back; there is nothing measured in it to compare with.
    let again = mk(&["tune", "--from", &json, "--model", MACHINE], &dir).ok();
    assert!(again.contains("/best") && !again.contains("prediction error"), "{again}");
    // Nothing was measured, so that nothing is kept.
    assert!(!std::path::Path::new(&dir.file("cache/tune")).exists());
}

/// Of a ring the CTAs that copy are searched, and the size of their pieces; an explanation names what the end waits for.
#[test]
fn rings_are_tuned_and_explained() {
    let dir = TempDir::new();
    let kv = "bf16[1, S, 16, 128] @ zigzag(1)";
    let ring = format!("fn f(q: {kv}, k: {kv}, v: {kv}) {{ ring(k, v) -> attention(q, causal) }}");
    let tuned = mk(&["tune", &ring, "--dim", "S=12288", "--device", "model"], &dir).ok();
    let best = tuned.lines().find(|l| l.contains("1.000")).expect("the best");
    assert!(best.contains("intra_comm_sms=8") && best.contains("chunk_bytes=524288"), "{tuned}");
    assert!(tuned.contains("18 of 18 candidates"), "{tuned}");
    let said = mk(&["explain", &ring, "--dim", "S=12288", "--chain", "4"], &dir).ok();
    for word in ["bound by", "compute", "intra_comm", "attend", "push"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn an_option_that_says_how_to_lower_is_not_tried_otherwise() {
    let dir = TempDir::new();
    let given = [
        "block=128x128x64",
        "consumers=ping_pong",
        "group_m=4",
        "gather=sms",
        "chunk_bytes=65536",
        "k_slices=1",
        "last_wave=1x64",
    ];
    let sum = ["gemm(a, b) -> reduce_scatter", "--shape", "a=4096x512", "--shape", "b=512x1024"];
    let sum = [&sum[..], &["--ranks", "2"]].concat();
    let of_sums = [given[0], "reduction=after_last_wave"];
    for (pipeline, given) in [(&GATHER_GEMM[..], &given[..]), (&sum[..], &of_sums[..])] {
        let json = dir.file("tried.json");
        let words = given.join(" ");
        let options = ["--set", &words, "--device", "model", "--json", &json];
        let said = mk(&[&["tune"], pipeline, &options].concat(), &dir).ok();
        assert!(!said.contains("refused"), "{said}");
        let text = std::fs::read_to_string(&json).expect("reads");
        let tried: Vec<_> = text.matches("\"config\": \"").collect();
        assert!(!tried.is_empty(), "{text}");
        for word in given {
            assert_eq!(text.matches(word).count(), tried.len(), "{word}: {text}");
        }
    }
}

/// What is tried is what was said, or nothing is.
#[test]
fn what_cannot_be_tried_is_said() {
    let dir = TempDir::new();
    let tune =
        |more: &[&str]| mk(&[&["tune"], &SMALL[..], &["--device", "model"], more].concat(), &dir);
    tune(&["--try", "intra_comm_sms=8,x"]).fails(1, &["`x` is no value of `intra_comm_sms`"]);
    let help = "= help: for instance `consumers=cooperative`";
    tune(&["--try", "consumers=foo"]).fails(1, &["`foo` is no value of `consumers`", help]);
    let spelled = tune(&["--try", "consumers=ping-pong", "--try", "block=128x128x64"]).ok();
    assert!(spelled.contains("consumers=ping_pong"), "{spelled}");
    let many: Vec<String> = (1..=3000).map(|n| n.to_string()).collect();
    let says = "combinations of settings are more than 8388608";
    tune(&["--try", &format!("chunk_bytes={}", many.join(","))])
        .fails(1, &[says, "give fewer values to `--try`"]);
    let fixed = "`block` is fixed by `--set`, and to be tried";
    tune(&["--set", "block=128x256x64", "--try", "block=128x128x64"]).fails(1, &[fixed]);
    tune(&["--set", "foo=8"]).fails(2, &["there is no setting `foo`"]);
    tune(&["--set", "all_reduce=one_shot"])
        .fails(1, &["no product here is summed by an `all_reduce`"]);
    tune(&["--tuned"]).fails(1, &["`--tuned` takes what was measured"]);
    tune(&["--top", "0"]).fails(2, &["--top"]);
    // A setting that is not searched is that of every candidate.
    let few =
        ["--set", "compute_sms=3", "--try", "intra_comm_sms=8,128,130", "--try", "gather=sms"];
    let few = tune(&[&few[..], &["--try", "block=128x128x64", "--all"]].concat()).ok();
    assert!(few.contains("compute = 3 and intra_comm = 130 CTAs do not fit"), "{few}");
    // What cannot have a setting that an option fixes is left out.
    let sum = ["tune", "gemm(a, b) -> reduce_scatter", "--shape", "a=4096x512", "--shape"];
    let parts = ["b=512x1024", "--ranks", "2", "--set", "split_k=2", "--device", "model", "--all"];
    let text = mk(&[&sum[..], &parts].concat(), &dir).ok();
    assert!(
        text.contains("reduction=after_last_wave") && !text.contains("reduction=ring"),
        "{text}"
    );
}

/// Large sizes are refused before they are predicted; options that say what is so by default count as given.
#[test]
fn settings_are_looked_for_where_none_is_given_and_sizes_allow() {
    let dir = TempDir::new();
    let huge = ["gather(a) -> gemm(b)", "--shape", "a=1073741824x8", "--shape", "b=8x8"];
    let begin = std::time::Instant::now();
    mk(&[&["explain"], &huge[..]].concat(), &dir).fails(1, &["the plan is too large"]);
    mk(&[&["check"], &huge[..], &["--tuned"]].concat(), &dir).fails(1, &["the plan is too large"]);
    let few = ["--set", "block=128x128x64 consumers=cooperative last_wave=none gather=sms"];
    mk(&[&["tune"], &huge[..], &["--device", "model"], &few].concat(), &dir)
        .fails(1, &["candidates has a time: the plan is too large"]);
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
    let with =
        |command: &str, more: &[&str]| mk(&[&[command], &GATHER_GEMM[..], more].concat(), &dir);
    let given = with("explain", &["--set", "block=128x256x64"]).ok();
    assert!(given.contains("block=128x256x64") && given.contains("as the options say"), "{given}");
    let both = &["`--tuned` leaves settings to mk, and `--set chunk_bytes=524288` sets one"];
    with("check", &["--tuned", "--set", "chunk_bytes=524288"]).fails(1, both);
    with("explain", &["--tuned", "--set", "chunk_bytes=524288"]).fails(1, both);
    let sms = ["--set", "compute_sms=132 intra_comm_sms=4294967295"];
    with("check", &sms).fails(1, &["do not fit 132 SMs"]);
}

#[test]
fn lists_name_their_mistakes() {
    let dir = TempDir::new();
    let list = dir.file("rows.txt");
    let with = |text: &str| {
        std::fs::write(&list, text).expect("writes");
        mk(&["tune", "--list", &list, "--device", "model"], &dir)
    };
    let good = "# two\n'gemm(a, b)' --shape a=256x256 --shape b=256x256 --ranks 1\n";
    assert!(with(good).ok().contains("--ranks 1"));
    with("gemm(a, b) --ranks").fails(1, &["line 1: "]);
    with(&format!("{good}'open")).fails(1, &["line 3: a ' is not closed"]);
    with(&format!("{good}'gemm(a, b)'")).fails(1, &["1 of 2 pipelines could not be tuned"]);
    with("# nothing").fails(1, &["rows.txt names no pipeline"]);
    with(&format!("{good}'gather(a)' --shape a=8x8 --set foo=1")).fails(1, &["line 3: ", "`foo`"]);
    mk(&["tune"], &dir).fails(2, &["PIPELINE"]);
    for file in ["--list", "--from"] {
        let refused = [&format!("'{file} <FILE>' cannot be used with"), "--ranks"];
        mk(&["tune", file, &list, "--ranks", "2"], &dir).fails(2, &refused);
    }
    mk(&["explain", "tests/plans/gather_gemm.plan"], &dir).fails(1, &["is a plan"]);
    mk(&["tune", "--from", "Cargo.toml"], &dir).fails(1, &["Cargo.toml"]);
    let args = [&["tune"], &GATHER_GEMM[..], &["--device", "model", "--try", "speed=1"]].concat();
    mk(&args, &dir).fails(1, &["there is no setting `speed`", "settings are block, "]);
}

#[test]
fn settings_are_tuned_on_request_only() {
    let dir = TempDir::new();
    let plan = |more: &[&str]| mk(&[&["plan"], &GATHER_GEMM[..], more].concat(), &dir);
    assert!(plan(&[]).ok().contains("role role2 intra_comm ctas 8"));
    let args = [&["explain"], &GATHER_GEMM[..]].concat();
    let explained = mk(&args, &dir).ok();
    let tuned = plan(&["--tuned"]).ok();
    let ctas = tuned.lines().find_map(|l| l.strip_prefix("role role2 intra_comm ctas "));
    let ctas = ctas.expect("a role that communicates");
    let says = match ctas {
        // The default needs no word.
        "8" => "settings",
        n => &format!("intra_comm_sms={n}"),
    };
    assert!(explained.contains(says), "{explained}");
    plan(&["--tuned", "--set", "intra_comm_sms=4"]).fails(1, &["leave either out"]);
}

#[test]
fn figures_that_cannot_be_are_refused() {
    let dir = TempDir::new();
    let path = dir.file("model.json");
    std::fs::write(&path, "{}").expect("writes");
    let args = [&["explain"], &GATHER_GEMM[..], &["--model", &path]].concat();
    mk(&args, &dir).fails(1, &["model.json: not a device model"]);
    mk(&["probe", "--from", MACHINE], &dir).fails(1, &["not what `mk tune --json` writes"]);
    let file = dir.file("times.json");
    let probe = |text: &str| {
        std::fs::write(&file, text).expect("writes");
        mk(&["probe", "--from", &file, "--install"], &dir)
    };
    probe("[]").fails(1, &["no measured plan to fit"]);
    for ms in ["0", "-1", "1e999"] {
        let trial = format!("{{\"config\": \"\", \"median_ms\": {ms}, \"least_ms\": 1}}");
        let line = "'gemm(a, b)' --shape a=64x64 --shape b=64x64 --ranks 1";
        probe(&format!("[{{\"pipeline\": \"{line}\", \"trials\": [{trial}]}}]")).fails(1, &[&file]);
    }
    assert!(!std::path::Path::new(&dir.file("cache/tune")).exists());
    std::fs::create_dir_all(dir.file("cache/tune")).expect("a folder");
    std::fs::write(dir.file("cache/tune/NVIDIA-H200.model.json"), "junk").expect("writes");
    let args = [&["explain"], &GATHER_GEMM[..]].concat();
    let done = mk(&args, &dir);
    assert!(done.err.contains("`mk probe --install` writes it again"), "{}", done.err);
}

/// The settings of the published table, by the names that they have now.
#[test]
fn settings_of_published_rows_are_settings() {
    let text = std::fs::read_to_string(root().join("benches/published_rows.json")).expect("reads");
    let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut n = 0;
    for row in file["rows"].as_array().expect("rows") {
        for setting in row["settings"].as_array().expect("settings") {
            let of = |i: usize| setting[i].as_str().expect("a text");
            let written = format!("{}={}", of(0), of(1));
            let now = file["renamed"][&written].as_str().unwrap_or(&written);
            let read = ::mk::settings::read(&mut ::mk::settings::Config::default(), now);
            assert_eq!(read, Ok(()), "{}", row["name"]);
            n += 1;
        }
    }
    assert!(n > 0);
}

/// Before the search, which takes minutes.
#[test]
fn a_file_that_cannot_be_written_is_an_error_at_once() {
    let args = ["tune", "gather(a) -> gemm(b)", "--shape", "a=8192x8192", "--shape", "b=8192x8192"];
    for file in ["/no/such.json", "tests"] {
        let done =
            crate::command::mk(&[&args[..], &["--device", "model", "--json", file]].concat());
        assert!(!done.err.contains("predicting"), "{}", done.err);
        done.fails(1, &[&format!("cannot write {file}: ")]);
    }
}
