//! Where results go.

mod file;

pub use file::{all_writable, make_folder, writable, writable_folder, write_file};

use crate::{failure::Result, terminal};
use serde_json::{Value, json};
use std::fmt::Arguments;
use std::io::{self, Write};

/// The version of every object that `--json` prints: one more with each change that a reader could stumble over.
const SCHEMA: u32 = 1;

/// Writes to stdout, unless that is for an object.
pub fn print(text: Arguments<'_>) -> Result<()> {
    if terminal::mode().json.is_some() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    Ok(out.flush()?)
}

/// As `println!`, but a closed pipe is an error, not a panic.
macro_rules! say {
    ($($part:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($part)*))) };
}
pub(crate) use say;

/// [`say!`], unless only the end of it all is asked for.
macro_rules! detail {
    ($($part:tt)*) => {
        if $crate::terminal::mode().quiet { Ok(()) } else { $crate::output::say!($($part)*) }
    };
}
pub(crate) use detail;

/// Says how it all ended: in colour, where there are colours.
pub fn verdict(good: bool, text: impl std::fmt::Display) -> Result<()> {
    if terminal::mode().json.is_some() {
        return Ok(());
    }
    let mut out = anstream::stdout().lock();
    writeln!(out, "{}", terminal::paint_verdict(good, &text.to_string()))?;
    Ok(out.flush()?)
}

/// Writes the one object of a command with `--json`: success, or mistakes, and the report.
pub fn object(command: &str, done: Result<(), Vec<Value>>, report: Value) -> Result<()> {
    let mut value = json!({ "schema": SCHEMA, "command": command, "ok": done.is_ok() });
    if let Err(list) = done {
        value["errors"] = list.into();
    }
    if let (Some(all), Value::Object(report)) = (value.as_object_mut(), report) {
        all.extend(report);
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{value:#}")?;
    Ok(out.flush()?)
}

/// Writes the report of a command that succeeded, where it is asked for as an object.
pub fn report(value: impl FnOnce() -> Value) -> Result<()> {
    match terminal::mode().json {
        Some(command) => object(command, Ok(()), value()),
        None => Ok(()),
    }
}
