//! What the command says when it fails.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Why the command ends without success.
#[derive(Debug)]
pub enum Failure {
    /// Something to say on stderr, all of it.
    Message(String),
    /// Nobody reads stdout any more, which needs no words.
    ClosedPipe,
}

/// What a shell reports of a program that SIGPIPE ended.
const CLOSED_PIPE: u8 = 128 + 13;

impl Failure {
    /// `error: <what>`. A help line that a library put into its message is aligned with the others.
    pub fn new(what: impl Display) -> Failure {
        let text = what.to_string().trim_end().replace("\n  help: ", "\n  = help: ");
        Failure::Message(format!("error: {text}"))
    }

    /// An error and a way out.
    pub fn with_help(what: impl Display, help: impl Display) -> Failure {
        Failure::new(format!("{what}\n  = help: {help}"))
    }

    /// A text that is complete as it is.
    pub fn rendered(what: impl Display) -> Failure {
        Failure::Message(what.to_string())
    }

    /// What it says.
    pub fn text(&self) -> &str {
        match self {
            Failure::Message(text) => text,
            Failure::ClosedPipe => "",
        }
    }

    /// Says it.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Message(text) => {
                // Without stderr there is nobody left to tell.
                let _ = writeln!(io::stderr(), "{text}");
                ExitCode::FAILURE
            }
            Failure::ClosedPipe => ExitCode::from(CLOSED_PIPE),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::new(format!("cannot write to stdout: {error}")),
        }
    }
}
