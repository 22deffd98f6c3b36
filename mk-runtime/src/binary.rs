//! Which binary this process runs: the digest of a file whose code is loaded.
//!
//! What a compiler made is made again by the same compiler only. A version does not say which one that is, nor do name,
//! size and time of a file; a build id is of what the linker wrote, and not of what the file has become. So the file is
//! hashed, once in a process (about 10 ms for a release build), and its code compared with the code in memory: the file
//! may have been replaced since it was loaded.

use sha2::{Digest, Sha256};
use std::fs;
use std::ops::Range;

/// SHA-256 of the file from which the code at an address was loaded: the program, or a shared library.
///
/// # Errors
/// Why it is not known: the file is gone, or is another one by now.
pub fn digest_of(code: *const ()) -> Result<[u8; 32], String> {
    let maps =
        fs::read_to_string("/proc/self/maps").map_err(|e| format!("/proc/self/maps: {e}"))?;
    let maps: Vec<Map<'_>> = maps.lines().filter_map(Map::read).collect();
    let own = maps.iter().find(|m| m.range.contains(&(code as usize)));
    let path = own.map(|m| m.path).filter(|p| p.starts_with('/'));
    let path = path.ok_or("its code is of no file")?;
    let file = fs::read(path).map_err(|e| format!("{path}: {e}"))?;
    // Code is mapped as it is in the file. Other parts are written when they are loaded.
    for map in maps.iter().filter(|m| m.path == path && m.is_code) {
        let there = file.get(map.offset..).ok_or_else(|| other(path))?;
        let n = map.range.len().min(there.len());
        // SAFETY: the kernel says that this is mapped, readable and executable, from a library that is never unloaded
        // or the program; nothing writes code.
        let loaded = unsafe { std::slice::from_raw_parts(map.range.start as *const u8, n) };
        if loaded != &there[..n] {
            return Err(other(path));
        }
    }
    Ok(Sha256::digest(&file).into())
}

fn other(path: &str) -> String {
    format!("{path} is not what was loaded: it was replaced, or a debugger changed the code")
}

/// A line of `/proc/self/maps`.
struct Map<'m> {
    range: Range<usize>,
    is_code: bool,
    offset: usize,
    path: &'m str,
}

impl Map<'_> {
    /// `55d0-55f0 r-xp 00001000 fe:01 1234    /usr/bin/mk`.
    fn read(line: &str) -> Option<Map<'_>> {
        let mut rest = line;
        let mut word = || {
            let (word, more) = rest.split_once(' ')?;
            rest = more;
            Some(word)
        };
        let (range, access, offset) = (word()?, word()?, word()?);
        let (_device, _inode) = (word()?, word()?);
        let (start, end) = range.split_once('-')?;
        let hex = |text| usize::from_str_radix(text, 16).ok();
        Some(Map {
            range: hex(start)?..hex(end)?,
            is_code: access.starts_with("r-x"),
            offset: hex(offset)?,
            path: rest.trim_start(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    fn own() -> *const () {
        digest_of as *const ()
    }

    #[test]
    fn lines_are_read() {
        let map = Map::read("55d0-55f0 r-xp 00001000 fe:01 1234    /opt/a b/mk").unwrap();
        let Map { range, is_code, offset, path } = map;
        assert_eq!((range, is_code, offset, path), (0x55d0..0x55f0, true, 0x1000, "/opt/a b/mk"));
        assert!(!Map::read("1-2 r--p 0 0:0 0 /x").unwrap().is_code);
        assert_eq!(Map::read("1-2 rw-p 00000000 00:00 0 ").unwrap().path, "");
    }

    #[test]
    fn it_is_the_digest_of_the_program() {
        let file = fs::read("/proc/self/exe").unwrap();
        assert_eq!(digest_of(own()), Ok(Sha256::digest(file).into()));
        let none = Box::new(0u8);
        assert!(digest_of((&raw const *none).cast()).is_err());
    }

    #[test]
    fn child_says_its_digest() {
        // Only as a child process of another test.
        let Some(gone) = std::env::var_os("MK_TEST_BINARY") else { return };
        if gone == "replaced" {
            let path = std::env::current_exe().unwrap();
            let other = fs::read("/bin/sh").unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(&path, other).unwrap();
        }
        println!("MESSAGE {:?}", digest_of(own()));
    }

    fn said(program: &Path, what: &str) -> String {
        let test = "binary::tests::child_says_its_digest";
        let mut command = Command::new(program);
        command.args(["--exact", test, "--nocapture"]).env("MK_TEST_BINARY", what);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find(|l| l.contains("MESSAGE")).unwrap_or_default().to_string()
    }

    /// A byte of a binary, even one that is never read, makes another compiler; and a file that was replaced says
    /// nothing.
    #[test]
    fn one_byte_makes_another_binary() {
        let dir = std::env::temp_dir().join(format!("mk-binary-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let copy = dir.join("copy");
        let mut bytes = fs::read("/proc/self/exe").unwrap();
        let run = |bytes: &[u8], what| {
            fs::write(&copy, bytes).unwrap();
            fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
            said(&copy, what)
        };
        let first = run(&bytes, "");
        assert!(first.contains("Ok"), "{first}");
        assert_eq!(first, said(&std::env::current_exe().unwrap(), ""));
        // The padding of the ELF header.
        bytes[9] ^= 1;
        let changed = run(&bytes, "");
        assert!(changed.contains("Ok") && changed != first, "{changed}");
        let replaced = run(&bytes, "replaced");
        assert!(replaced.contains("Err"), "{replaced}");
        fs::remove_dir_all(dir).unwrap();
    }
}
