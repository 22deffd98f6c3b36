//! Environment variables in `--help`.

use mk::runtime::VARIABLES;

/// What follows the options of `mk --help`.
pub fn help() -> String {
    let width = VARIABLES.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = VARIABLES.iter().map(|(name, meaning)| format!("  {name:width$}  {meaning}"));
    let lines: Vec<String> = lines.collect();
    format!("Environment:\n{}", lines.join("\n"))
}
