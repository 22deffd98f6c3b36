//! What a process leaves for those after it: one file per item, published by rename, checked on every read.
//!
//! File: magic (8 bytes), key (32), SHA-256 of key, length and body (32), length of the body (u64, little-endian),
//! body. The key is that of the item, so that a file that was copied over another one is not taken for it. What is no
//! regular file, or larger than any item, is not read: a link may lead to a device without an end, or a fifo. Directory
//! and files belong to this user (or root), and nobody else may write them: digests tell damage, and not intent
//! (`trust.rs`). Several processes may write the same key at once: each renames a complete file of its own into place,
//! and any of them is right. A file that does not check is treated as absent and replaced. A directory that cannot be
//! used at all costs time and is not an error: its first failure is a warning in the log, and `mk doctor` finds it.

mod trust;

use crate::{Error, Result, env};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

const HEAD: usize = 8 + 32 + 32 + 8;
/// Most bytes of a file that is read.
const MAX_BYTES: u64 = 256 << 20;
/// Access of a new directory: the user's alone.
const DIR_MODE: u32 = 0o700;
/// Access of a new file.
const FILE_MODE: u32 = 0o644;

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CUBINs with the log of their compilation.
    Kernel,
    /// That a plan was proved and evaluated.
    Proof,
    /// Settings that a search found.
    Choice,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Kernel, Kind::Proof, Kind::Choice];

    /// The last digit counts changes of the format.
    fn magic(self) -> &'static [u8; 8] {
        match self {
            Kind::Kernel => b"mkcubin4",
            Kind::Proof => b"mkproof1",
            Kind::Choice => b"mkchois1",
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Kind::Kernel => "mkc",
            Kind::Proof => "proof",
            Kind::Choice => "choice",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Kernel => "kernel",
            Kind::Proof => "proof",
            Kind::Choice => "choice",
        })
    }
}

/// Hash of everything that an item depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Of fields in their order. Lengths go in, so that no two lists of fields meet.
    pub fn of<B: AsRef<[u8]>>(fields: impl IntoIterator<Item = B>) -> Key {
        let mut hash = Sha256::new();
        for field in fields {
            hash.update((field.as_ref().len() as u64).to_le_bytes());
            hash.update(field.as_ref());
        }
        Key(hash.finalize().into())
    }

    /// In hexadecimal digits.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }
}

/// A directory of items.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// The directory given, or the user's; `None` where there is none, it cannot be made, or others may write it.
    pub fn open(dir: Option<&Path>) -> Option<Store> {
        let Some(dir) = dir.map(PathBuf::from).or_else(env::cache_dir) else {
            warn_once(Path::new(""), &no_place());
            return None;
        };
        match usable(&dir) {
            Ok(()) => Some(Store { dir }),
            Err(error) => {
                warn_once(&dir, &error);
                None
            }
        }
    }

    /// Where an item is, or would be.
    pub fn entry(&self, kind: Kind, key: &Key) -> PathBuf {
        self.dir.join(format!("{}.{}", key.hex(), kind.extension()))
    }

    /// What [`Store::write`] stored, if it is there and sound.
    pub fn read(&self, kind: Kind, key: &Key) -> Option<Vec<u8>> {
        let path = self.entry(kind, key);
        let bytes = match read_file(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a {kind} that was kept cannot be read");
                return None;
            }
        };
        match decode(&bytes, kind, key) {
            Ok(body) => Some(body.to_vec()),
            Err(why) => {
                tracing::warn!(path = %path.display(), why, "a {kind} that was kept is not used, and is made again");
                None
            }
        }
    }

    /// Stores an item, as far as that is possible.
    pub fn write(&self, kind: Kind, key: &Key, body: &[u8]) {
        self.publish(&self.entry(kind, key), &encode(body, kind, key));
    }

    /// What [`Store::remember`] stored under a stamp.
    pub(crate) fn recall(&self, stamp: &str) -> Option<String> {
        let text = String::from_utf8(read_file(&self.memo(stamp)).ok()?).ok()?;
        let (sum, value) = text.split_once('\n')?;
        (sum == memo_sum(stamp, value)).then(|| value.to_string())
    }

    /// Stores a short text under a stamp.
    pub(crate) fn remember(&self, stamp: &str, value: &str) {
        let text = format!("{}\n{value}", memo_sum(stamp, value));
        self.publish(&self.memo(stamp), text.as_bytes());
    }

    fn memo(&self, stamp: &str) -> PathBuf {
        let hash = hex(&Sha256::digest(stamp.as_bytes()));
        self.dir.join(format!("nvrtc-{}.txt", &hash[..16]))
    }

    fn publish(&self, path: &Path, bytes: &[u8]) {
        let temp = temporary(&self.dir);
        let done = create(&temp)
            .and_then(|mut f| f.write_all(bytes))
            .map_err(|error| unusable(&self.dir, "writing a file", &error))
            .and_then(|()| self.replace(&temp, path));
        if let Err(error) = done {
            warn_once(&self.dir, &error);
            // Best effort: the directory may be read-only or full.
            let _ = fs::remove_file(&temp);
        }
    }

    /// Renames a file into an entry. One in whose place a folder stands is lost, and no other.
    fn replace(&self, temp: &Path, path: &Path) -> Result<()> {
        let Err(error) = fs::rename(temp, path) else { return Ok(()) };
        if !path.is_dir() {
            return Err(unusable(&self.dir, "renaming a file", &error));
        }
        tracing::warn!(path = %path.display(), "an entry is not kept: a folder has its name; remove it");
        // Best effort, as above.
        let _ = fs::remove_file(temp);
        Ok(())
    }
}

/// Items of one kind in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What they are.
    pub kind: Kind,
    /// How many files.
    pub files: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// How much is kept in a directory, kind by kind. Nothing is opened: some may not check.
pub fn count(dir: &Path) -> Vec<Kept> {
    let entries: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().collect();
    let each = |kind: Kind| {
        let of_kind = |e: &&fs::DirEntry| {
            Path::new(&e.file_name()).extension().is_some_and(|x| x == kind.extension())
        };
        let bytes = entries.iter().filter(of_kind).map(|e| e.metadata().map_or(0, |m| m.len()));
        let bytes: Vec<u64> = bytes.collect();
        Kept { kind, files: bytes.len(), bytes: bytes.iter().sum() }
    };
    Kind::ALL.map(each).to_vec()
}

/// Makes a directory if need be, and refuses one that others may write.
fn usable(dir: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(dir)
        .map_err(|e| unusable(dir, "creating it", &e))?;
    let meta = fs::metadata(dir).map_err(|e| unusable(dir, "looking at it", &e))?;
    trust::own(&meta).map_err(|what| Error::CacheUnusable { dir: Some(dir.into()), what })
}

/// A new file that only this user may write.
fn create(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// The bytes of a regular file of this user that is no larger than an item may be. Opening a fifo does not wait for its
/// other end.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is no regular file: remove it"));
    }
    trust::own(&meta).map_err(io::Error::other)?;
    let too_large = || io::Error::other(format!("it is larger than {MAX_BYTES} bytes: remove it"));
    if meta.len() > MAX_BYTES {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    // Some files have more to say than their length.
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES { Err(too_large()) } else { Ok(bytes) }
}

/// Ties a text to its stamp.
fn memo_sum(stamp: &str, value: &str) -> String {
    let stamp = Sha256::digest(stamp.as_bytes());
    hex(&Sha256::new().chain_update(stamp).chain_update(value.as_bytes()).finalize())
}

/// A name that no other file of the directory has.
fn temporary(dir: &Path) -> PathBuf {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    // Host name is not known here: the time keeps two hosts on one network file system apart.
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos());
    dir.join(format!(".tmp-{}-{serial}-{now:x}", std::process::id()))
}

/// Bytes that [`probe`] writes: more than a CUBIN with its log has.
const PROBE_BYTES: usize = 1 << 20;

/// Whether items can be kept: makes the directory if need be, then writes, renames, reads and removes a file as a store
/// does.
///
/// # Errors
/// [`Error::CacheUnusable`] with the first step that fails.
pub(crate) fn probe(dir: Option<PathBuf>) -> Result<PathBuf> {
    let dir = dir.ok_or_else(no_place)?;
    usable(&dir)?;
    let (temp, path) = (temporary(&dir), temporary(&dir).with_extension("probe"));
    let bytes: Vec<u8> = (0..PROBE_BYTES).map(|i| (i % 251) as u8).collect();
    // A full disk may show only when the bytes reach it.
    let write = || create(&temp).and_then(|mut f| f.write_all(&bytes).and(f.sync_all()));
    let probed = write()
        .map_err(|e| unusable(&dir, "writing a file of 1 MiB", &e))
        .and_then(|()| fs::rename(&temp, &path).map_err(|e| unusable(&dir, "renaming a file", &e)))
        .and_then(|()| read_file(&path).map_err(|e| unusable(&dir, "reading a file", &e)))
        .and_then(|read| match read == bytes {
            true => Ok(()),
            false => Err(unusable(&dir, "reading a file", &"it has other bytes than were written")),
        });
    // Whichever of them is there.
    let removed = fs::remove_file(&path).or_else(|_| fs::remove_file(&temp));
    probed?;
    removed.map_err(|e| unusable(&dir, "removing a file", &e))?;
    Ok(dir)
}

fn no_place() -> Error {
    let what = "neither MK_CACHE_DIR nor XDG_CACHE_HOME nor HOME is set".into();
    Error::CacheUnusable { dir: None, what }
}

fn unusable(dir: &Path, step: &str, why: &dyn fmt::Display) -> Error {
    Error::CacheUnusable { dir: Some(dir.into()), what: format!("{step} failed: {why}") }
}

/// Logs the first failure of each directory as a warning, later ones for debugging: every item meets the same one.
fn warn_once(dir: &Path, error: &Error) {
    static SAID: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    match SAID.lock().unwrap_or_else(|e| e.into_inner()).insert(dir.into()) {
        true => tracing::warn!(%error, "kernels are compiled and not kept"),
        false => tracing::debug!(%error, "an item was not kept"),
    }
}

fn digest(key: &Key, length: [u8; 8], body: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(key.0).chain_update(length).chain_update(body).finalize().into()
}

fn encode(body: &[u8], kind: Kind, key: &Key) -> Vec<u8> {
    let length = (body.len() as u64).to_le_bytes();
    let mut file = Vec::with_capacity(HEAD + body.len());
    file.extend(kind.magic());
    file.extend(key.0);
    file.extend(digest(key, length, body));
    file.extend(length);
    file.extend(body);
    file
}

/// What a file holds, or why it is not the item of a key.
fn decode<'f>(file: &'f [u8], kind: Kind, key: &Key) -> Result<&'f [u8], &'static str> {
    let rest =
        file.strip_prefix(kind.magic()).ok_or("it is of another version, or another kind")?;
    let (own, rest) = rest.split_at_checked(32).ok_or("it is cut short")?;
    if own != key.0 {
        return Err("it is the file of another key");
    }
    let (sum, rest) = rest.split_at_checked(32).ok_or("it is cut short")?;
    let (length, body) = rest.split_first_chunk::<8>().ok_or("it is cut short")?;
    if body.len() as u64 != u64::from_le_bytes(*length) {
        return Err("it is not as long as it says");
    }
    if digest(key, *length, body) != sum {
        return Err("it is damaged");
    }
    Ok(body)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        // Writing to a String cannot fail.
        let _ = write!(s, "{b:02x}");
        s
    })
}

#[cfg(test)]
mod tests;
