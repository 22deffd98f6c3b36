//! `docs/decisions/README.md` lists the decision files, and documents stay few and short.

use crate::{
    documents,
    run::{Result, root},
};
use std::{collections::BTreeMap, fs};

const FOLDER: &str = "docs/decisions/";
const INDEX: &str = "docs/decisions/README.md";

/// With more, a subject is no longer found by reading the list.
const MOST_FILES: usize = 40;
/// Words of prose in all documents: as many as there are, rounded up. The aim is 40,000; the number gets smaller only.
const MOST_WORDS: usize = 70_000;

const HEAD: &str = "\
# Decisions

Why things are as they are: a file per subject, a section per decision, with the figure that decides it. Measure before
you overturn one, then change its section.

Unless a section says otherwise, figures are from NVIDIA H200 with NVLink, in bf16, with sizes M×K×N per rank.
`cargo xtask bless` writes this list from the first lines of the files.

";

/// Checks the list and both limits; adds what is wrong.
pub fn check(wrong: &mut Vec<String>) -> Result<()> {
    let texts = documents()?;
    wrong.extend(faults(&texts, MOST_FILES));
    wrong.extend(too_long(&texts, MOST_WORDS));
    Ok(())
}

/// Writes the list.
pub fn bless() -> Result<()> {
    let list = index(&documents()?).map_err(|wrong| wrong.join("\n       "))?;
    fs::write(root().join(INDEX), list).map_err(|e| format!("{INDEX}: {e}"))
}

/// All documents by name, from the root.
fn documents() -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    for name in documents::names()?.into_iter().filter(|name| name.ends_with(".md")) {
        let text = fs::read_to_string(root().join(&name)).map_err(|e| format!("{name}: {e}"))?;
        texts.insert(name, text);
    }
    Ok(texts)
}

/// What is wrong with the decisions among these documents.
fn faults(texts: &BTreeMap<String, String>, most: usize) -> Vec<String> {
    let files = decisions(texts).count();
    let mut wrong = Vec::new();
    if files > most {
        wrong
            .push(format!("{FOLDER} has {files} files, and {most} at most: merge some by subject"));
    }
    match index(texts) {
        Ok(list) if texts.get(INDEX) == Some(&list) => {}
        Ok(_) => wrong.push(format!("{INDEX} is stale: run `cargo xtask bless --decisions`")),
        Err(others) => wrong.extend(others),
    }
    wrong
}

fn decisions(texts: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    let below = texts.iter().filter_map(|(name, text)| Some((name.strip_prefix(FOLDER)?, &**text)));
    below.filter(|(name, _)| *name != "README.md")
}

/// The list of these decisions, in the order of their names.
fn index(texts: &BTreeMap<String, String>) -> std::result::Result<String, Vec<String>> {
    let (mut list, mut wrong) = (HEAD.to_string(), Vec::new());
    for (name, text) in decisions(texts) {
        match first_lines(text) {
            Some((title, summary)) => list += &format!("- [{title}]({name}): {summary}\n"),
            None => wrong.push(format!(
                "{FOLDER}{name} does not begin with `# Title` and a summary of one line, with empty lines behind both"
            )),
        }
    }
    if wrong.is_empty() { Ok(list) } else { Err(wrong) }
}

/// Title and summary of a decision file.
fn first_lines(text: &str) -> Option<(&str, &str)> {
    let mut lines = text.lines();
    let title = lines.next()?.strip_prefix("# ")?;
    let (gap, summary, end) = (lines.next()?, lines.next()?, lines.next()?);
    let plain = !summary.is_empty() && !summary.starts_with(['#', '-', '|', '`']);
    (gap.is_empty() && end.is_empty() && plain).then_some((title, summary))
}

/// Whether all documents together have more words than so many, fenced code left out.
fn too_long(texts: &BTreeMap<String, String>, most: usize) -> Option<String> {
    let words = |text: &String| -> usize {
        documents::prose(text).map(|(_, line)| line.split_whitespace().count()).sum()
    };
    let all: usize = texts.values().map(words).sum();
    (all > most).then(|| {
        let (name, n) = texts.iter().map(|(name, text)| (name, words(text))).max_by_key(|x| x.1)?;
        Some(format!(
            "documents have {all} words, and {most} at most: shorten some; the longest is {name}, with {n}"
        ))
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect()
    }

    const GATHERS: (&str, &str) =
        ("docs/decisions/gathers.md", "# Gathers\n\nWho pushes rows.\n\n## Push\n\nText.\n");
    const PROOFS: (&str, &str) = ("docs/decisions/proofs.md", "# Proofs\n\nThe rules.\n\nText.\n");

    #[test]
    fn the_list_has_title_and_summary_of_each_file() {
        let mut texts = tree(&[PROOFS, GATHERS, ("docs/dsl.md", "no title")]);
        let list = index(&texts).unwrap();
        assert!(list.ends_with(
            "files.\n\n- [Gathers](gathers.md): Who pushes rows.\n- [Proofs](proofs.md): The rules.\n"
        ));
        texts.insert(INDEX.into(), list);
        assert_eq!(faults(&texts, 2), [""; 0]);
    }

    #[test]
    fn a_stale_or_missing_list_is_refused() {
        let stale = ["docs/decisions/README.md is stale: run `cargo xtask bless --decisions`"];
        let mut texts = tree(&[GATHERS]);
        assert_eq!(faults(&texts, 2), stale);
        texts.insert(INDEX.into(), index(&texts).unwrap());
        texts.insert(PROOFS.0.into(), PROOFS.1.into());
        assert_eq!(faults(&texts, 2), stale);
    }

    #[test]
    fn too_many_files_are_refused() {
        let mut texts = tree(&[GATHERS, PROOFS]);
        texts.insert(INDEX.into(), index(&texts).unwrap());
        let wrong = faults(&texts, 1);
        assert_eq!(wrong, ["docs/decisions/ has 2 files, and 1 at most: merge some by subject"]);
    }

    #[test]
    fn a_file_without_title_or_summary_is_named() {
        for text in [
            "Gathers\n\nWho.\n\nText.\n",
            "# Gathers\nWho.\n\nText.\n",
            "# Gathers\n\nWho\npushes.\n\nText.\n",
            "# Gathers\n\n## Push\n\nText.\n",
            "# Gathers\n",
            "",
        ] {
            let wrong = faults(&tree(&[("docs/decisions/gathers.md", text)]), 40);
            assert_eq!(wrong.len(), 1, "{text:?}");
            assert!(wrong[0].starts_with("docs/decisions/gathers.md does not begin"), "{wrong:?}");
        }
    }

    #[test]
    fn words_are_counted_outside_of_fences() {
        let texts = tree(&[
            ("a.md", "one two\n```sh\nthree four five\n```\n"),
            ("docs/b.md", "six\nseven eight\n"),
        ]);
        assert_eq!(too_long(&texts, 5), None);
        assert_eq!(
            too_long(&texts, 4).unwrap(),
            "documents have 5 words, and 4 at most: shorten some; the longest is docs/b.md, with 3"
        );
    }
}
