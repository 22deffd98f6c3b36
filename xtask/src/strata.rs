//! No circles: neither files nor folders of a crate may use each other in one. Cargo sees to crates.
//!
//! An import between two files counts in the folder where their paths part, between the entries (files or folders) of
//! that folder.

use crate::{
    imports::{Import, Source},
    run::{Result, read, root},
};
use petgraph::{algo::tarjan_scc, graphmap::DiGraphMap};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Checks the sources of every crate; adds what is wrong.
pub fn check(wrong: &mut Vec<String>) -> Result<()> {
    for folder in crates()? {
        let source = Source::read(&root().join(&folder))?;
        let base = folder.display().to_string();
        let imports = source.imports();
        levels(&imports, &base).iter().for_each(|level| level.check(wrong));
    }
    Ok(())
}

/// The source folders of the workspace's crates.
fn crates() -> Result<Vec<PathBuf>> {
    let path = root().join("Cargo.toml");
    let text = read(&path)?;
    let found = members(&text).ok_or_else(|| format!("{}: has no `members`", path.display()))?;
    Ok(found.into_iter().map(|m| Path::new(m).join("src")).map(plain).collect())
}

/// The folders that a workspace's manifest lists.
fn members(manifest: &str) -> Option<Vec<&str>> {
    let (_, list) = manifest.split_once("\nmembers = [")?;
    let (list, _) = list.split_once(']')?;
    let names = list.split(',').map(|m| m.trim().trim_matches('"'));
    Some(names.filter(|m| !m.is_empty()).collect())
}

fn plain(path: PathBuf) -> PathBuf {
    path.strip_prefix(".").map(Path::to_path_buf).unwrap_or(path)
}

/// Imports among the entries of one folder.
struct Level<'a> {
    folder: String,
    /// An entry, one that it uses, and an example.
    edges: BTreeMap<(String, String), &'a Import>,
}

/// Imports by the folder in which the two files' paths part.
fn levels<'a>(imports: &'a [Import], base: &str) -> Vec<Level<'a>> {
    let mut levels: BTreeMap<String, Level> = BTreeMap::new();
    for import in imports {
        let common = import.from.iter().zip(&import.to).take_while(|(a, b)| a == b).count();
        let parting: PathBuf = import.from.iter().take(common).collect();
        let entry = |p: &Path| p.iter().nth(common).map(|e| e.to_string_lossy().into_owned());
        let (Some(from), Some(to)) = (entry(&import.from), entry(&import.to)) else { continue };
        let folder = Path::new(base).join(parting).display().to_string();
        let folder = folder.trim_end_matches('/').to_string();
        let level = levels.entry(folder.clone());
        let level = level.or_insert_with(|| Level { folder, edges: BTreeMap::new() });
        level.edges.entry((from, to)).or_insert(import);
    }
    levels.into_values().collect()
}

impl Level<'_> {
    fn check(&self, wrong: &mut Vec<String>) {
        let graph: DiGraphMap<&str, ()> =
            self.edges.keys().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let circles = tarjan_scc(&graph).into_iter().filter(|c| c.len() > 1);
        wrong.extend(circles.map(|circle| self.described(circle)));
    }

    fn described(&self, mut circle: Vec<&str>) -> String {
        circle.sort_unstable();
        let inside = |name: &String| circle.contains(&name.as_str());
        let edges = self.edges.iter().filter(|((a, b), _)| inside(a) && inside(b));
        let edges = edges.map(|((a, b), i)| {
            format!("\n    {a} uses {b}: {}:{}, {}", i.from.display(), i.line, i.to.display())
        });
        let edges: String = edges.collect();
        format!("{}: {} use each other{edges}", self.folder, circle.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with imports in a folder.
    fn wrong(imports: &[(&str, &str)]) -> Vec<String> {
        let import = |(a, b): &(&str, &str)| Import { from: a.into(), line: 7, to: b.into() };
        let imports: Vec<_> = imports.iter().map(import).collect();
        let mut wrong = Vec::new();
        levels(&imports, "some/src").iter().for_each(|l| l.check(&mut wrong));
        wrong
    }

    #[test]
    fn folders_in_a_circle_through_a_file() {
        let imports = [("a/x.rs", "b.rs"), ("b.rs", "c/y.rs"), ("c/mod.rs", "a/mod.rs")];
        let found = wrong(&imports);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("some/src: a, b.rs, c use each other"), "{found:?}");
        assert_eq!(wrong(&imports[..2]), [""; 0]);
    }

    #[test]
    fn files_in_a_circle() {
        let found = wrong(&[("x/a.rs", "x/b.rs"), ("x/b.rs", "x/a.rs")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("some/src/x: a.rs, b.rs use each other"), "{found:?}");
        assert_eq!(wrong(&[("x/mod.rs", "x/b.rs"), ("x/b.rs", "x/mod.rs")]).len(), 1);
    }

    #[test]
    fn members_of_a_manifest() {
        let text = "[workspace]\nresolver = \"3\"\nmembers = [\n  \".\", \"mk-abi\",\n]\n";
        assert_eq!(members(text), Some(vec![".", "mk-abi"]));
        assert_eq!(plain("./src".into()), Path::new("src"));
    }
}
