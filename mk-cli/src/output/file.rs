//! Files that the command writes.

use crate::failure::{Failure, Kind, Result};
use std::io;
use std::path::{Path, PathBuf};

/// Writes a file, whole or not at all: it is renamed into place, with the permissions of the file that was there. A
/// link stays, and the file that it names is written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |error| cannot_write(path, error);
    let target = target(path)?;
    let before = target.metadata().ok();
    // A pipe or a device is written to, not replaced.
    if before.as_ref().is_some_and(|m| !m.is_file()) {
        return std::fs::write(&target, bytes).map_err(failed);
    }
    let temporary = temporary(&target);
    let write = || {
        std::fs::write(&temporary, bytes)?;
        if let Some(before) = before {
            std::fs::set_permissions(&temporary, before.permissions())?;
        }
        std::fs::rename(&temporary, &target)
    };
    write().map_err(|error| {
        // Remove the rest of a failed write.
        let _ = std::fs::remove_file(&temporary);
        failed(error)
    })
}

/// Makes sure before long work that [`write_file`] will find a folder in which it may write.
pub fn writable(path: &Path) -> Result<()> {
    let target = target(path)?;
    if target.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        return Ok(());
    }
    if target.is_dir() {
        return Err(cannot_write(path, io::ErrorKind::IsADirectory.into()));
    }
    let temporary = temporary(&target);
    let made = std::fs::write(&temporary, b"").and_then(|()| std::fs::remove_file(&temporary));
    made.map_err(|error| cannot_write(path, error))
}

fn cannot_write(path: &Path, error: io::Error) -> Failure {
    Failure::new(Kind::File, format!("cannot write {}: {error}", path.display()))
}

/// The file that is written in the end.
fn target(path: &Path) -> Result<PathBuf> {
    let target = followed(path).map_err(|error| cannot_write(path, error))?;
    match target.file_name() {
        Some(_) => Ok(target),
        None => {
            let what = format!("cannot write {}: it does not name a file", path.display());
            Err(Failure::new(Kind::File, what))
        }
    }
}

/// Where it is written first.
fn temporary(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    target.with_file_name(name)
}

/// Most links that are followed, as on Linux.
const MAX_LINKS: usize = 40;

/// The file that a path means, which need not be there: its last name is none of a link.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match path.symlink_metadata() {
            Ok(m) if m.is_symlink() => {
                // A relative one begins at the folder of the link.
                let to = std::fs::read_link(&path)?;
                path = path.parent().unwrap_or(Path::new("")).join(to);
            }
            _ => return Ok(path),
        }
    }
    Err(io::Error::other("too many links lead to one another"))
}

/// [`writable`] of each file that options name.
pub fn all_writable<'p>(paths: impl IntoIterator<Item = &'p Option<PathBuf>>) -> Result<()> {
    paths.into_iter().flatten().try_for_each(|path| writable(path))
}

/// Makes a folder before long work, and makes sure that files can be written into it.
pub fn writable_folder(path: &Path) -> Result<()> {
    make_folder(path)?;
    writable(&path.join("mk"))
}

/// Makes a folder, and those above it.
pub fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|error| {
        Failure::new(Kind::File, format!("cannot make the folder {}: {error}", path.display()))
    })
}
