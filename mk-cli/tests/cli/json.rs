//! `--json`: one object, on success and on failure, as docs/command-line.md shows it.

use crate::command::{TempDir, mk, mk_json, root};
use mk_skip::{Need, skip};
use serde_json::Value;
use std::collections::BTreeSet;

const SIZES: [&str; 6] = ["--shape", "a=64x64", "--shape", "b=64x64", "--ranks", "2"];

#[track_caller]
fn json(words: &[&str], status: i32) -> Value {
    mk_json(&[words, &SIZES, &["--json"]].concat(), status)
}

#[test]
fn failures_have_a_kind_a_message_and_help() {
    let kind = |value: &Value| value["errors"][0]["kind"].as_str().expect("a kind").to_string();
    let wrong = json(&["check", "gather(a) -> gemn(b) -> gelo"], 1);
    assert_eq!(wrong["errors"].as_array().map(Vec::len), Some(2), "{wrong}");
    let first = &wrong["errors"][0];
    assert_eq!(
        (&first["message"], &first["help"]),
        (&"unknown operation `gemn`".into(), &"did you mean `gemm`?".into())
    );
    assert_eq!((&first["kind"], &first["column"]), (&"pipeline".into(), &14.into()));
    assert_eq!(kind(&json(&["check", "gather(a) -> gemm(c)"], 1)), "sizes");
    let setting = json(&["explain", "gather(a) -> gemm(b)", "--set", "block=1x1x1"], 1);
    assert_eq!(kind(&setting), "settings");
    assert!(setting["errors"][0]["help"].as_str().expect("help").contains("`block="), "{setting}");
    assert_eq!(kind(&mk_json(&["check", "no/such.mk", "--json"], 1)), "file");
    let race = "tests/plans/broken/rule1_no_wait_for_arrival.plan";
    let race = mk_json(&["check", race, "--json"], 1);
    assert_eq!((kind(&race).as_str(), &race["errors"][0]["rule"]), ("refused", &1.into()));
    let huge = ["check", "gather(a) -> gemm(b)", "--json", "--shape", "a=1073741824x8"];
    assert_eq!(kind(&mk_json(&[&huge[..], &["--shape", "b=8x8"]].concat(), 1)), "too_large");
    // A command line that does not read.
    let unread = json(&["run", "gather(a) -> gemm(b)", "--ranks"], 2);
    assert_eq!(kind(&unread), "command_line");
    let unread = json(&["check", "gather(a)", "--set", "foo=1"], 2);
    assert!(unread["errors"][0]["help"].as_str().expect("help").contains("the settings are"));
    // `--json` after `--` is a pipeline.
    mk(&["check", "--", "--json", "--json"]).fails(2, &["error: "]);
    assert_eq!(mk(&["check", "x", "--nosuch"]).out, "");
}

#[test]
fn a_run_that_fails_is_reported_all_the_same() {
    let dir = TempDir::new();
    let path = dir.file("gelu.plan");
    let plan = mk(&[&["plan", "gather(a) -> gemm(b) -> gelu"], &SIZES[..]].concat()).ok();
    std::fs::write(&path, plan).expect("written");
    let run = ["run", &path, "--device", "cpu", "--reference", "gather(a) -> gemm(b) -> silu"];
    let failed = mk_json(&[&run[..], &SIZES[..4], &["--json"]].concat(), 1);
    assert_eq!(
        (&failed["verdict"], &failed["errors"][0]["kind"]),
        (&"FAIL".into(), &"wrong".into())
    );
    assert!(failed["launches"].as_array().is_some_and(|l| !l.is_empty()), "{failed}");
    let ran = mk_json(&["run", &path, "--device", "cpu", "--json"], 0);
    assert_eq!((&ran["verdict"], &ran["differ"]), (&"RAN".into(), &0.into()));
}

/// Keys of an object and of those in it; of a list, those of its first element.
fn keys(value: &Value, at: &str, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            all.insert(format!("{at}.{key}"));
            // Opcodes are those of the kernel, and GPUs those of the machine.
            if !["opcodes", "gpus", "peers", "missing"].contains(&key.as_str()) {
                keys(value, &format!("{at}.{key}"), all);
            }
        }),
        Value::Array(list) => list.iter().take(1).for_each(|v| keys(v, &format!("{at}[]"), all)),
        _ => {}
    }
}

/// Each example in the document is `$ mk ...`, then what it prints: with the same keys, if not the same figures.
#[test]
fn the_document_has_an_example_of_each() {
    let text = std::fs::read_to_string(root().join("docs/command-line.md")).expect("reads");
    let mut commands = BTreeSet::new();
    for example in text.split("```console\n").skip(1) {
        let example = example.split("```").next().expect("an end");
        let (line, shown) = example.split_once('\n').expect("a command");
        let (Some(line), true) = (line.strip_prefix("$ mk "), shown.starts_with('{')) else {
            continue;
        };
        let quoted: Vec<&str> = line.split('\'').collect();
        let words = quoted.iter().enumerate().flat_map(|(i, part)| match i % 2 {
            0 => part.split_whitespace().collect(),
            _ => vec![*part],
        });
        let done = mk(&words.collect::<Vec<_>>());
        let shown: Value = serde_json::from_str(shown).expect(line);
        commands.insert(shown["command"].as_str().expect("a command").to_string());
        let printed: Value = serde_json::from_str(&done.out).expect(&done.out);
        if line.starts_with("build") && done.out.contains("NVRTC") {
            skip(Need::Nvrtc, "the example of `mk build`");
            continue;
        }
        let of = |value| {
            let mut all = BTreeSet::new();
            keys(value, "", &mut all);
            all
        };
        assert_eq!(of(&shown), of(&printed), "mk {line}");
    }
    let all = ["build", "check", "doctor", "explain", "run"];
    assert_eq!(commands, all.map(String::from).into());
}
