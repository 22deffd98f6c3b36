//! The text format prints and reads back identically; expressions mean in C what they mean here.

use mk_codegen::ir::Plan;
use std::{fs, path::Path};

#[test]
fn every_fixture_prints_and_reads_back_identically() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans");
    let mut seen = 0;
    for entry in fs::read_dir(&dir).expect("tests/plans") {
        let path = entry.expect("entry").path();
        if path.extension().is_none_or(|e| e != "plan") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("readable");
        let plan: Plan = text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        plan.check_structure().unwrap_or_else(|e| panic!("{}: {e:?}", path.display()));
        let printed = plan.to_string();
        let again: Plan = printed.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(plan, again, "{}", path.display());
        assert_eq!(printed, again.to_string(), "{}", path.display());
        seen += 1;
    }
    assert!(seen > 0, "no fixtures in {}", dir.display());
}

#[test]
fn a_plan_has_its_head_lines_exactly_once() {
    let read = |text: &str| text.parse::<Plan>().map_err(|e| e.message);
    assert!(read("plan \"p\"\nmesh world=2\ntarget sm_90a\n").is_ok());
    // Nothing at all was read as a plan once, and could not be printed and read back.
    assert_eq!(read(""), Err("a plan needs a `plan` line".into()));
    assert_eq!(read("plan \"p\"\nmesh world=2\n"), Err("a plan needs a `target` line".into()));
    let twice = read("plan \"p\"\nmesh world=2\nmesh local=2\ntarget sm_90a\n").unwrap_err();
    assert!(twice.contains("no second `mesh` line"), "{twice}");
}

#[test]
fn names_print_as_they_were_read() {
    let read =
        |name: &str| format!("plan \"{name}\"\nmesh world=2\ntarget sm_90a\n").parse::<Plan>();
    for name in ["gather(a) -> gemm", "größe", "it's"] {
        let plan = read(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(plan.to_string().parse(), Ok(plan), "{name}");
    }
    // These came back with escapes once, which the reader does not know.
    for name in ["a\u{1}b", "a\\b", "a\tb", "\u{200b}"] {
        assert!(read(name).is_err(), "{name:?}");
    }
}
