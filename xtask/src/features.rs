//! One build serves tests, the command, the examples and the Python module: each selection of packages gives the crates
//! that it shares with the whole workspace the same features, so that cargo builds none of them twice.

use crate::run::{Result, cargo, quiet};
use std::collections::BTreeSet;

/// What is built after `cargo test --workspace`, with the edges of its dependencies.
const SELECTIONS: [(&str, &[&str]); 3] = [
    ("-p mk-command", &["-p", "mk-command", "-e", "normal,build"]),
    ("-p mk-python", &["-p", "mk-python", "-e", "normal,build"]),
    ("--example", &["-e", "normal,build,dev"]),
];

/// Checks the features of all selections.
pub fn check(wrong: &mut Vec<String>) -> Result<()> {
    let whole = features(&["--workspace", "-e", "normal,build,dev"])?;
    for (name, arguments) in SELECTIONS {
        for other in features(arguments)?.difference(&whole) {
            wrong.push(format!(
                "`{other}` is built again for `{name}`: give it the features that the workspace has \
                 in Cargo.toml (`cargo tree -e features -i`)"
            ));
        }
    }
    Ok(())
}

/// Crates, each with its features.
fn features(arguments: &[&str]) -> Result<BTreeSet<String>> {
    let tree = ["tree", "--quiet", "--prefix", "none", "-f", "{p}, {f}"];
    let text = quiet(&mut cargo(&[&tree, arguments].concat()))?;
    let line = |line: &str| line.trim_end_matches(" (*)").replace(" (proc-macro)", "");
    Ok(text.lines().map(line).collect())
}
