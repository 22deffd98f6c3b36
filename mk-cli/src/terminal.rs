//! Verbosity and colours of what the command prints.

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use std::io::Write;
use std::sync::OnceLock;

/// Options of every command.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Args {
    /// No progress and no notes; of `check`, `build`, `run` and `trace` the verdict alone
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Also say on stderr what is done, and how long each step takes
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Colours: auto is where a terminal reads it and NO_COLOR is not set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    color: Color,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

/// Verbosity.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    /// Only the final verdict.
    pub quiet: bool,
    /// Every step.
    pub verbose: bool,
    /// The command whose report is one object on stdout.
    pub json: Option<&'static str>,
}

static MODE: OnceLock<Mode> = OnceLock::new();

/// The requested mode; the default until options are parsed.
pub fn mode() -> Mode {
    MODE.get().copied().unwrap_or_default()
}

/// Sets the mode, once.
pub fn set(args: Args, json: Option<&'static str>) {
    // Only `main` sets it.
    let _ = MODE.set(Mode { quiet: args.quiet, verbose: args.verbose, json });
}

/// Takes `--color` from arguments before they are parsed, so that parse errors are coloured accordingly.
pub fn color_from(words: &[String]) {
    let of = |(i, word): (usize, &String)| match word.strip_prefix("--color") {
        Some("") => words.get(i + 1).cloned(),
        Some(rest) => rest.strip_prefix('=').map(str::to_string),
        None => None,
    };
    let choice = match words.iter().take_while(|w| *w != "--").enumerate().find_map(of).as_deref() {
        Some("always") => anstream::ColorChoice::Always,
        Some("never") => anstream::ColorChoice::Never,
        _ => anstream::ColorChoice::Auto,
    };
    choice.write_global();
}

const BAD: Style = AnsiColor::Red.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const ASIDE: Style = AnsiColor::Cyan.on_default().bold();

/// Prints a note that is not an error.
pub fn note_on_stderr(note: impl std::fmt::Display) {
    if !mode().quiet {
        say_on_stderr(format_args!("note: {note}"));
    }
}

/// Prints one or more lines to stderr.
pub fn say_on_stderr(text: impl std::fmt::Display) {
    let text = text.to_string();
    let lines: Vec<String> = text.lines().map(paint).collect();
    // If stderr is closed, there is nowhere to report it.
    let _ = writeln!(anstream::stderr(), "{}", lines.join("\n"));
}

/// Colours the first word of a line by its kind (error, warning, note, help).
fn paint(line: &str) -> String {
    for (word, style) in [("error:", BAD), ("warning:", BAD), ("note:", ASIDE), ("= help:", ASIDE)]
    {
        let rest = line.trim_start_matches(' ').strip_prefix(word);
        if let Some(rest) = rest {
            let blanks = &line[..line.len() - word.len() - rest.len()];
            return format!("{blanks}{style}{word}{style:#}{rest}");
        }
    }
    line.to_string()
}

/// Colours the first word of a verdict, by whether it is good.
pub fn paint_verdict(good: bool, text: &str) -> String {
    let style = if good { GOOD } else { BAD };
    let end = text.find([':', ' ']).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    format!("{style}{word}{style:#}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_first_words_are_in_colour() {
        assert_eq!(paint("a = help: b"), "a = help: b");
        assert_eq!(paint("  = help: b"), format!("  {ASIDE}= help:{ASIDE:#} b"));
        assert_eq!(paint("error: error: b"), format!("{BAD}error:{BAD:#} error: b"));
        assert_eq!(paint_verdict(true, "OK"), format!("{GOOD}OK{GOOD:#}"));
        assert_eq!(paint_verdict(false, "FAIL: x"), format!("{BAD}FAIL{BAD:#}: x"));
    }
}
