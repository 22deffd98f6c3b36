//! Files that the command writes.

use crate::failure::{Failure, Kind};
use std::io;
use std::path::{Path, PathBuf};

/// Writes a file, whole or not at all: it is renamed into place, with the permissions of the file that was there. A link stays, and the
/// file that it names is written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::new(Kind::File, format!("cannot write {}: {error}", path.display()))
    };
    let target = followed(path).map_err(failed)?;
    let name = target.file_name().ok_or_else(|| {
        let what = format!("cannot write {}: it does not name a file", path.display());
        Failure::new(Kind::File, what)
    })?;
    let before = target.metadata().ok();
    // A pipe or a device is written to, not replaced.
    if before.as_ref().is_some_and(|m| !m.is_file()) {
        return std::fs::write(&target, bytes).map_err(failed);
    }
    let mut temporary = name.to_os_string();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = target.with_file_name(temporary);
    let write = || {
        std::fs::write(&temporary, bytes)?;
        if let Some(before) = before {
            std::fs::set_permissions(&temporary, before.permissions())?;
        }
        std::fs::rename(&temporary, &target)
    };
    write().map_err(|error| {
        // What is left of a failed write is of no use.
        let _ = std::fs::remove_file(&temporary);
        failed(error)
    })
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

/// Makes a folder, and those above it.
pub fn make_folder(path: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(path).map_err(|error| {
        Failure::new(Kind::File, format!("cannot make the folder {}: {error}", path.display()))
    })
}
