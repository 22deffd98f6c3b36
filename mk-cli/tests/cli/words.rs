//! What every command says in one way: help lines, numbers of one, paths that cannot be written, options without effect.

use crate::{
    command::{Done, TempDir, command, done, mk, mk_json, mk_reads},
    drawn,
};
use std::fs;

const MK: &str = "examples/gather_gemm.mk";
const SMALL: [&str; 6] = ["--dim", "M=64", "--dim", "K=64", "--dim", "N=64"];

/// Command lines that fail, of every kind of error that needs no GPU.
const WRONG: &[&[&str]] = &[
    &["check", "gather(a) -> gemn(b)"],
    &["check", "gather(a) -> all_gather -> gemm(b)"],
    &["check", "gather(a) -> gemm(b)"],
    &["check", MK, "--dim", "Q=3"],
    &["check", MK, "--dim", "M=0"],
    &["check", MK, "--dim", "M=2", "--dim", "M=3"],
    &["check", MK, "--shape", "x=3x3x3"],
    &["check", MK, "--set", "block=1x1x1"],
    &["check", MK, "--set", "blok=1"],
    &["check", MK, "--set", "compute_sms=200"],
    &["check", MK, "--ranks", "3", "--nodes", "2"],
    &["check", MK, "--ranks", "0"],
    &["check", "examples/none.mk"],
    &["check", "tests/plans/none.plan"],
    &["check", "tests/plans/gather_gemm.plan", "--ranks", "2"],
    &["check", "tests/plans/gather_gemm.plan", "--tuned"],
    &["check", MK, "--dim", "M=1073741824", "--dim", "N=1073741824"],
    &["emit", "gather(a) -> gemm(b)", "--shape", "a=3x5", "--shape", "b=5x7", "-o", "/proc/none/x"],
    &["tune", MK, "--nodes", "2"],
    &["explain", MK, "--tuned", "--set", "split_k=2"],
    &["grad", MK, "--wanted", "z"],
    &["grad", "dispatch(x, ids) -> grouped_gemm(w)"],
    &["run", MK, "--device", "cpu", "--time"],
    &["run", MK, "--schedule", "starve:9"],
    &["run", MK, "--gpus", "0,0", "--ranks", "3"],
    &["run", MK, "--gpus", "99,99", "--device", "cuda"],
    &["run", MK, "--reference", MK],
    &["run", MK, "--routing", "one"],
    &["trace", MK, "--ranks", "64"],
    &["tune", MK, "--gpus", "0,0", "--device", "model"],
    &["probe", "--output", "/proc/none/x"],
];

#[test]
fn one_rendering_of_help() {
    for args in WRONG {
        let Done { status, out, err } = mk(args);
        assert!(status == 1 || status == 2, "{args:?}: {status}\n{out}{err}");
        // A usage error of clap has its own lines.
        for line in err.lines().filter(|_| status == 1) {
            let inner = line.trim_start();
            assert!(!inner.starts_with("help:"), "{args:?}: {err}");
            let embedded =
                line.matches("error: ").count() - usize::from(line.starts_with("error: "));
            assert_eq!(embedded, 0, "{args:?}: {err}");
        }
        assert!(!err.contains("\\n"), "{args:?}: {err}");
        assert_eq!(err.matches("= help: ").count() - err.matches(" = help: ").count(), 0);
        let with_json = ["check", "run", "explain"].contains(&args[0]);
        if with_json && !args.contains(&"--json") {
            let json = mk_json(&[args, &["--json"][..]].concat(), status);
            for error in json["errors"].as_array().expect("a list") {
                for part in ["message", "help"] {
                    let text = error[part].as_str().unwrap_or_default();
                    assert!(
                        !text.contains("help: ") && !text.contains("error: "),
                        "{args:?}: {json}"
                    );
                }
            }
        }
    }
}

/// Words after a number of one, that are no plural though they end so.
const NO_PLURALS: [&str; 7] = ["s", "is", "us", "has", "ms", "was", "does"];

fn plural_of_one(text: &str) -> Option<&str> {
    text.lines().find(|line| {
        let words: Vec<&str> = line.split(' ').filter(|w| !w.is_empty()).collect();
        words.windows(2).any(|pair| {
            let word = pair[1].trim_end_matches([',', ';', ':', ')', '.']);
            let alone = pair[0].trim_start_matches('(') == "1";
            let letters = word.chars().all(|c| c.is_ascii_alphabetic());
            alone && letters && word.ends_with('s') && !NO_PLURALS.contains(&word)
        })
    })
}

#[test]
fn one_is_singular() {
    let attention = [
        "attention(q, k, v)",
        "--shape",
        "q=1x64x1x64",
        "--shape",
        "k=1x64x1x64",
        "--shape",
        "v=1x64x1x64",
    ];
    let experts = ["examples/experts.mk"];
    let reduce = ["gemm(a, b) -> all_reduce", "--shape", "a=1x64", "--shape", "b=64x64"];
    let gemm = [&[MK][..], &SMALL].concat();
    let mut seen = 0;
    for pipeline in [&gemm[..], &attention, &experts, &reduce] {
        for ranks in ["1", "2"] {
            for more in [
                &["check"][..],
                &["check", "--verbose"],
                &["explain"],
                &["plan", "--format", "svg"],
                &["emit", "-o", "/dev/null"],
                &["run", "--device", "cpu", "--launches", "1"],
                &["run", "--gpus", "99", "--device", "cuda", "--launches", "1"],
            ] {
                let (name, options) = more.split_first().expect("a command");
                let args = [&[*name], pipeline, options, &["--ranks", ranks]].concat();
                let Done { out, err, .. } = mk(&args);
                // The comments of a picture are its plan.
                for text in [&out, &err] {
                    assert_eq!(plural_of_one(text), None, "{args:?}\n{text}");
                }
                seen += usize::from(out.contains("1 rank") || err.contains("1 rank"));
            }
        }
    }
    assert!(seen >= 8, "{seen}");
    assert_eq!(plural_of_one("of 1 ranks, 2"), Some("of 1 ranks, 2"));
}

/// Before anything that takes long: the sizes would take minutes, or there is nothing to run on.
#[test]
fn paths_that_cannot_be_written_are_refused_first() {
    let large = ["--dim", "M=16384", "--dim", "K=16384", "--dim", "N=16384"];
    let dir = TempDir::new();
    let file = dir.file("file");
    fs::write(&file, "").expect("written");
    for path in ["/proc/none/x", &format!("{file}/x")] {
        for args in [
            &["run", MK, "--device", "cpu", "--out", path][..],
            &["emit", MK, "-o", path],
            &["plan", MK, "-o", path],
            &["build", MK, "-o", path],
            &["explain", MK, "--svg", path],
            &["trace", MK, "-o", path],
            &["trace", MK, "--svg", path],
            &["tune", MK, "--json", path],
            &["probe", "-o", path],
            &["man", path],
        ] {
            let sized = if args.contains(&MK) { &large[..] } else { &[] };
            let run = mk(&[args, sized].concat());
            assert!(!run.err.contains("multiply-adds"), "{args:?}: {}", run.err);
            run.fails(1, &["error: cannot ", path]);
        }
    }
    // A folder that is there and may not be written into.
    let what = ["run", MK, "--device", "cpu", "--out", "/proc"];
    mk(&[&what[..], &large].concat()).fails(1, &["cannot write /proc/mk"]);
}

#[test]
fn a_plan_goes_to_a_file_and_is_read_again() {
    let dir = TempDir::new();
    for (format, name) in [("text", "p.plan"), ("json", "p.json")] {
        let path = dir.file(name);
        let said = mk(&["plan", MK, "--format", format, "-o", &path]).ok();
        assert_eq!(said, format!("{path}: not verified\n"));
        assert!(mk(&["check", &path]).ok().contains("OK"));
        let printed = mk(&["plan", MK, "--format", format]).ok();
        assert_eq!(fs::read_to_string(&path).expect("reads"), printed);
    }
}

#[test]
fn a_routing_is_refused_where_nothing_is_routed() {
    for pipeline in [
        &[MK][..],
        &["examples/ring_attention.mk"],
        &["tests/plans/gather_gemm.plan", "--reference", MK],
    ] {
        for form in ["uniform", "one", "skew:4"] {
            let args = [&["run"], pipeline, &["--device", "cpu", "--routing", form]].concat();
            mk(&args).fails(
                1,
                &[&format!("`--routing {form}` says which experts"), "leave the option out"],
            );
        }
    }
    let routed =
        ["run", "examples/experts.mk", "--device", "cpu", "--routing", "one", "--launches", "1"];
    assert!(mk(&routed).ok().contains("PASS"));
}

/// A layer whose experts drop what is beyond a capacity.
fn dropping(capacity: &str) -> Vec<String> {
    let item = "fn f(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), g: f32[T, K] @ shard(0), w: bf16[E, H, H] @ shard(0)) \
                { dispatch(x, ids, capacity = R, drop) -> grouped_gemm(w) -> combine(g) }";
    let dims = ["T=768", "H=64", "E=2", "K=1"];
    let dims = dims.map(String::from).into_iter().chain([format!("R={capacity}")]);
    let dims = dims.flat_map(|dim| ["--dim".into(), dim]);
    let args =
        ["run", item, "--device", "cpu", "--ranks", "2", "--launches", "2"].map(String::from);
    args.into_iter().chain(dims).collect()
}

#[test]
fn dropped_rows_are_said() {
    let args = dropping("512");
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.extend(["--routing", "one"]);
    let text = mk(&args).ok();
    // One expert has room for 256 of 768 rows; the first rank's tokens come first.
    for line in [
        "launch 1, rank 0: 128 of 384 rows dropped",
        "launch 1, rank 1: 384 of 384 rows dropped",
        "1024 of 1536 rows dropped",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    args.push("--json");
    let json = mk_json(&args, 0);
    assert_eq!(json["dropped"], serde_json::json!({ "rows": 1024, "of": 1536 }));
    assert_eq!(json["verdict"], "PASS");
}

/// `mk doctor` names what is missing once, however many need it.
#[test]
fn the_doctor_says_each_thing_once() {
    let mut doctor = command(&["doctor"]);
    doctor.env("MK_FABRIC_DIR", "/nonexistent");
    let text = done(doctor).ok();
    let mut lines: Vec<&str> = text.lines().filter(|line| line.starts_with("missing")).collect();
    assert!(lines.iter().any(|line| line.contains("MK_FABRIC_DIR=/nonexistent")), "{text}");
    let n_lines = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), n_lines, "{text}");
}

/// Settings are never a blank: `nothing to set`, or words that `--set` takes.
#[test]
fn explain_names_settings() {
    let attention =
        ["--shape", "q=1x128x2x64", "--shape", "k=1x128x2x64", "--shape", "v=1x128x2x64"];
    for (pipeline, sizes) in [
        ("attention(q, k, v)", &attention[..]),
        ("examples/ring_attention.mk", &[]),
        ("gather(a)", &["--shape", "a=64x64"]),
        (MK, &[]),
        ("examples/experts.mk", &[]),
    ] {
        for ranks in ["1", "4"] {
            let text = mk(&[&["explain", pipeline, "--ranks", ranks], sizes].concat()).ok();
            let settings = text.lines().find_map(|l| l.strip_prefix("settings")).expect("settings");
            let settings = settings.trim();
            assert!(!settings.is_empty(), "{text}");
            assert!(
                settings == "nothing to set" || settings.split(' ').all(|w| w.contains('=')),
                "{text}"
            );
        }
    }
}

/// Every example with a derivative: what `mk grad` prints is read by `mk check -`, and its kernels are proved.
#[test]
fn gradients_are_read_again() {
    let mut derived = 0;
    let files = fs::read_dir(crate::command::root().join("examples")).expect("examples");
    let files = files.map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "mk")).collect();
    files.sort();
    for path in drawn::some(files, 4) {
        let path = path.to_string_lossy().into_owned();
        for save in ["all", "least"] {
            let whole = mk(&["grad", &path, "--save", save]);
            if whole.status != 0 {
                assert!(whole.err.contains("has no derivative"), "{path}: {}", whole.err);
                continue;
            }
            let read = mk_reads(&["check", "-"], whole.out.as_bytes());
            // A backward of several kernels is none; that it is no mistake in the text is what counts.
            let refused = read.status == 1 && read.err.contains("cannot be lowered here");
            assert!(read.status == 0 || refused, "{path}\n{}\n{}", whole.out, read.err);
            let kernels = mk(&["grad", &path, "--save", save, "--kernels"]).ok();
            let read = mk_reads(&["check", "-"], kernels.as_bytes());
            assert_eq!(read.status, 0, "{path}\n{kernels}\n{}", read.err);
            let n_items = kernels.lines().filter(|l| l.starts_with("fn ")).count();
            assert_eq!(read.out.lines().filter(|l| *l == "OK").count(), n_items, "{}", read.out);
            derived += 1;
        }
    }
    assert!(derived >= if drawn::whole() { 8 } else { 1 }, "{derived}");
}

/// Mistakes of the second pipeline of a text stand on its lines.
#[test]
fn several_pipelines_are_checked_in_turn() {
    let text = "// M = 64, K = 64, N = 64\n\nfn one(x: bf16[M, K] @ shard(0)) { gather(x) }\n\n\
                fn two(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) { gather(x) -> gemm(w) }\n";
    let read = mk_reads(&["check", "-"], text.as_bytes()).ok();
    assert_eq!(read.lines().filter(|l| *l == "OK").count(), 2, "{read}");
    let wrong = text.replace("gemm(w)", "gemn(w)");
    mk_reads(&["check", "-"], wrong.as_bytes()).fails(1, &["unknown operation `gemn`", "stdin:5:"]);
    mk_reads(&["check", "-", "--json"], text.as_bytes()).fails(1, &[]);
    mk_reads(&["plan", "-"], text.as_bytes()).fails(1, &["a source has one pipeline"]);
}
