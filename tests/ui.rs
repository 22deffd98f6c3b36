//! What `mk::pipeline!` and `#[mk::pipelined]` accept, and each mistake with the message that it gives.
//!
//! To add a mistake: put a file in `tests/ui` (on a struct: `tests/ui/struct`), run with `TRYBUILD=overwrite`, and review the
//! `.stderr` file.
//!
//! `ui_mistakes` of `mk-syntax` reads the messages and places of `pipeline!` as strings, in a second. What rustc makes of
//! them, for which all of mk is built again, `cargo xtask sweep ui` shows, and CI.

#[path = "../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
#[path = "ui/pass/items.rs"]
mod items;
#[path = "ui/pass/pipelined.rs"]
#[allow(dead_code, reason = "only the annotation reads some")]
mod pipelined;

use mk_skip::{Need, skip};
use std::{env, fs, path::PathBuf};

#[test]
fn what_is_accepted() {
    items::main();
    pipelined::main();
}

#[test]
fn mistakes_have_their_messages() {
    if !drawn::whole() && env::var_os("TRYBUILD").is_none() {
        return skip(Need::Sweep("ui"), "");
    }
    let cases = trybuild::TestCases::new();
    mistakes().into_iter().for_each(|file| cases.compile_fail(file));
}

fn mistakes() -> Vec<PathBuf> {
    let files = |folder| fs::read_dir(folder).expect("a folder").map(|e| e.expect("a file").path());
    let all = files("tests/ui").chain(files("tests/ui/struct"));
    let mut all: Vec<_> = all.filter(|p| p.extension().is_some_and(|e| e == "rs")).collect();
    all.sort();
    all
}
