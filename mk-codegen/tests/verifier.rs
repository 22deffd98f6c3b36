//! The verifier on the fixtures.

use mk_codegen::{ir::Plan, valid};
use std::{
    fs,
    path::{Path, PathBuf},
};

fn plans(folder: &str) -> Vec<(String, String, Plan)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans").join(folder);
    let mut paths: Vec<PathBuf> =
        fs::read_dir(&dir).expect("plans").map(|e| e.expect("entry").path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "plan"));
    paths.sort();
    let read = |p: PathBuf| {
        let text = fs::read_to_string(&p).expect("readable");
        let plan = text.parse().unwrap_or_else(|e| panic!("{}: {e}", p.display()));
        (p.file_stem().expect("a name").to_string_lossy().into_owned(), text, plan)
    };
    paths.into_iter().map(read).collect()
}

#[test]
fn every_fixture_verifies() {
    for (name, _, plan) in plans("") {
        let t = std::time::Instant::now();
        match valid::verify(&plan) {
            Ok(proof) => println!("{name} {:?}: {proof}", t.elapsed()),
            Err(e) => println!("{name} FAILED {:?}\n{e}", t.elapsed()),
        }
    }
}

#[test]
fn every_broken_plan_is_rejected() {
    for (name, text, plan) in plans("broken") {
        let t = std::time::Instant::now();
        println!("==== {name} {}", text.lines().next().unwrap());
        match valid::verify(&plan) {
            Ok(proof) => println!("ACCEPTED: {proof}"),
            Err(e) => println!("{:?} {e}", t.elapsed()),
        }
    }
}
