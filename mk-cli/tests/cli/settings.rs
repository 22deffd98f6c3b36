//! The table of settings, as the command line, the tuner and docs/tuning.md have it (Python's is compared with the document in
//! `mk-python/tests/test_offline.py`).

use crate::command::{mk, root};
use mk::{
    Program,
    settings::{self, Config, SETTINGS, Setting},
    tune,
};
use std::collections::{BTreeMap, BTreeSet};

const DOCUMENT: &str = "docs/tuning.md";
const MARKS: [&str; 2] = ["<!-- settings: begin -->", "<!-- settings: end -->"];

/// Pipelines with sizes and ranks such that each setting that a search tries is tried for one of them.
const SEARCHED: &[(&str, u32)] = &[
    (
        "fn f(a: bf16[8192, 8192] @ shard(0), b: bf16[8192, 8192] @ shard(1)) { gather(a) -> gemm(b) }",
        4,
    ),
    (
        "fn f(a: bf16[8192, 8192] @ shard(1), b: bf16[8192, 8192] @ shard(0)) { gemm(a, b) -> reduce_scatter }",
        4,
    ),
    (
        "fn f(a: bf16[64, 8192] @ shard(1), b: bf16[8192, 8192] @ shard(0)) { gemm(a, b) -> all_reduce }",
        4,
    ),
];

/// The settings that a search tries for some pipeline.
fn searched() -> BTreeSet<&'static str> {
    let tried = |(text, ranks): &(&str, u32)| {
        let program = Program::parse(text).expect("a pipeline");
        let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("no symbols");
        let facts = tune::facts(&program, &bound, *ranks);
        tune::choices(&facts, &BTreeMap::new()).into_iter().map(|(s, _)| s.name)
    };
    SEARCHED.iter().flat_map(tried).collect()
}

/// The document's table, from the one in code.
fn table() -> String {
    let searched = searched();
    let row = |s: &Setting| {
        let accepted = settings::accepted(s).replace('|', "\\|");
        let tried = if searched.contains(s.name) { "yes" } else { "no" };
        format!(
            "| `{}` | {} | `{accepted}` | `{}` | {tried} |",
            s.name,
            s.doc,
            (s.get)(&Config::default())
        )
    };
    let head = [
        "| setting | decides | values | default | tried by a search |",
        "| --- | --- | --- | --- | --- |",
    ];
    let rows = SETTINGS.iter().map(row);
    head.map(String::from).into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// `cargo xtask bless` writes it.
#[test]
fn the_document_has_the_table() {
    let path = root().join(DOCUMENT);
    let text = std::fs::read_to_string(&path).expect("the document");
    let (before, rest) = text.split_once(MARKS[0]).expect("the table's begin");
    let (found, after) = rest.split_once(MARKS[1]).expect("the table's end");
    let table = table();
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        let new = format!("{before}{}\n\n{table}\n\n{}{after}", MARKS[0], MARKS[1]);
        std::fs::write(&path, new).expect("written");
        return;
    }
    assert!(
        found.trim() == table,
        "{DOCUMENT} has another table of settings: run `cargo xtask bless`\n{table}"
    );
}

/// Every name is taken with its default, by `--set` and by `--try`, and the message for another name lists exactly the table.
#[test]
fn the_command_line_has_the_table() {
    let pipeline = ["gemm(a, b)", "--shape", "a=64x64", "--shape", "b=64x64", "--ranks", "1"];
    let all = settings::write_all(&Config::default());
    mk(&[&["plan"], &pipeline[..], &["--set", &all]].concat()).ok();
    let names = SETTINGS.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
    let listed = format!("the settings are {names}\n");
    mk(&[&["plan"], &pipeline[..], &["--set", "knob=1"]].concat())
        .fails(2, &["no setting `knob`", &listed]);
    mk(&[&["tune", "--device", "model"], &pipeline[..], &["--try", "knob=1"]].concat())
        .fails(1, &["no setting `knob`", &listed]);
}

/// A search tries settings of the table alone, each with values that it takes.
#[test]
fn the_tuner_has_the_table() {
    let searched = searched();
    assert!(searched.iter().all(|name| settings::by_name(name).is_some()));
    for (text, ranks) in SEARCHED {
        let program = Program::parse(text).expect("a pipeline");
        let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("no symbols");
        for (setting, values) in
            tune::choices(&tune::facts(&program, &bound, *ranks), &BTreeMap::new())
        {
            for value in values {
                let mut config = Config::default();
                assert!((setting.set)(&mut config, &value).is_some(), "{}={value}", setting.name);
                assert_eq!((setting.get)(&config), value, "{}", setting.name);
            }
        }
    }
}
