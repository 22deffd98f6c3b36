//! The `mk` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    let listen = |log| {
        // Nothing listens before.
        let _ = tracing::subscriber::set_global_default(log);
    };
    ExitCode::from(mk_cli::run(std::env::args_os().skip(1).collect(), listen))
}
