//! How much is said, where, and in which colours; scripts and pages that are made from the options.

use crate::command::{TempDir, command, done, mk, mk_json, root};
use std::collections::BTreeSet;
use std::path::Path;

const CHECK: &[&str] = &["check", "examples/gather_gemm.mk"];
const WRONG: &[&str] = &["check", "gather(a) -> gemn(b)"];

fn with(args: &[&str], more: &[&str]) -> Vec<String> {
    [args, more].concat().into_iter().map(String::from).collect()
}

#[track_caller]
fn run(args: &[&str], more: &[&str]) -> crate::command::Done {
    let words = with(args, more);
    mk(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn quiet_leaves_the_verdict() {
    assert_eq!(run(CHECK, &["-q"]).ok(), "OK\n");
    let ran = mk(&["-q", "run", "examples/gemm.mk", "--device", "cpu", "--launches", "1"]);
    assert_eq!((ran.err.as_str(), ran.out.lines().count()), ("", 1), "{}", ran.out);
    assert!(ran.ok().starts_with("PASS: "));
    // What a command is for is printed all the same.
    assert_eq!(
        mk(&["plan", "examples/gemm.mk", "-q"]).ok(),
        mk(&["plan", "examples/gemm.mk"]).ok()
    );
    run(WRONG, &["-q"]).fails(1, &["error: unknown operation"]);
    run(CHECK, &["-q", "-v"]).fails(2, &["cannot be used with"]);
}

#[test]
fn verbose_says_what_is_done() {
    let said = run(CHECK, &["-v"]);
    assert!(
        said.err.contains(" s  lowered, ") && said.err.contains(" s  proved, "),
        "{}",
        said.err
    );
    assert_eq!(run(CHECK, &[]).err, "");
}

#[test]
fn colours_are_asked_for() {
    let red = "\u{1b}[1m\u{1b}[31merror:";
    assert!(run(WRONG, &["--color", "always"]).err.contains(red));
    assert!(run(CHECK, &["--color=always"]).out.contains("\u{1b}[32mOK"));
    // Nobody reads a terminal here.
    for more in [&[][..], &["--color", "never"], &["--color", "auto"]] {
        assert!(!run(WRONG, more).err.contains('\u{1b}'));
    }
    let mut forced = command(WRONG);
    forced.env("CLICOLOR_FORCE", "1");
    assert!(done(forced).err.contains(red));
    let mut none = command(WRONG);
    none.env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1");
    assert!(!done(none).err.contains('\u{1b}'));
    // Mistakes of the command line, too.
    let colourful = mk(&["check", "--nosuch", "--color", "always"]).err;
    assert!(colourful.contains("\u{1b}["), "{colourful}");
    mk(&["check", "x", "--color", "sometimes"]).fails(2, &["auto, always, never"]);
}

#[test]
fn shells_complete_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = mk(&["completions", shell]).ok();
        for word in ["explain", "json"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    mk(&["completions", "dos"]).fails(2, &["possible values: bash"]);
}

#[test]
fn every_command_has_a_page() {
    let dir = TempDir::new();
    let page = mk(&["man"]).ok();
    assert!(page.contains(".TH mk 1") && page.contains("MK_CACHE_DIR"), "{page}");
    let folder = dir.file("man/man1");
    mk(&["man", &folder]).ok();
    let help = mk(&["--help"]).ok();
    let commands = help.lines().skip_while(|l| *l != "Commands:").skip(1);
    let commands =
        commands.take_while(|l| !l.is_empty()).filter_map(|l| l.split_whitespace().next());
    for name in commands.filter(|n| *n != "help") {
        let page = std::fs::read_to_string(format!("{folder}/mk-{name}.1")).expect(name);
        assert!(page.contains(&format!(".TH mk-{name} 1")), "{page}");
        assert!(page.contains("color"), "{name}");
    }
    assert_eq!(std::fs::read_to_string(format!("{folder}/mk.1")).expect("a page"), page);
}

/// Names of variables in texts of the sources, those of the table itself left out: `read("MK_X")`.
fn variables(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            variables(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "py") {
            let text = std::fs::read_to_string(&path).expect("UTF-8");
            let table = text
                .find("pub const VARIABLES")
                .map(|from| from..from + text[from..].find("];").expect("the end of the table"));
            for (at, _) in text.match_indices("\"MK_") {
                let name: String = text[at + 1..].chars().take_while(|c| *c != '"').collect();
                let plain = name.chars().all(|c| c == '_' || c.is_ascii_uppercase());
                // Tests start themselves again by these.
                let of_test = name.starts_with("MK_TEST_");
                if plain && !of_test && !table.as_ref().is_some_and(|t| t.contains(&at)) {
                    found.insert(name);
                }
            }
        }
    }
}

#[test]
fn help_lists_the_variables_that_are_read() {
    let mut read = BTreeSet::new();
    for entry in std::fs::read_dir(root()).expect("the root") {
        let path = entry.expect("an entry").path();
        for code in ["src", "python"] {
            let is_code = path.join("Cargo.toml").is_file() && !path.ends_with("xtask");
            if is_code && path.join(code).is_dir() {
                variables(&path.join(code), &mut read);
            }
        }
    }
    variables(&root().join("src"), &mut read);
    let help = mk(&["--help"]).ok();
    let listed: BTreeSet<String> = help
        .lines()
        .skip_while(|l| *l != "Environment:")
        .filter_map(|l| l.split_whitespace().next())
        .filter(|name| name.starts_with("MK_"))
        .map(String::from)
        .collect();
    assert!(listed.len() >= 2, "{help}");
    assert_eq!(listed, read);
}

#[test]
fn json_is_all_that_is_on_stdout() {
    let json = run(&["run", "examples/gemm.mk", "--device", "cpu"], &["--json", "-v"]);
    assert!(json.err.contains("lowered"), "{}", json.err);
    serde_json::from_str::<serde_json::Value>(&json.out).expect("one object");
    assert_eq!(mk_json(&["doctor", "--json"], 0)["command"], "doctor");
}
