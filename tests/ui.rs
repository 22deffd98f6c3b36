//! What `mk::pipeline!` and `#[mk::pipelined]` accept, and each mistake with the message that it gives.
//!
//! To add a mistake: put a file in `tests/ui` (on a struct: `tests/ui/struct`), run with `TRYBUILD=overwrite`, and review the
//! `.stderr` file.
//!
//! The tests take an eighth of the mistakes, which the printed seed draws (`MK_SEED` repeats it): `ui_mistakes` of `mk-syntax`
//! reads all messages of the macro as strings. `cargo xtask sweep ui`, and CI, take all.

#[path = "../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
#[path = "ui/pass/items.rs"]
mod items;
#[path = "ui/pass/pipelined.rs"]
#[allow(dead_code, reason = "only the annotation reads some")]
mod pipelined;

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
};

#[test]
fn what_is_accepted() {
    items::main();
    pipelined::main();
}

#[test]
fn mistakes_have_their_messages() {
    let cases = trybuild::TestCases::new();
    mistakes().into_iter().for_each(|file| cases.compile_fail(file));
}

fn mistakes() -> Vec<PathBuf> {
    let files = |folder| fs::read_dir(folder).expect("a folder").map(|e| e.expect("a file").path());
    let all = files("tests/ui").chain(files("tests/ui/struct"));
    let mut all: Vec<_> = all.filter(|p| p.extension().is_some_and(|e| e == "rs")).collect();
    all.sort();
    if drawn::whole() || env::var_os("TRYBUILD").is_some() {
        return all;
    }
    let seed = drawn::seed();
    all.sort_by_cached_key(|path| {
        let mut hasher = DefaultHasher::new();
        (seed, path).hash(&mut hasher);
        hasher.finish()
    });
    all.truncate(all.len().div_ceil(8));
    all
}
