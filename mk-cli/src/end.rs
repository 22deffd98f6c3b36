//! How the command ends: what it says last, and its exit status.

use crate::{
    failure::{Failure, Kind, mistake},
    output, terminal,
};
use serde_json::json;

/// What a shell reports of a program that SIGPIPE ended.
const CLOSED_PIPE: u8 = 128 + 13;
/// Exit status of everything else that fails.
const FAILURE: u8 = 1;
/// Exit status of a command line that cannot be read.
const COMMAND_LINE: u8 = 2;

/// Reports a failure.
pub fn failed(failure: Failure) -> u8 {
    let mistakes = match failure {
        Failure::Mistakes(mistakes) => *mistakes,
        Failure::ClosedPipe => return CLOSED_PIPE,
    };
    match terminal::mode().json {
        None => terminal::say_on_stderr(&mistakes.text),
        Some(command) => {
            let report = mistakes.report.unwrap_or_else(|| json!({}));
            // Without stdout there is nobody left to tell.
            let _ = output::object(command, Err(mistakes.list), report);
        }
    }
    FAILURE
}

/// Reports a command line that cannot be read, or prints the help that it asks for.
pub fn usage(error: &clap::Error, json: Option<&'static str>) -> u8 {
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
    if error.use_stderr() { COMMAND_LINE } else { 0 }
}
