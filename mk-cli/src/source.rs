//! The PIPELINE argument: text, a file, or `-` for stdin.

use crate::failure::{Failure, Kind, Result};
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

/// The argument that stands for stdin.
pub const STDIN: &str = "-";

/// Longest text that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Format of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A pipeline; comments at the top may give default sizes.
    Pipeline,
    /// A plan as text.
    Plan,
    /// A plan as JSON.
    PlanJson,
}

/// Format of the argument: by its extension; of stdin by its first line.
pub fn form(argument: &str) -> Form {
    if argument == STDIN {
        // The read reports the error.
        return stdin().map_or(Form::Pipeline, begins_as);
    }
    match Path::new(argument).extension().and_then(|e| e.to_str()) {
        Some("plan") => Form::Plan,
        Some("json") => Form::PlanJson,
        _ => Form::Pipeline,
    }
}

/// Plans begin with `plan "name"`, or with a brace, after comments; no pipeline does.
fn begins_as(text: &str) -> Form {
    let line = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with("//"));
    match line.map(|l| l.strip_prefix("plan").map_or(l, |rest| rest.trim_start())) {
        Some(rest) if rest.starts_with('"') => Form::Plan,
        Some(rest) if rest.starts_with('{') => Form::PlanJson,
        _ => Form::Pipeline,
    }
}

/// The text of stdin, which is read once.
pub fn stdin() -> Result<&'static str> {
    static TEXT: OnceLock<Result<String, String>> = OnceLock::new();
    let text = TEXT.get_or_init(|| limited(std::io::stdin().lock()));
    let failed = |what: &String| Failure::new(Kind::File, format!("cannot read stdin: {what}"));
    text.as_deref().map_err(failed)
}

/// Reads a text file, up to a limit: a device may have no end.
pub fn read(path: &Path) -> Result<String> {
    let failed =
        |what: String| Failure::new(Kind::File, format!("cannot read {}: {what}", path.display()));
    let file = std::fs::File::open(path).map_err(|e| failed(e.to_string()))?;
    limited(file).map_err(failed)
}

fn limited(from: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    let length = from.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if length as u64 > MAX_BYTES {
        return Err(format!("it is longer than {} MiB", MAX_BYTES >> 20));
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_string())?;
    // Editors of some systems write a byte order mark.
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_string(),
        None => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_show_by_their_beginning_what_they_are() {
        assert_eq!(begins_as("// M = 3\n\n  plan \"gather\"\n"), Form::Plan);
        assert_eq!(begins_as("plan\"x\""), Form::Plan);
        assert_eq!(begins_as("\n{ \"schema\": 1 }"), Form::PlanJson);
        for text in ["", "gather(a)", "plan(a)", "// M = 3\npub fn f(plan: bf16[M]) {}"] {
            assert_eq!(begins_as(text), Form::Pipeline, "{text}");
        }
    }
}
