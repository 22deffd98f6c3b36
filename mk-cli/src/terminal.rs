//! How much is said, and in which colours.

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

/// How much is said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    /// Only the end of it all.
    pub quiet: bool,
    /// Every step.
    pub verbose: bool,
    /// The command whose report is one object on stdout.
    pub json: Option<&'static str>,
}

static MODE: OnceLock<Mode> = OnceLock::new();

/// What was asked for; before that is known, the default.
pub fn mode() -> Mode {
    MODE.get().copied().unwrap_or_default()
}

/// Says how much to say, once.
pub fn set(args: Args, json: Option<&'static str>) {
    // Only `main` sets it.
    let _ = MODE.set(Mode { quiet: args.quiet, verbose: args.verbose, json });
}

/// Takes `--color` from words that may yet turn out to be no command line: their mistakes are in colour, too.
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

/// Says what does not stop anything.
pub fn note_on_stderr(note: impl std::fmt::Display) {
    if !mode().quiet {
        say_on_stderr(format_args!("note: {note}"));
    }
}

/// A line, or several, on stderr.
pub fn say_on_stderr(text: impl std::fmt::Display) {
    let text = text.to_string();
    let lines: Vec<String> = text.lines().map(paint).collect();
    // Without stderr there is nobody left to tell.
    let _ = writeln!(anstream::stderr(), "{}", lines.join("\n"));
}

/// A line with its first word in the colour of what it is.
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

/// A verdict with its first word in the colour of what it is.
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
