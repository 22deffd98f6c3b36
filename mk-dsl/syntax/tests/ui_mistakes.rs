//! The mistakes in `tests/ui`, read as run-time strings: the same messages in the same places
//! as the macro reports.

use mk_syntax::Program;
use std::fs;
use std::path::Path;

/// The text between the macro's braces, at the line and column that it has in the file.
fn text_in_place(file: &str) -> Option<String> {
    let open = file.find("mk::pipeline! {")? + "mk::pipeline! {".len();
    let close = file.find("\n}\n")?;
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    Some(file[..open].chars().map(blank).chain(file[open..close].chars()).collect())
}

/// `line:column: message (help)` of each error in a `.stderr` file.
fn expected(stderr: &str) -> Vec<String> {
    let (mut errors, mut message, mut help) = (Vec::new(), "", "");
    for line in stderr.lines() {
        if let Some(text) = line.strip_prefix("error: ") {
            message = text;
        } else if let Some(text) = line.trim_start().strip_prefix("help: ") {
            help = text;
        } else if let Some((_, place)) = line.split_once(".rs:") {
            errors.push(format!("{place}: {message} ({help})"));
        }
    }
    errors
}

#[test]
fn strings_give_the_same_messages() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ui");
    let mut n_files = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "rs") || path.ends_with("bare_chain.rs") {
            continue;
        }
        let text = text_in_place(&fs::read_to_string(&path).unwrap()).unwrap();
        let stderr = fs::read_to_string(path.with_extension("stderr")).unwrap();
        let mistakes = Program::parse(&text).unwrap_err();
        let found: Vec<String> = mistakes
            .iter()
            .map(|d| format!("{}:{}: {} ({})", d.line, d.column, d.message, d.help))
            .collect();
        assert_eq!(found, expected(&stderr), "{}", path.display());
        n_files += 1;
    }
    assert!(n_files >= 20, "only {n_files} mistakes were found");
}
