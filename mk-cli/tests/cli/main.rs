//! The `mk` command from outside: exit status, stdout, stderr.

mod command;
mod errors;
mod good;
mod plans;
mod run;
