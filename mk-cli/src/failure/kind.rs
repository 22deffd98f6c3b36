//! Kinds of failures.

use serde::Serialize;

/// What a failure is about: `"kind"` in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The command line cannot be read, or its options exclude each other.
    CommandLine,
    /// The text of a pipeline or plan.
    Pipeline,
    /// Numbers for dimensions.
    Sizes,
    /// Settings.
    Settings,
    /// A pipeline or plan that mk has no way to carry out.
    Unsupported,
    /// More than mk takes on.
    TooLarge,
    /// A plan that the verifier refuses.
    Refused,
    /// Something that this machine lacks.
    Machine,
    /// NVRTC, and kernels that it compiles badly.
    Compile,
    /// A run that came to no end.
    Run,
    /// A run with wrong results.
    Wrong,
    /// A file, or stdout.
    File,
    /// A mistake in mk.
    Internal,
}

#[cfg(test)]
impl Kind {
    /// All of them. Programs read their names: one is never renamed or taken away, and docs/command-line.md lists each.
    const ALL: [Kind; 13] = [
        Kind::CommandLine,
        Kind::Pipeline,
        Kind::Sizes,
        Kind::Settings,
        Kind::Unsupported,
        Kind::TooLarge,
        Kind::Refused,
        Kind::Machine,
        Kind::File,
        Kind::Compile,
        Kind::Run,
        Kind::Wrong,
        Kind::Internal,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that programs may rely upon. A new kind is a new word at the end; no word here changes.
    const PROMISED: &str = "command_line pipeline sizes settings unsupported too_large refused machine file compile run wrong internal";

    #[test]
    fn kinds_keep_their_names_and_stand_in_the_documents() {
        let name = |kind| serde_json::to_value(kind).ok()?.as_str().map(String::from);
        let names: Vec<String> = Kind::ALL.into_iter().filter_map(name).collect();
        assert_eq!(names.join(" "), PROMISED);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/command-line.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let (_, table) = page.split_once("| `kind` | about |\n|---|---|\n").expect("the table");
        let (table, _) = table.split_once("\n\n").expect("its end");
        let first = table.lines().filter_map(|row| row.split('|').nth(1));
        let listed: Vec<&str> =
            first.flat_map(|cell| cell.split(',')).map(|w| w.trim().trim_matches('`')).collect();
        assert_eq!(listed, names);
    }
}
