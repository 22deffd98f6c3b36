//! Where results go.

use crate::failure::Failure;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::path::Path;

/// Writes to stdout.
pub fn print(text: Arguments<'_>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    Ok(out.flush()?)
}

/// As `println!`, but a closed pipe is an error, not a panic.
macro_rules! say {
    ($($part:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($part)*))) };
}
pub(crate) use say;

/// Writes a file, whole or not at all: it is renamed into place.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::new(format!("cannot write {}: {error}", path.display()));
    let name = path.file_name().ok_or_else(|| {
        Failure::new(format!("cannot write {}: it does not name a file", path.display()))
    })?;
    // A pipe or a device is written to, not replaced.
    if path.metadata().is_ok_and(|m| !m.is_file()) {
        return std::fs::write(path, bytes).map_err(failed);
    }
    let mut temporary = name.to_os_string();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path)).map_err(
        |error| {
            // What is left of a failed write is of no use.
            let _ = std::fs::remove_file(&temporary);
            failed(error)
        },
    )
}
