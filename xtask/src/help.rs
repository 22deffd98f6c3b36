//! One rendering of help lines: errors of the libraries end in `\n  help: …`, and have no `error: ` inside. The
//! excerpts of the language and the command, which prints both, have rustc's ` = help: `.

/// Who prints errors as rustc does.
const LIKE_RUSTC: [&str; 3] =
    ["mk-cli/", "mk-dsl/syntax/src/diag.rs", "mk-dsl/syntax/src/bind/error.rs"];

/// Checks the strings of a file of a library.
pub fn check(name: &str, text: &str, wrong: &mut Vec<String>) {
    let is_library = name.ends_with(".rs") && name.contains("/src/") && !name.starts_with("xtask");
    if !is_library || LIKE_RUSTC.iter().any(|file| name.starts_with(file)) {
        return;
    }
    let mut in_error = false;
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            break;
        }
        let code = line.trim_start();
        if code.starts_with("//") {
            continue;
        }
        in_error |= code.starts_with("#[error(");
        let place = format!("{name}:{}", i + 1);
        if code.contains("= help: ") {
            wrong.push(format!(
                "{place} writes `= help:`; errors of a library end in `\\n  help: `"
            ));
        }
        if in_error && ["\"error: ", "\\nerror: "].iter().any(|w| code.contains(w)) {
            wrong.push(format!("{place} has `error: ` in an error, which who prints it writes"));
        }
        // A macro's compile error has its own margin (`mk-dsl/src/messages.rs`).
        let helps = code.match_indices("help: ").filter(|(at, _)| code[..*at].contains('"'));
        for (at, _) in helps {
            let before = &code[..at];
            if !before.ends_with("\\n  ") && !before.ends_with("\\n") && !before.ends_with('"') {
                wrong.push(format!(
                    "{place} has a help line that does not begin with `\\n  help: `"
                ));
            }
        }
        in_error &= !code.ends_with(")]");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> usize {
        let mut wrong = Vec::new();
        check("mk-x/src/error.rs", text, &mut wrong);
        wrong.len()
    }

    #[test]
    fn other_renderings_are_found() {
        assert_eq!(said("#[error(\"no such file\\n  help: name one\")]"), 0);
        assert_eq!(said("#[error(\"no such file\\n  = help: name one\")]"), 2);
        assert_eq!(said("#[error(\"no such file; help: name one\")]"), 1);
        assert_eq!(said("#[error(\n    \"error: no such file\"\n)]"), 1);
        assert_eq!(said("// = help: in a comment\n/// help: here"), 0);
        let mut wrong = Vec::new();
        check("mk-cli/src/failure/mod.rs", "\"\\n  = help: \"", &mut wrong);
        assert!(wrong.is_empty());
    }
}
