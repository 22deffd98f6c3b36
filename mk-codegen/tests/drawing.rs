//! Pictures of plans: snapshots, and what holds of every picture.

mod common;

use common::{CASES, plan};
use mk_codegen::draw::{dot, svg};
use mk_codegen::plan::Plan;
use std::{fs, path::Path};

fn case(name: &str) -> Plan {
    let (_, source, ranks, shapes) = CASES.iter().find(|c| c.0 == name).expect("a case");
    plan(source, *ranks, shapes).expect("lowers")
}

#[test]
fn pictures() {
    for name in ["gather_gemm", "mlp"] {
        let plan = case(name);
        insta::assert_snapshot!(format!("{name}_svg"), svg(&plan));
        insta::assert_snapshot!(format!("{name}_dot"), dot(&plan));
    }
}

/// The plans of `tests/plans`, broken ones included, and those of this version.
fn every_plan() -> Vec<(String, Plan)> {
    let mut plans: Vec<_> = CASES.iter().map(|c| (c.0.to_owned(), case(c.0))).collect();
    for folder in ["../tests/plans", "../tests/plans/broken"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in fs::read_dir(folder).expect("a folder of plans") {
            let path = entry.expect("entry").path();
            if path.extension().is_some_and(|e| e == "plan") {
                let text = fs::read_to_string(&path).expect("readable");
                plans.push((path.display().to_string(), text.parse().expect("reads")));
            }
        }
    }
    assert!(plans.len() > 50);
    plans
}

/// `x`, `y`, `width`, `height` of each box of a class, in order.
fn boxes(picture: &str, classes: &[&str]) -> Vec<[f64; 4]> {
    let value = |line: &str, key: &str| -> f64 {
        let (_, rest) = line.split_once(&format!(" {key}=\"")).expect(key);
        rest.split('"').next().expect("quoted").parse().expect("a number")
    };
    let is_of = |line: &&str| {
        classes.iter().any(|class| line.starts_with(&format!("<rect class=\"{class}\"")))
    };
    let lines = picture.lines().filter(is_of);
    lines.map(|line| ["x", "y", "width", "height"].map(|key| value(line, key))).collect()
}

#[test]
fn nothing_overlaps() {
    for (name, plan) in every_plan() {
        let picture = svg(&plan);
        let page = boxes(&picture, &["page"])[0];
        let mut all = boxes(&picture, &["fam", "caller", "own", "osig", "psig"]);
        // Peers' memory is drawn twice, one box behind the other, and once in the legend.
        let peers = boxes(&picture, &["peers"]);
        all.extend(peers.iter().skip(1).step_by(2));
        for (i, a) in all.iter().enumerate() {
            let inside =
                a[0] > page[0] && a[1] > page[1] && a[0] + a[2] < page[2] && a[1] + a[3] < page[3];
            assert!(inside, "{name}: {a:?} in {page:?}");
            for b in &all[..i] {
                let apart = |d: usize| a[d] + a[d + 2] <= b[d] || b[d] + b[d + 2] <= a[d];
                assert!(apart(0) || apart(1), "{name}: {a:?} and {b:?}");
            }
        }
        // A level line may cross an upright one, and touches no family but its own, which it ends at.
        let families = boxes(&picture, &["fam"]);
        for line in picture.lines().filter(|l| l.starts_with("<path") && l.contains('H')) {
            let (_, path) = line.split_once(" d=\"M").expect("a path");
            let numbers: Vec<f64> = path
                .split(|c: char| !(c.is_ascii_digit() || c == '.'))
                .filter_map(|n| n.parse().ok())
                .collect();
            let (from, to, y) =
                (numbers[0].min(numbers[2]), numbers[0].max(numbers[2]), numbers[1]);
            for [x, top, width, height] in &families {
                let misses =
                    y < *top || y > top + height || to <= x + 0.11 || from >= x + width - 0.11;
                assert!(misses, "{name}: {line} runs through the family at {x}, {top}");
            }
        }
    }
}

/// Every edge of the plan is named, in both formats.
#[test]
fn every_edge_is_named() {
    for (name, plan) in every_plan() {
        let (picture, graph) = (svg(&plan), dot(&plan));
        for family in plan.families.values() {
            let inside = family.edges.iter().map(|e| e.edge);
            let waits = family.waits.iter().map(|w| w.edge);
            for edge in inside.chain(waits).chain(family.posts.iter().map(|p| p.edge)) {
                let edge = format!("{edge} ");
                assert!(picture.contains(&edge) && graph.contains(&edge), "{name}: {edge}");
            }
        }
    }
}

#[test]
fn names_from_outside_are_escaped() {
    let mut plan = case("gather_gemm");
    let hostile = "<b a=\"1\">&\u{1}\\\" ]]> é";
    plan.name = hostile.into();
    for (_, buffer) in plan.buffers.iter_mut() {
        buffer.name = hostile.repeat(30);
    }
    let (picture, graph) = (svg(&plan), dot(&plan));
    for found in [&picture, &graph] {
        assert!(found.chars().all(|c| c == '\n' || !c.is_control()));
    }
    assert!(!picture.contains("<b") && !picture.contains("&\u{fffd}"));
    assert!(picture.contains("&lt;b a=&quot;1&quot;&gt;&amp;\u{fffd}\\&quot; ]]&gt; é"));
    assert!(graph.contains("digraph \"<b a=\\\"1\\\">&\u{fffd}\\\\\\\" ]]> é\" {"));
    // A name of any length is cut.
    assert!(boxes(&picture, &["caller"]).iter().all(|b| b[2] < 400.0));
}

#[test]
fn a_plan_of_nothing_has_a_picture() {
    let plan = Plan::default();
    assert!(svg(&plan).starts_with("<svg") && dot(&plan).starts_with("digraph"));
}
