//! Which modules of its crate a file names.

/// The modules that a file names as `crate::module` or `crate::{module, ..}`, with the line.
pub fn siblings(text: &str) -> Vec<(usize, String)> {
    let code = without_comments(text);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with(|c: char| c == '$' || c == '_' || c.is_ascii_alphanumeric()) {
            continue;
        }
        let line = code[..at].matches('\n').count() + 1;
        let rest = &code[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(list) => first_names(list),
            None => vec![identifier(rest)],
        };
        // `crate::Name` is an item that lib.rs re-exports; modules are lower-case.
        let modules = names.into_iter().filter(|n| n.starts_with(|c: char| c.is_ascii_lowercase()));
        found.extend(modules.map(|name| (line, name)));
    }
    found
}

/// The first names of the entries of a list, up to the brace that closes it.
fn first_names(list: &str) -> Vec<String> {
    let (mut depth, mut entry, mut names) = (0, String::new(), Vec::new());
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(identifier(std::mem::take(&mut entry).trim())),
            _ if depth == 0 => entry.push(c),
            _ => {}
        }
    }
    names.push(identifier(entry.trim()));
    names
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|c| *c == '_' || c.is_ascii_alphanumeric()).collect()
}

/// The text with line comments blanked; lines keep their numbers. A `//` in a string ends its line, too, which hides
/// nothing that is looked for.
pub fn without_comments(text: &str) -> String {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    code.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths_and_lists() {
        let text = "\
use crate::ir::{Plan, Expr};
use crate::{
    graph::OpGraph,
    ir::{self, a::{B, C}},
    valid,
};
// use crate::emit;
/// [`crate::sim::run`]
fn f(x: crate::target::Target) { $crate::passes::x(); my_crate::emit::y(); crate::Error; }
";
        let found: Vec<_> = siblings(text);
        let want = [(1, "ir"), (2, "graph"), (2, "ir"), (2, "valid"), (9, "target")];
        assert_eq!(found, want.map(|(line, name)| (line, name.to_string())));
    }
}
