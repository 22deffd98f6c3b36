//! What the command says when it fails, as text and as JSON.

mod kind;

pub use kind::Kind;

use crate::{output, terminal};
use mk::{
    Diagnostics,
    syntax::BindErrors,
    valid::{self, Violation},
};
use serde_json::{Value, json};
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

/// Why the command ends without success.
#[derive(Debug)]
pub enum Failure {
    /// Something to say.
    Mistakes(Box<Mistakes>),
    /// Nobody reads stdout any more, which needs no words.
    ClosedPipe,
}

/// What is wrong.
#[derive(Debug)]
pub struct Mistakes {
    /// All of it, as it stands on stderr.
    text: String,
    /// The same one by one, for `--json`; never empty.
    list: Vec<Value>,
    /// What is known all the same, for `--json`.
    report: Option<Value>,
}

/// What a shell reports of a program that SIGPIPE ended.
const CLOSED_PIPE: u8 = 128 + 13;
/// Exit status of a command line that cannot be read.
const COMMAND_LINE: u8 = 2;

impl Failure {
    /// `error: <what>`. A help line that a library put into its message is aligned with the others.
    pub fn new(kind: Kind, what: impl Display) -> Failure {
        let text = what.to_string().trim_end().replace("\n  help: ", "\n  = help: ");
        let (message, help) = match text.rsplit_once("\n  = help: ") {
            Some((message, help)) => (message, Some(help)),
            None => (text.as_str(), None),
        };
        Failure::listed(format!("error: {text}"), vec![mistake(kind, message, help)])
    }

    /// An error and a way out.
    pub fn with_help(kind: Kind, what: impl Display, help: impl Display) -> Failure {
        Failure::new(kind, format!("{what}\n  = help: {help}"))
    }

    /// Mistakes in the text of a pipeline, and more to say of them.
    pub fn in_text(mistakes: &Diagnostics, origin: &str, more: &str) -> Failure {
        let list = mistakes.iter().map(|d| {
            let mut value = mistake(Kind::Pipeline, &d.message, Some(&d.help));
            value["file"] = origin.into();
            value["line"] = d.line.into();
            value["column"] = d.column.into();
            value
        });
        Failure::listed(format!("{mistakes}{more}"), list.collect())
    }

    /// Numbers that do not fit a pipeline, and more to say of them.
    pub fn in_numbers(mistakes: &BindErrors, more: &str) -> Failure {
        let list = mistakes.iter().map(|e| mistake(Kind::Sizes, e, Some(&e.help())));
        Failure::listed(format!("{mistakes}{more}"), list.collect())
    }

    /// A plan that is refused, and a way out where there is one.
    pub fn refused(
        kind: Kind,
        before: &str,
        failure: &valid::Failure,
        help: Option<&str>,
    ) -> Failure {
        let text = format!("{before}{}", failure.to_string().trim_end());
        let more = help.map_or(String::new(), |help| format!("\n  = help: {help}"));
        let of = |v: &Violation| {
            let mut value = mistake(kind, v, help);
            value["rule"] = v.rule().into();
            value
        };
        let list = failure.violations.iter().map(of).collect();
        Failure::listed(format!("error: {text}{more}"), list)
    }

    fn listed(text: String, list: Vec<Value>) -> Failure {
        Failure::Mistakes(Box::new(Mistakes { text, list, report: None }))
    }

    /// With what is known all the same, for `--json`.
    pub fn with_report(mut self, report: Value) -> Failure {
        if let Failure::Mistakes(mistakes) = &mut self {
            mistakes.report = Some(report);
        }
        self
    }

    /// What it says.
    pub fn text(&self) -> &str {
        match self {
            Failure::Mistakes(mistakes) => &mistakes.text,
            Failure::ClosedPipe => "",
        }
    }

    /// Says it.
    pub fn report(self) -> ExitCode {
        let mistakes = match self {
            Failure::Mistakes(mistakes) => *mistakes,
            Failure::ClosedPipe => return ExitCode::from(CLOSED_PIPE),
        };
        match terminal::mode().json {
            None => terminal::say_on_stderr(&mistakes.text),
            Some(command) => {
                let report = mistakes.report.unwrap_or_else(|| json!({}));
                // Without stdout there is nobody left to tell.
                let _ = output::object(command, Err(mistakes.list), report);
            }
        }
        ExitCode::FAILURE
    }
}

/// Reports a command line that cannot be read, or prints the help that it asks for.
pub fn usage(error: &clap::Error, json: Option<&'static str>) -> ExitCode {
    match json {
        Some(command) if error.use_stderr() => {
            let text = error.to_string();
            let text = text.trim_start_matches("error: ");
            let message = text.split("\n\n").next().unwrap_or(text);
            let message = message.trim_end().replace("\n  help: ", "\n  = help: ");
            let (message, help) = match message.split_once("\n  = help: ") {
                Some((message, help)) => (message, help),
                None => (message.as_str(), "`--help` lists the options"),
            };
            let list = vec![mistake(Kind::CommandLine, message, Some(help))];
            // Without stdout there is nobody left to tell.
            let _ = output::object(command, Err(list), json!({}));
        }
        // Without stdout, or stderr, there is nobody left to tell.
        _ => _ = error.print(),
    }
    if error.use_stderr() { ExitCode::from(COMMAND_LINE) } else { ExitCode::SUCCESS }
}

fn mistake(kind: Kind, message: impl Display, help: Option<&str>) -> Value {
    json!({ "kind": kind.name(), "message": message.to_string(), "help": help })
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::new(Kind::File, format!("cannot write to stdout: {error}")),
        }
    }
}
