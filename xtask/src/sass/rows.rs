//! The published rows: the kernels behind docs/performance.md, emitted by the `mk` of each side.

use super::{side::Kernels, strip::OPTIONS};
use crate::run::{Result, root};
use serde::Deserialize;
use std::{collections::BTreeMap, fs, path::Path, process::Command};

const FILE: &str = "benches/published_rows.json";
/// Compiler options of every kernel, which `mk emit` does not print.
const COMPILER_OPTIONS: &str = "--diag-suppress=177";

/// `benches/published_rows.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// What the file is.
    #[serde(rename = "about")]
    _about: Vec<String>,
    /// `name=value` as the rows have it, and what newer versions call it.
    renamed: BTreeMap<String, String>,
    rows: Vec<Row>,
}

/// One kernel.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Name in the table.
    name: String,
    ranks: u32,
    pipeline: String,
    /// Global shapes, `8192x4096`.
    shapes: BTreeMap<String, String>,
    /// Settings by the names of the options of `mk emit`, in order: `[["block", "128x256"]]`.
    settings: Vec<[String; 2]>,
    /// Where the settings are named.
    #[serde(rename = "source")]
    _source: String,
    #[serde(skip)]
    renamed: BTreeMap<String, String>,
}

/// The rows whose name is wanted.
pub fn read(wanted: impl Fn(&str) -> bool) -> Result<Vec<Row>> {
    let path = root().join(FILE);
    let text = fs::read_to_string(&path).map_err(|e| format!("{FILE}: {e}"))?;
    let file: File = serde_json::from_str(&text).map_err(|e| format!("{FILE}: {e}"))?;
    let renamed = file.renamed;
    let rows = file.rows.into_iter().filter(|row| wanted(&row.name));
    Ok(rows.map(|row| Row { renamed: renamed.clone(), ..row }).collect())
}

/// What a binary emits for the rows.
pub fn kernels(rows: &[Row], binary: &Path) -> Result<Kernels> {
    let absolute = std::path::absolute(binary).map_err(|e| format!("{}: {e}", binary.display()))?;
    let binary = &absolute;
    let help = run(Command::new(binary).args(["emit", "--help"]))?;
    rows.iter()
        .map(|row| {
            let mut command = Command::new(binary);
            let cuda = run(command.args(row.arguments(&help)).current_dir(root()))
                .map_err(|e| format!("{}: {e}", row.name))?;
            Ok((row.name.clone(), format!("{OPTIONS}{COMPILER_OPTIONS}\n{cuda}")))
        })
        .collect()
}

impl Row {
    /// Arguments for a binary with such a help text: a setting is a long option, or a `--set`.
    fn arguments(&self, help: &str) -> Vec<String> {
        let mut out = vec!["emit".to_string(), self.pipeline.clone()];
        out.extend(["--ranks".to_string(), self.ranks.to_string()]);
        for (name, shape) in &self.shapes {
            out.extend(["--shape".to_string(), format!("{name}={shape}")]);
        }
        for [name, value] in &self.settings {
            let setting = format!("{name}={value}");
            if help.contains(&format!("--{name} ")) {
                out.extend([format!("--{name}"), value.clone()]);
            } else {
                let renamed = self.renamed.get(&setting).unwrap_or(&setting);
                out.extend(["--set".to_string(), renamed.clone()]);
            }
        }
        out
    }
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|e| format!("{command:?} does not start: {e}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let why = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command:?} failed: {}", why.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_reads_and_names_each_row_once() {
        let rows = read(|_| true).expect("reads");
        let mut names: Vec<_> = rows.iter().map(|row| &row.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn a_setting_is_an_option_or_a_set() {
        let row = Row {
            name: "x".into(),
            ranks: 2,
            pipeline: "gemm(a, b)".into(),
            shapes: [("a".to_string(), "8x8".to_string())].into(),
            settings: vec![["block".into(), "64x64".into()], ["sums".into(), "after".into()]],
            _source: String::new(),
            renamed: [("sums=after".to_string(), "reduce=last_wave".to_string())].into(),
        };
        let old = row.arguments("--block <MxNxK>\n --sums <SUMS>\n").join(" ");
        assert_eq!(old, "emit gemm(a, b) --ranks 2 --shape a=8x8 --block 64x64 --sums after");
        let new = row.arguments("--set <NAME=VALUE>").join(" ");
        assert!(new.ends_with("--set block=64x64 --set reduce=last_wave"), "{new}");
    }
}
