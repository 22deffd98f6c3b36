//! What the command says when it fails, as text and as JSON.

mod from;
mod kind;

pub use kind::Kind;

use mk::{
    Diagnostics,
    emit::Refusals,
    syntax::BindErrors,
    valid::{self, Violation},
};
use serde_json::{Value, json};
use std::fmt::Display;
use std::io::{self, ErrorKind};

/// Why the command ends without success.
#[derive(Debug)]
pub enum Failure {
    /// Something to say.
    Mistakes(Box<Mistakes>),
    /// Nobody reads stdout any more, which needs no words.
    ClosedPipe,
}

/// A result of the command.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// What is wrong.
#[derive(Debug)]
pub struct Mistakes {
    /// All of it, as it stands on stderr.
    pub text: String,
    /// The same one by one, for `--json`; never empty.
    pub list: Vec<Value>,
    /// What is known all the same, for `--json`.
    pub report: Option<Value>,
}

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

    /// A command line that cannot be carried out, and a way out.
    pub fn usage(what: impl Display, help: impl Display) -> Failure {
        Failure::with_help(Kind::CommandLine, what, help)
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
        let list = mistakes.iter().map(|e| {
            let text = format!("{e:#}");
            mistake(Kind::Sizes, text, Some(&e.option_help()))
        });
        Failure::listed(format!("{mistakes:#}{more}"), list.collect())
    }

    /// A plan that is refused, and a way out where there is one.
    pub fn refused(kind: Kind, head: &str, found: &valid::Failure, help: Option<&str>) -> Failure {
        let text = format!("{head}{}", found.to_string().trim_end());
        let more = help.map_or(String::new(), |help| format!("\n  = help: {help}"));
        let of = |v: &Violation| {
            let mut value = mistake(kind, v, help);
            value["rule"] = v.rule().into();
            value
        };
        let list = found.violations.iter().map(of).collect();
        Failure::listed(format!("error: {text}{more}"), list)
    }

    /// A plan of which nothing is known but that it is too large, and a way out.
    pub fn too_large(failure: &valid::Failure, help: &str) -> Failure {
        let list = failure.violations.iter().map(|v| mistake(Kind::TooLarge, v, Some(help)));
        let what: Vec<String> = failure.violations.iter().map(ToString::to_string).collect();
        let (what, list) = (what.join("\n  "), list.collect());
        Failure::listed(format!("error: the plan is too large: {what}\n  = help: {help}"), list)
    }

    /// A right plan that no template carries out.
    pub fn no_kernel(refusals: &Refusals) -> Failure {
        let help = "it still runs on the CPU executor: `mk run --device cpu`";
        let list = refusals.iter().map(|r| mistake(Kind::Unsupported, r, Some(help))).collect();
        let what = format!("error: no kernel can be emitted for this plan: {refusals}");
        Failure::listed(format!("{what}\n  = help: {help}"), list)
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
}

/// One mistake, for `--json`.
pub fn mistake(kind: Kind, message: impl Display, help: Option<&str>) -> Value {
    json!({ "kind": kind, "message": message.to_string(), "help": help })
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::new(Kind::File, format!("cannot write to stdout: {error}")),
        }
    }
}
