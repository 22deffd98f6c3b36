//! Links and paths in documents name files and headings that exist.

use crate::run::{self, Result, entries, read, root};
use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

/// Documents of the past: what they name may be gone.
const HISTORY: &[&str] = &["CHANGELOG.md"];
/// Endings of files that a document can only mean as files of the repository.
const SOURCES: &[&str] = &[
    ".rs", ".md", ".py", ".cuh", ".cu.j2", ".snap", ".toml", ".mk", ".plan", ".json", ".svg", ".cu",
];
/// Names of files that a reader makes.
const MADE_BY_READERS: &[&str] = &[
    "x.mk",
    "x.plan",
    "x.json",
    "kernel.cu",
    "f.cu",
    "link.cu",
    "t.json",
    "t.svg",
    "machine.json",
    "measured.json",
];

/// [`names`].
struct Tree(BTreeSet<String>);

/// Checks every document; adds what is wrong.
pub fn check(wrong: &mut Vec<String>) -> Result<()> {
    let tree = Tree(names()?);
    for name in tree.0.iter().filter(|name| name.ends_with(".md")) {
        let text = read(&root().join(name))?;
        let history = HISTORY.iter().any(|h| name.starts_with(h));
        let anchors = |path: &str| Some(headings(&read(&root().join(path)).ok()?));
        wrong.extend(faults(name, &text, &tree, &anchors, history));
    }
    Ok(())
}

/// All files and folders of the repository, from its root.
pub fn names() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    walk(&root(), &root(), &mut names)?;
    Ok(names)
}

/// What is wrong in one document. `anchors` has the headings of another, or nothing for what is no document.
fn faults(
    name: &str,
    text: &str,
    tree: &Tree,
    anchors: &dyn Fn(&str) -> Option<BTreeSet<String>>,
    history: bool,
) -> Vec<String> {
    let mut out = Vec::new();
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    for (number, line) in prose(text) {
        let mut say = |what: String| out.push(format!("{name}:{number}: {what}"));
        for link in links(line) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if path.is_empty() { Some(name.to_string()) } else { plain(&folder.join(path)) };
            if !target.as_ref().is_some_and(|t: &String| tree.has(t)) {
                say(format!("the link `{link}` leads nowhere"));
            } else if let (false, Some(target)) = (anchor.is_empty(), target) {
                let there = anchors(&target).is_some_and(|all| all.contains(anchor));
                if !there {
                    say(format!("the link `{link}` names no heading of {target}"));
                }
            }
        }
        for path in spans(line).filter(|_| !history) {
            if tree.means_a_path(path) && !tree.names(path) {
                say(format!("`{path}` does not exist"));
            }
        }
    }
    out
}

impl Tree {
    fn has(&self, path: &str) -> bool {
        path.is_empty() || self.0.contains(path)
    }

    /// Whether text in backticks is a path of the repository: a file by its ending, a folder by its first part.
    fn means_a_path(&self, text: &str) -> bool {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-./*{},".contains(c);
        let parts: Vec<&str> = text.trim_end_matches('/').split('/').collect();
        let placeholder = |p: &&str| {
            let stem = p.split('.').next().unwrap_or("");
            stem.len() > 1
                && stem.chars().all(|c| c.is_ascii_uppercase())
                && stem != "README"
                && stem != "CONTRIBUTING"
                && stem != "CHANGELOG"
        };
        let last = parts.last().copied().unwrap_or("");
        if !text.chars().all(allowed)
            || text.starts_with(['.', '-', '/', '*'])
            || parts.iter().any(placeholder)
            || MADE_BY_READERS.contains(&last)
        {
            return false;
        }
        let file = SOURCES.iter().any(|s| last.len() > s.len() && last.ends_with(s));
        let folder =
            text.contains('/') && self.0.iter().any(|n| n.split('/').any(|p| p == parts[0]));
        file || folder
    }

    /// Whether it is one, from the root or from some folder on.
    fn names(&self, text: &str) -> bool {
        alternatives(text.trim_end_matches('/')).iter().all(|one| {
            self.0.iter().any(|name| {
                let ends = name.match_indices('/').map(|(at, _)| &name[at + 1..]);
                std::iter::once(&name[..]).chain(ends).any(|end| matches(one, end))
            })
        })
    }
}

/// `ptx/{a,b}.cuh` as `ptx/a.cuh` and `ptx/b.cuh`.
fn alternatives(text: &str) -> Vec<String> {
    match text.split_once('{').and_then(|(a, rest)| Some((a, rest.split_once('}')?))) {
        Some((before, (list, after))) => {
            list.split(',').map(|one| format!("{before}{}{after}", one.trim())).collect()
        }
        None => vec![text.into()],
    }
}

/// Whether a name has a form in which `*` is anything but `/`.
fn matches(form: &str, name: &str) -> bool {
    let Some((before, after)) = form.split_once('*') else { return form == name };
    let Some(rest) = name.strip_prefix(before) else { return false };
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.take_while(|at| !rest[..*at].contains('/')).any(|at| matches(after, &rest[at..]))
}

/// Lines outside of fences, with their numbers.
pub fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    lines.filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Text in single backticks.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Targets of links and pictures but for those of the network.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    targets.filter(|t| !t.contains("://") && !t.starts_with("mailto:"))
}

/// The anchors of a document's headings, as GitHub makes them.
fn headings(text: &str) -> BTreeSet<String> {
    let heads = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len() && title.starts_with(' ')).then(|| title.trim())
    });
    let kept = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == ' ';
    let slug = |title: &str| {
        let title = title.to_lowercase();
        title.chars().filter(|c| kept(*c)).collect::<String>().replace(' ', "-")
    };
    heads.map(slug).collect()
}

/// A path without `.` and `..`; `None` where it leaves the repository.
fn plain(path: &Path) -> Option<String> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(p) => out.push(p),
            Component::CurDir => {}
            Component::ParentDir if out.pop() => {}
            _ => return None,
        }
    }
    Some(out.to_string_lossy().into_owned())
}

fn walk(root: &Path, folder: &Path, names: &mut BTreeSet<String>) -> Result<()> {
    for path in entries(folder)? {
        let name = run::name(&path);
        let other = [".git", ".softroce", "__pycache__"].contains(&name.as_str());
        let built = path.is_dir() && name.starts_with("target");
        if other || built || [".nvrtc", ".fabric"].iter().any(|begin| name.starts_with(begin)) {
            continue;
        }
        let inside = path.strip_prefix(root).unwrap_or(&path);
        names.insert(inside.to_string_lossy().into_owned());
        if path.is_dir() && !path.is_symlink() {
            walk(root, &path, names)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] =
        ["README.md", "docs", "docs/a.md", "src", "src/emit", "src/emit/leaf.rs"];

    fn found(text: &str) -> Vec<String> {
        let tree = Tree(NAMES.map(String::from).into());
        let anchors =
            |path: &str| path.ends_with(".md").then(|| headings("# The `a` side, once\n"));
        faults("docs/a.md", text, &tree, &anchors, false)
    }

    #[test]
    fn dead_links_and_paths_are_found() {
        for dead in [
            "[a](c.md)",
            "![a](../docs/c.svg)",
            "[a](../../a.md)",
            "[a](a.md#other)",
            "[a](#the-other)",
            "`emit/mma.rs`",
            "`docs/c.md`",
            "`src/passes`",
            "`src/*.rs`",
            "`emit/{leaf,mma}.rs`",
        ] {
            assert_eq!(
                found(&format!("one\n{dead} and more")).len(),
                1,
                "{dead}: {:?}",
                found(dead)
            );
        }
        assert_eq!(found("\n`gone.rs`"), ["docs/a.md:2: `gone.rs` does not exist"]);
    }

    #[test]
    fn others_are_not() {
        for good in [
            "[a](a.md), [b](../README.md#the-a-side-once), [c](https://example.org/c.md), [d](#the-a-side-once)",
            "`leaf.rs`, `emit/leaf.rs`, `src/emit/`, `emit/*.rs`, `emit/{leaf,leaf}.rs`",
            "`a/b`, `copy_engine/2`, `e7`, `leaf/NAME.rs`, `x.mk`, `mk plan gone.rs`, `t % ctas`",
            "```sh\ncat gone.rs\n```",
        ] {
            assert_eq!(found(good), [""; 0], "{good}");
        }
    }
}
