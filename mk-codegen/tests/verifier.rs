//! The verifier on whole plans: every fixture verifies, every broken plan is rejected for the reason in its first line.
//!
//! A new broken plan is a file in `tests/plans/broken`. Its first line is `// rejected: rule N: …`; where the file's name
//! begins with `rule`, what follows is part of the message, else it is a remark.

use mk_codegen::{
    plan::Plan,
    valid::{self, TableKind},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

fn plans(folder: &str) -> Vec<(String, String, Plan)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans").join(folder);
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "plan"));
    paths.sort();
    let read = |p: PathBuf| {
        let text = fs::read_to_string(&p).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
        let plan = text.parse().unwrap_or_else(|e| panic!("{}: {e}", p.display()));
        (p.file_stem().unwrap_or_default().to_string_lossy().into_owned(), text, plan)
    };
    paths.into_iter().map(read).collect()
}

fn broken(name: &str) -> valid::Failure {
    let found = plans("broken").into_iter().find(|p| p.0 == name);
    let (.., plan) = found.unwrap_or_else(|| panic!("no broken plan {name}"));
    valid::verify(&plan).expect_err("a broken plan")
}

#[test]
fn every_fixture_verifies() {
    let all = plans("");
    assert!(!all.is_empty());
    for (name, _, plan) in all {
        let proof = valid::verify(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{proof}");
        assert_eq!(proof.waits_unused, [], "{name}: a fixture has no wait that it does not need");
    }
}

#[test]
fn every_broken_plan_is_rejected_for_its_reason() {
    let mut by_rule = [0; 7];
    for (name, text, plan) in plans("broken") {
        let first = text.lines().next().unwrap_or_default();
        let reason = first.strip_prefix("// rejected: rule ").and_then(|r| r.split_once(": "));
        let (rule, message) = reason.unwrap_or_else(|| panic!("{name}: first line {first:?}"));
        let failure = match valid::verify(&plan) {
            Ok(proof) => panic!("{name} is accepted: {proof}"),
            Err(f) => f,
        };
        let rules: Vec<_> = failure.violations.iter().map(|v| v.rule().to_string()).collect();
        assert!(rules.iter().any(|r| r == rule), "{name}: rule {rule} expected: {failure}");
        if name.starts_with("rule") {
            assert!(
                failure.to_string().contains(message),
                "{name}: {message:?} expected: {failure}"
            );
        }
        by_rule[rule.parse::<usize>().expect("a rule")] += 1;
    }
    println!("rejected by rule: {:?}", &by_rule[1..]);
    assert!(by_rule[1..].iter().all(|n| *n >= 3), "{by_rule:?}");
}

#[test]
fn counterexamples_read_well() {
    insta::assert_snapshot!("race", broken("rule1_no_wait_for_arrival"));
    insta::assert_snapshot!("too_weak", broken("rule4_no_proxy_fence"));
    insta::assert_snapshot!("deadlock", broken("rule2_circle"));
    insta::assert_snapshot!("caller", broken("rule1_leaves_while_peers_read"));
}

#[test]
fn counterexamples_are_drawn() {
    for name in ["rule1_no_wait_for_arrival", "rule4_no_proxy_fence", "rule2_circle"] {
        let plan = plans("broken").into_iter().find(|p| p.0 == name).expect("a broken plan").2;
        insta::assert_snapshot!(format!("svg_{name}"), valid::timeline(&plan, &broken(name)));
    }
    // Whatever the violation, there is a picture, and it says which rule.
    for (name, _, plan) in plans("broken") {
        let failure = valid::verify(&plan).expect_err(&name);
        let svg = valid::timeline(&plan, &failure);
        let rule = failure.violations[0].rule();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{name}");
        assert!(svg.contains(&format!("rule {rule} is violated")), "{name}: {svg}");
        assert_eq!(svg.matches("<text ").count(), svg.matches("</text>").count(), "{name}");
    }
}

#[test]
fn one_mistake_is_one_report() {
    for name in [
        "rule1_no_wait_for_arrival",
        "rule4_no_proxy_fence",
        "ring_attention_scratch_steps_not_ordered",
    ] {
        let failure = broken(name);
        assert_eq!(failure.violations.len(), 1, "{name}: {failure}");
    }
}

#[test]
fn sampled_tables_stay_in_their_ranges_and_repeat() {
    for (name, _, plan) in plans("") {
        for kind in TableKind::ALL {
            let (a, b) = (valid::sample_tables(&plan, *kind), valid::sample_tables(&plan, *kind));
            for (id, table) in plan.tables.iter() {
                let mk_codegen::plan::TableSource::Runtime { min, max } = table.source else {
                    continue;
                };
                for rank in 0..plan.mesh.size() as usize {
                    let values = a.values(rank, id);
                    assert!(values.iter().all(|v| (min..=max).contains(v)), "{name} {kind:?} {id}");
                    assert_eq!(values, b.values(rank, id), "{name} {kind:?} {id}");
                }
            }
        }
    }
}
