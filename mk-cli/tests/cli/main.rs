//! The `mk` command from outside: exit status, stdout, stderr.

mod command;
#[path = "../../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
mod errors;
mod export;
mod files;
mod good;
mod json;
mod picture;
mod plans;
mod probe;
mod run;
mod settings;
mod stdin;
mod terminal;
mod tune;
mod words;
