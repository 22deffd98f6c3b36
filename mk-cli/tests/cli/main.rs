//! The `mk` command from outside: exit status, stdout, stderr.

mod command;
mod errors;
mod good;
mod picture;
mod plans;
mod probe;
mod run;
mod tune;
