//! Names and phrases that the glossary gave up: an identifier in Rust, Python or CUDA, an option, a comment, a string
//! or a document must not bring them back.

use crate::run::root;
use std::path::Path;

/// Words in a row within an identifier, and the field's term. `^`: at its beginning, with others behind.
const GIVEN_UP: &[(&str, &str)] = &[
    ("own columns", "local-shard tiles"),
    ("head tiles", "first-wave tiles"),
    ("head tile", "first-wave tiles"),
    ("tail tiles", "last-wave tiles"),
    ("tail tile", "last-wave tiles"),
    ("tail", "last wave, or the end of something"),
    ("parts of k", "split-K"),
    ("k parts", "split-K"),
    ("fold owner", "split-K reduction by the owner"),
    ("group rows", "group M (rasterisation)"),
    ("tile schedule", "tile scheduler"),
    ("sums beside", "reduction on dedicated SMs"),
    ("sums after", "reduction after the last wave"),
    ("sums ring", "reduction fused in the epilogue, in a ring"),
    ("sums epilogue", "reduction fused in the epilogue, direct"),
    ("sums in tiles", "reduction fused in the epilogue"),
    ("^on write", "reduce-on-write"),
    ("adds up", "owner of the reduction"),
    ("adder", "owner of the reduction"),
    ("what leaves", "stores"),
    ("lends", "borrowed stage"),
    ("lend", "borrowed stage"),
    ("lent", "borrowed stage"),
    ("summand", "contribution"),
    ("summands", "contributions"),
    ("b once", "a noun that says what B is loaded for"),
    ("whoever", "the next free CTA, or the rank"),
    ("^who", "a noun: the rank, the owner, the reader"),
    ("knock", "connect"),
    ("knocks", "connects, or a connection attempt"),
    ("knocked", "connected"),
    ("knocking", "connecting"),
];

/// Modules, and the field's term.
const MODULES: &[(&str, &str)] = &[("ways", "strategies"), ("field", "equivalence")];

/// What comments, strings and documents must not say, and the field's term.
const PHRASES: &[(&str, &str)] = &[
    ("matrix product", "GEMM"),
    ("raised a word", "incremented a flag or counter"),
    ("way of lowering", "strategy"),
    ("ways of lowering", "strategies"),
    ("who adds", "owner of the reduction"),
    ("one behind the other", "sequentially; contiguous"),
    ("ups and gates", "gate and up projections"),
];

/// Folders in which phrases are still to be mended: the list gets shorter only.
const NOT_YET: &[&str] = &["mk-codegen/lower/src/passes/"];

/// Types that are no nouns, and what to name instead.
const TYPES: &[(&str, &str)] = &[
    ("Why", "Reason"),
    ("Terms", "Conditions"),
    ("Made", "the thing that it became"),
    ("Whole", "the reason, or the thing"),
    ("Covers", "Coverage"),
    ("Sums", "Reduction"),
    ("Fold", "SplitK"),
    ("Door", "a listener"),
];

/// Options and settings of old, in the sources that name them as text.
const OPTIONS: &[&str] = &[
    "--sums",
    "--fold",
    "--tail",
    "--head",
    "--own-columns",
    "--group-rows",
    "--tile-schedule",
    "sums=",
    "fold=",
    "own_columns=",
    "group_rows=",
    "tile_schedule=",
];

/// Places where a word has another meaning: file, and identifier or option.
const ELSEWHERE: &[(&str, &str)] = &[
    // The end of a line of a plan's text, and of a message's data.
    ("mk-codegen/plan/src/reader/family.rs", "tail"),
    ("mk-codegen/plan/src/print.rs", "write_tail"),
    ("mk-codegen/sim/src/moves/nic.rs", "tail"),
    ("mk-codegen/tests/hostile.rs", "tail"),
];

/// Checks one source; adds what is wrong.
pub fn check(path: &Path, text: &str, wrong: &mut Vec<String>) {
    let name = path.strip_prefix(root()).unwrap_or(path).display().to_string();
    // This file, and the table that translates settings of old revisions.
    if name == "xtask/src/words.rs" || name.starts_with("xtask/src/sass") {
        return;
    }
    if !NOT_YET.iter().any(|folder| name.starts_with(folder)) {
        let all = phrases(text).into_iter();
        wrong.extend(
            all.map(|(n, said, term)| format!("{name}:{n}: \"{said}\" is given up: {term}")),
        );
    }
    // Prose has no identifiers.
    if name.ends_with(".md") {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        let (code, strings) = split(line, if name.ends_with(".py") { "#" } else { "//" });
        let mut say = |found: &str, term: &str| {
            if !ELSEWHERE.contains(&(name.as_str(), found)) {
                wrong.push(format!("{name}:{}: `{found}` is given up: {term}", number + 1));
            }
        };
        for (before, identifier) in identifiers(&code) {
            let words = words(identifier);
            for (_, term) in GIVEN_UP.iter().filter(|(form, _)| has(&words, form)) {
                say(identifier, term);
            }
            if let ("mod", Some((_, term))) =
                (before, MODULES.iter().find(|(given_up, _)| *given_up == identifier))
            {
                say(identifier, term);
            }
            if ["enum", "struct", "trait", "type", "class"].contains(&before) {
                for (_, term) in TYPES.iter().filter(|(given_up, _)| *given_up == identifier) {
                    say(identifier, term);
                }
            }
        }
        for option in OPTIONS.iter().filter(|option| strings.iter().any(|s| names(s, option))) {
            say(option, "settings are those of mk-codegen/lower/src/settings/table.rs");
        }
    }
}

/// Phrases that are given up, with the line in which each begins; it may go on in the next one.
fn phrases(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let plain = |line: &str| {
        let line = line.trim_start_matches(|c: char| c.is_whitespace() || "/!#*>".contains(c));
        let words = line.trim_end_matches('\\').split_whitespace();
        words.collect::<Vec<_>>().join(" ").to_lowercase()
    };
    let lines: Vec<String> = text.lines().map(plain).collect();
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let both = format!("{line} {}", lines.get(i + 1).map_or("", String::as_str));
        for (phrase, term) in PHRASES {
            if both.match_indices(phrase).any(|(at, _)| at < line.len()) {
                found.push((i + 1, *phrase, *term));
            }
        }
    }
    found
}

/// Code without strings and comments, and the strings.
fn split<'a>(line: &'a str, comment: &str) -> (String, Vec<&'a str>) {
    let mut code = String::new();
    let mut strings = Vec::new();
    let mut rest = line;
    loop {
        let quote = rest.find('"').unwrap_or(rest.len());
        if let Some(at) = rest[..quote].find(comment) {
            code.push_str(&rest[..at]);
            return (code, strings);
        }
        code.push_str(&rest[..quote]);
        let Some(inside) = rest.get(quote + 1..) else { return (code, strings) };
        let mut end = inside.len();
        let mut escaped = false;
        for (at, c) in inside.char_indices() {
            match c {
                '"' if !escaped => {
                    end = at;
                    break;
                }
                '\\' => escaped = !escaped,
                _ => escaped = false,
            }
        }
        strings.push(&inside[..end]);
        code.push(' ');
        rest = inside.get(end + 1..).unwrap_or("");
    }
}

/// Whether a text has an option that no letter precedes or follows.
fn names(text: &str, option: &str) -> bool {
    text.match_indices(option).any(|(at, _)| {
        let edge =
            |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_');
        let after = text[at + option.len()..].chars().next();
        edge(text[..at].chars().next_back()) && (option.ends_with('=') || edge(after))
    })
}

/// Identifiers, each with the one before it.
fn identifiers(code: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut before = "";
    let all = code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|i| !i.is_empty());
    all.map(move |identifier| (std::mem::replace(&mut before, identifier), identifier))
}

/// The words of `snake_case`, `CamelCase`, `kConstant` and `SHOUTED_ONES`.
fn words(identifier: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for part in identifier.split('_').filter(|p| !p.is_empty()) {
        let mut low = false;
        out.push(String::new());
        for c in part.chars() {
            if c.is_uppercase() && low {
                out.push(String::new());
            }
            low = c.is_lowercase() || c.is_ascii_digit();
            if let Some(last) = out.last_mut() {
                last.extend(c.to_lowercase());
            }
        }
    }
    // The `k` of a CUDA constant.
    if identifier.starts_with('k')
        && out.first().is_some_and(|w| w == "k")
        && out.len() > 1
        && !identifier.contains('_')
    {
        out.remove(0);
    }
    out
}

fn has(words: &[String], form: &str) -> bool {
    let first = form.starts_with('^');
    if first && words.len() < 2 {
        return false;
    }
    let form: Vec<&str> = form.trim_start_matches('^').split(' ').collect();
    let mut places = words.windows(form.len()).enumerate();
    places.any(|(at, window)| (!first || at == 0) && window.iter().zip(&form).all(|(a, b)| a == b))
}

/// Sources of names and phrases: Rust, CUDA, templates, Python, documents.
pub fn has_words(path: &str) -> bool {
    [".rs", ".cuh", ".cu", ".j2", ".py", ".pyi", ".md"].iter().any(|e| path.ends_with(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> usize {
        let mut wrong = Vec::new();
        check(&root().join("mk-codegen/src/x.rs"), line, &mut wrong);
        wrong.len()
    }

    #[test]
    fn the_left_column_is_found() {
        for bad in [
            "let own_columns = 1;",
            "struct OwnColumns;",
            "constexpr u32 kGroupRows = 8;",
            "fn lends(stage: u32) {}",
            "static constexpr bool kLent = true;",
            "let b_once = true;",
            "pub enum Why {",
            "struct Terms<'a> {",
            "OnWrite,",
            "tile_schedule: Schedule,",
            "fn who_waits() {}",
            "let tail = last_wave(config);",
            "#[arg(long = \"own\", alias = \"--own-columns\")]",
            "assert_eq!(text, \"sums=after block=128x128x64\");",
            "pub(super) struct Door {",
            "fn knock(rank: u32) {}",
            "let knocks_left = 2;",
            "pub mod ways;",
            "mod field;",
        ] {
            assert!(found(bad) > 0, "{bad}");
        }
    }

    #[test]
    fn others_are_not() {
        for good in [
            "let tile_scheduler = reduce_on_write; // own_columns",
            "let sums = list.iter().fold(0, |a, b| a + b);",
            "struct TraceHead { silent: u32, talent: u32 }",
            "say(\"the tail of a sums table; product_sums=1\");",
            "fn write_line(whole: &str) {}",
            "impl From<Why> for Reason {",
            "let field = ways.len(); // of a module",
        ] {
            assert_eq!(found(good), 0, "{good}");
        }
    }

    /// Lines of phrases in a file.
    fn said(file: &str, text: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        check(&root().join(file), text, &mut wrong);
        wrong
    }

    #[test]
    fn phrases_in_comments_strings_and_documents() {
        for (phrase, term) in PHRASES {
            for line in [
                format!("let x = 1; // {phrase}s"),
                format!("say(\"A {}.\");", phrase.to_uppercase()),
                format!("/// some {}\n    /// more", phrase.replacen(' ', "\n    /// ", 1)),
                format!("    \"{} \\\n     end\"", phrase.replacen(' ', " \\\n     ", 1)),
            ] {
                let found = said("mk-runtime/src/x.rs", &line);
                assert!(found.len() == 1 && found[0].contains(term), "{line}: {found:?}");
            }
        }
        let python = said("mk-python/python/mk/x.py", "x = 1\n# a matrix\n# product\n");
        assert_eq!(python.len(), 1);
        assert!(
            python[0].starts_with("mk-python/python/mk/x.py:2: \"matrix product\""),
            "{python:?}"
        );
        assert_eq!(said("README.md", "chains of **matrix products**, who wait\n").len(), 1);
        assert_eq!(said("templates/leaf/x.cu.j2", "// Ups and gates.\n").len(), 1);
        assert_eq!(said("mk-runtime/src/x.rs", "// matrix\n\n// product"), [""; 0]);
        // Prose has no identifiers.
        assert_eq!(said("README.md", "the tail of a door; who knocks"), [""; 0]);
    }

    #[test]
    fn folders_that_are_not_mended_yet() {
        for folder in NOT_YET {
            assert!(root().join(folder).is_dir(), "{folder}");
            assert_eq!(said(&format!("{folder}x.rs"), "// matrix product"), [""; 0]);
        }
    }
}
