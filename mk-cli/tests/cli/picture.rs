//! `mk plan --format dot|svg`, and the picture in the README.

use crate::command::{mk, root};

/// What the README says made its picture, made again. `cargo xtask bless` writes it.
#[test]
fn the_picture_in_the_readme_is_up_to_date() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("a README");
    let path = "docs/gather_gemm.svg";
    let (_, command) = readme.split_once("`mk plan ").expect("the command");
    let (command, _) = command.split_once('`').expect("the command's end");
    let (arguments, to) = command.split_once(" > ").expect("where it writes");
    assert_eq!(to, path);
    assert!(readme.contains(&format!("]({path})")), "the README shows no {path}");
    let arguments: Vec<&str> = ["plan"].into_iter().chain(arguments.split(' ')).collect();
    let picture = mk(&arguments).ok();
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        std::fs::write(root().join(path), &picture).expect("written");
    }
    let found = std::fs::read_to_string(root().join(path)).expect("the picture");
    assert!(
        found == picture,
        "{path} is not what `mk plan {command}` draws: run `cargo xtask bless`"
    );
}

/// Lines without how long something took.
fn without_times(text: &str) -> Vec<String> {
    let is_time = |word: &str| {
        let number = word.trim_end_matches([',', 's', 'm', 'µ', 'n']);
        number != word && number.parse::<f64>().is_ok()
    };
    let line = |line: &str| {
        let words = line.split(' ').map(|word| if is_time(word) { "TIME" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect()
}

/// What the README shows of `cargo xtask demo` is what its commands print, line by line; `…` stands for lines that are left out.
#[test]
fn the_demo_in_the_readme_is_up_to_date() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("a README");
    let (_, block) = readme.split_once("```text\n==> ").expect("the demo's output");
    let (block, _) = block.split_once("\n```").expect("its end");
    let demo = ["--ranks", "4"];
    let mut shown = 0;
    for part in block.split("\n==> ") {
        let (title, lines) = part.split_once('\n').expect("a title and lines");
        let command = match title {
            "verification" => &["check", "examples/gather_gemm.mk"][..],
            "running it on the CPU" => {
                &["run", "examples/gather_gemm.mk", "--device", "cpu", "--launches", "3"]
            }
            other => panic!("no part of the demo is called {other}"),
        };
        let printed = without_times(&mk(&[command, &demo].concat()).ok());
        let mut rest = printed.iter();
        for line in without_times(lines).iter().filter(|line| *line != "…") {
            assert!(
                rest.any(|printed| printed == line),
                "README.md shows `{line}` of {command:?}, which prints\n{}",
                printed.join("\n")
            );
            shown += 1;
        }
    }
    assert!(shown >= 5, "{shown}");
}

#[test]
fn a_plan_as_a_graph() {
    let graph = mk(&["plan", "tests/plans/two_nodes_nic.plan", "--format", "dot"]).ok();
    assert!(graph.starts_with("digraph \"two_nodes_nic\" {") && graph.ends_with("}\n"), "{graph}");
    assert!(graph.contains("label=\"inter_send\\n1 CTA: 5\""), "{graph}");
}

#[test]
fn a_format_that_is_not_known() {
    let wrong = mk(&["plan", "gather(a)", "--shape", "a=64x64", "--format", "png"]);
    wrong.fails(2, &["invalid value 'png'", "text, json, dot, svg"]);
}
