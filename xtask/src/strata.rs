//! The direction of imports: which crates, folders and files may use which.
//!
//! A folder's entries are its files and folders. An import between two files counts in the folder where their paths
//! part; a `mod.rs`, `lib.rs` or `main.rs` is the head of its folder and may use all that is in it.

use crate::{
    imports::{Import, Source},
    run::{Result, root},
};
use petgraph::{algo::tarjan_scc, graphmap::DiGraphMap};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// A row of a table: a name, and what that one may use.
type May = (&'static str, &'static [&'static str]);

/// Which crates of ours a crate may use.
const CRATES: &[May] = &[
    ("mk-abi", &[]),
    ("mk-dsl/syntax", &[]),
    ("mk-dsl", &["mk-syntax"]),
    ("mk-codegen", &["mk-abi", "mk-syntax"]),
    ("mk-runtime", &["mk-abi"]),
    ("mk-function", &["mk-abi", "mk-syntax", "mk-codegen", "mk-runtime"]),
    ("mk-tune", &["mk-abi", "mk-syntax", "mk-codegen", "mk-runtime", "mk-function"]),
    ("mk-harness", &["mk-abi", "mk-syntax", "mk-codegen", "mk-runtime", "mk-function", "mk-tune"]),
    (".", &["mk-abi", "mk-syntax", "mk-dsl", "mk-codegen", "mk-runtime", "mk-function", "mk-tune"]),
    ("mk-cli", &["mk", "mk-harness"]),
    ("mk-python", &["mk"]),
    ("tests/skip", &[]),
    ("xtask", &[]),
];

/// Which folders of its parent a folder may use, for every folder with several.
const FOLDERS: &[(&str, &[May])] = &[
    ("mk-dsl/syntax/src", &[("parse", &[]), ("check", &[]), ("bind", &[]), ("grad", &[])]),
    (
        "mk-codegen/src",
        &[
            ("ir", &[]),
            ("trace", &[]),
            ("graph", &["ir"]),
            ("settings", &["ir"]),
            ("valid", &["ir"]),
            ("field", &["ir"]),
            ("sim", &["ir"]),
            ("cost", &["ir"]),
            ("draw", &["ir"]),
            ("emit", &["ir"]),
            ("passes", &["ir", "graph", "settings", "valid", "field"]),
        ],
    ),
    ("mk-codegen/src/ir", &[("reader", &[]), ("check", &[])]),
    (
        "mk-codegen/src/passes",
        &[
            ("shape", &[]),
            ("draft", &["shape"]),
            ("ways", &["shape", "draft"]),
            ("tile", &["shape", "draft", "ways"]),
            ("signals", &["shape", "draft"]),
        ],
    ),
    ("mk-codegen/src/valid", &[("spans", &[]), ("runtime", &["spans"])]),
    (
        "mk-runtime/src",
        &[
            ("error", &[]),
            ("driver", &["error"]),
            ("store", &["error"]),
            ("jit", &["error", "store"]),
            ("world", &["error", "driver"]),
            ("mem", &["error", "driver", "world"]),
            ("gpu", &["error", "driver", "world", "mem"]),
            ("launch", &["error", "driver", "world", "mem", "gpu", "jit", "net", "proxy"]),
            ("net", &["error", "driver", "world", "mem", "transport", "proxy"]),
            ("transport", &["error"]),
            ("proxy", &["error", "transport"]),
            ("probe", &["error", "driver", "world", "mem", "gpu", "jit"]),
            ("reference", &["error", "driver", "world", "mem", "gpu", "jit"]),
        ],
    ),
    ("mk-runtime/src/transport", &[("ofi", &[]), ("verbs", &[])]),
    ("mk-runtime/src/world", &[("tcp", &[]), ("mesh", &["tcp"]), ("watch", &["mesh"])]),
    (
        "mk-function/src",
        &[
            ("choice", &[]),
            ("kept", &["choice"]),
            ("explain", &["choice"]),
            ("function", &["choice", "kept", "explain"]),
        ],
    ),
    ("mk-harness/src", &[("dense", &[]), ("gpu", &["dense"])]),
    (
        "mk-cli/src",
        &[
            ("failure", &[]),
            ("output", &["failure"]),
            ("tune", &["failure", "output"]),
            ("probe", &["failure", "output", "tune"]),
            ("run", &["failure", "output"]),
        ],
    ),
    ("xtask/src", &[("sass", &[]), ("softroce", &[])]),
];

/// Folders in which not even files may use each other in a circle, heads included.
const NO_CIRCLES: &[&str] = &["mk-codegen/src/passes", "mk-codegen/src/emit"];

/// Checks crates, folders and files; adds what is wrong.
pub fn check(wrong: &mut Vec<String>) -> Result<()> {
    crates(wrong)?;
    let mut several = BTreeSet::new();
    for (krate, _) in CRATES {
        let folder = Path::new(krate).join("src");
        let folder = folder.strip_prefix(".").unwrap_or(&folder);
        let source = Source::read(&root().join(folder))?;
        let base = folder.display().to_string();
        for level in levels(&source.imports(), &base) {
            level.check(wrong);
        }
        several.extend(with_several_folders(source.files(), &base));
    }
    for unknown in several.iter().filter(|s| FOLDERS.iter().all(|f| f.0 != *s)) {
        wrong.push(format!("{unknown}: has several folders; say in {} what each may use", file!()));
    }
    for gone in FOLDERS.iter().filter(|f| !several.contains(f.0)) {
        wrong.push(format!("{}: {} lists it, and it is gone", gone.0, file!()));
    }
    Ok(())
}

fn crates(wrong: &mut Vec<String>) -> Result<()> {
    for (folder, may) in CRATES {
        let path = root().join(folder).join("Cargo.toml");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        for name in dependencies(&text).filter(|name| !may.contains(name)) {
            wrong.push(format!("{folder}/Cargo.toml: may use {may:?}, and uses `{name}`"));
        }
    }
    Ok(())
}

/// Our own crates in `[dependencies]`.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let lines = manifest.lines().skip_while(|l| l.trim() != "[dependencies]").skip(1);
    let lines = lines.take_while(|l| !l.starts_with('['));
    let names = lines.filter_map(|l| l.split(['.', '=', ' ']).next());
    names.filter(|name| *name == "mk" || name.starts_with("mk-"))
}

/// Folders that hold more than one folder of sources.
fn with_several_folders<'a>(files: impl Iterator<Item = &'a Path>, base: &str) -> Vec<String> {
    let mut inner: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for file in files {
        for folder in file.ancestors().skip(1) {
            if let Some(parent) = folder.parent() {
                inner.entry(parent).or_default().insert(folder);
            }
        }
    }
    let several = inner.into_iter().filter(|(_, inner)| inner.len() > 1);
    several.map(|(folder, _)| joined(base, folder)).collect()
}

fn joined(base: &str, folder: &Path) -> String {
    let folder = folder.display().to_string();
    if folder.is_empty() { base.into() } else { format!("{base}/{folder}") }
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
        let parting: std::path::PathBuf = import.from.iter().take(common).collect();
        let entry = |p: &Path| p.iter().nth(common).map(|e| e.to_string_lossy().into_owned());
        let (Some(from), Some(to)) = (entry(&import.from), entry(&import.to)) else { continue };
        let folder = joined(base, &parting);
        let level = levels.entry(folder.clone());
        let level = level.or_insert_with(|| Level { folder, edges: BTreeMap::new() });
        level.edges.entry((from, to)).or_insert(import);
    }
    levels.into_values().collect()
}

impl Level<'_> {
    fn check(&self, wrong: &mut Vec<String>) {
        self.directions(wrong);
        let strict = NO_CIRCLES.iter().any(|f| Path::new(&self.folder).starts_with(f));
        for circle in self.circles(strict) {
            let folders = circle.iter().filter(|e| is_folder(e)).count();
            if strict || folders > 1 {
                wrong.push(self.described(&circle));
            }
        }
    }

    fn directions(&self, wrong: &mut Vec<String>) {
        let Some((_, table)) = FOLDERS.iter().find(|f| f.0 == self.folder) else { return };
        let both = self.edges.iter().filter(|((a, b), _)| is_folder(a) && is_folder(b));
        for ((from, to), import) in both {
            match table.iter().find(|row| row.0 == from) {
                None => wrong.push(format!("{}/{from}: is not in {}", self.folder, file!())),
                Some((_, may)) if !may.contains(&to.as_str()) => wrong.push(format!(
                    "{}:{}: `{from}` may use {may:?} of {}, and uses `{to}` ({})",
                    import.from.display(),
                    import.line,
                    self.folder,
                    import.to.display()
                )),
                Some(_) => {}
            }
        }
    }

    /// Entries that use each other, in groups; the folder's head counts where it is asked for.
    fn circles(&self, with_head: bool) -> Vec<Vec<&str>> {
        let edges = self.edges.keys().map(|(a, b)| (a.as_str(), b.as_str()));
        let edges = edges.filter(|(a, b)| with_head || !(is_head(a) || is_head(b)));
        let graph: DiGraphMap<&str, ()> = edges.collect();
        let mut circles = tarjan_scc(&graph);
        circles.retain(|c| c.len() > 1);
        circles.iter_mut().for_each(|c| c.sort_unstable());
        circles
    }

    fn described(&self, circle: &[&str]) -> String {
        let inside = |name: &String| circle.contains(&name.as_str());
        let edges = self.edges.iter().filter(|((a, b), _)| inside(a) && inside(b));
        let edges = edges.map(|((a, b), i)| {
            format!("\n    {a} uses {b}: {}:{}, {}", i.from.display(), i.line, i.to.display())
        });
        format!(
            "{}: {} use each other{}",
            self.folder,
            circle.join(", "),
            edges.collect::<String>()
        )
    }
}

fn is_folder(entry: &str) -> bool {
    !entry.ends_with(".rs")
}

fn is_head(entry: &str) -> bool {
    ["mod.rs", "lib.rs", "main.rs"].contains(&entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(from: &str, to: &str) -> Import {
        Import { from: from.into(), line: 7, to: to.into() }
    }

    /// What is wrong with imports in a folder.
    fn wrong(base: &str, imports: &[(&str, &str)]) -> Vec<String> {
        let imports: Vec<_> = imports.iter().map(|(a, b)| import(a, b)).collect();
        let mut wrong = Vec::new();
        levels(&imports, base).iter().for_each(|l| l.check(&mut wrong));
        wrong
    }

    #[test]
    fn folders_in_a_circle_through_a_file() {
        let imports = [("a/x.rs", "b.rs"), ("b.rs", "c/y.rs"), ("c/mod.rs", "a/mod.rs")];
        let found = wrong("some/src", &imports);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("some/src: a, b.rs, c use each other"), "{found:?}");
        assert_eq!(wrong("some/src", &imports[..2]), [""; 0]);
    }

    #[test]
    fn files_in_a_circle_count_in_passes_only() {
        let imports =
            [("passes/ways/a.rs", "passes/ways/b.rs"), ("passes/ways/b.rs", "passes/ways/a.rs")];
        assert_eq!(wrong("mk-codegen/src", &imports).len(), 1);
        assert_eq!(wrong("some/src", &imports), [""; 0]);
        let head = [
            ("passes/ways/mod.rs", "passes/ways/b.rs"),
            ("passes/ways/b.rs", "passes/ways/mod.rs"),
        ];
        assert_eq!(wrong("mk-codegen/src", &head).len(), 1);
    }

    #[test]
    fn an_import_against_the_direction() {
        assert_eq!(wrong("mk-codegen/src", &[("passes/a.rs", "ir/b.rs")]), [""; 0]);
        let found = wrong("mk-codegen/src", &[("ir/b.rs", "passes/a.rs")]);
        let want = "ir/b.rs:7: `ir` may use [] of mk-codegen/src, and uses `passes` (passes/a.rs)";
        assert_eq!(found, [want]);
        let found = wrong("mk-codegen/src", &[("new/b.rs", "ir/a.rs")]);
        assert_eq!(found, [format!("mk-codegen/src/new: is not in {}", file!())]);
    }

    #[test]
    fn folders_of_folders() {
        let files = ["lib.rs", "a/b/x.rs", "a/c/mod.rs", "d/e.rs"].map(Path::new);
        assert_eq!(with_several_folders(files.into_iter(), "src"), ["src", "src/a"]);
    }

    #[test]
    fn our_crates_in_a_manifest() {
        let text = "[package]\nname = \"mk-x\"\n[dependencies]\nmk-abi.workspace = true\nserde = \"1\"\n\
                    mk = { path = \"..\" }\n[dev-dependencies]\nmk-cli = \"1\"\n";
        assert_eq!(dependencies(text).collect::<Vec<_>>(), ["mk-abi", "mk"]);
    }
}
