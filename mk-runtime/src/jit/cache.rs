//! The disk cache: one file per kernel, published by rename, checked on every read.
//!
//! File: magic (8 bytes), SHA-256 of the rest (32), log length (u64, little-endian), CUBIN length (u64), log, CUBIN.
//! Several processes may write the same key at once: each renames a complete file of its own into place, and any of
//! them is right. A file that does not check is treated as absent and replaced. A cache that cannot be used at all
//! costs time and is not an error: the first failure of a directory is a warning in the log, and [`probe`] finds it.

use super::Unit;
use crate::{Error, env};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

const MAGIC: &[u8; 8] = b"mkcubin2";
const HEAD: usize = 8 + 32 + 8 + 8;

/// What a compilation leaves: the binary and the log, from which the report is parsed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) cubin: Vec<u8>,
    pub(super) log: String,
}

/// Hash of everything that the result depends on.
pub(super) struct Key(String);

impl Key {
    pub(super) fn new(unit: Unit<'_>, flags: &[String], build: &str) -> Key {
        let mut hash = Sha256::new();
        let mut field = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        field(build.as_bytes());
        field(unit.arch.as_bytes());
        field(unit.name.as_bytes());
        field(unit.cuda.as_bytes());
        for flag in flags {
            field(flag.as_bytes());
        }
        Key(hex(&hash.finalize()))
    }
}

/// The cache directory.
pub(super) struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// The directory given, or the user's; `None` where there is none or it cannot be made.
    pub(super) fn open(dir: Option<&Path>) -> Option<Cache> {
        let Some(dir) = dir.map(PathBuf::from).or_else(env::cache_dir) else {
            warn_once(Path::new(""), &no_place());
            return None;
        };
        if let Err(error) = fs::create_dir_all(&dir) {
            warn_once(&dir, &unusable(&dir, "creating it", &error));
            return None;
        }
        Some(Cache { dir })
    }

    fn entry(&self, key: &Key) -> PathBuf {
        self.dir.join(format!("{}.mkc", key.0))
    }

    pub(super) fn read(&self, key: &Key) -> Option<Output> {
        let path = self.entry(key);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a cached kernel cannot be read");
                return None;
            }
        };
        let output = decode(&bytes);
        if output.is_none() {
            tracing::warn!(path = %path.display(), "a cached kernel is damaged, and is compiled again");
        }
        output
    }

    pub(super) fn write(&self, key: &Key, output: &Output) {
        self.publish(&self.entry(key), &encode(output));
    }

    /// What [`Cache::remember`] stored under a stamp.
    pub(super) fn recall(&self, stamp: &str) -> Option<String> {
        let text = fs::read_to_string(self.memo(stamp)).ok()?;
        let (sum, value) = text.split_once('\n')?;
        (sum == hex(&Sha256::digest(value.as_bytes()))).then(|| value.to_string())
    }

    /// Stores a short text under a stamp.
    pub(super) fn remember(&self, stamp: &str, value: &str) {
        let text = format!("{}\n{value}", hex(&Sha256::digest(value.as_bytes())));
        self.publish(&self.memo(stamp), text.as_bytes());
    }

    fn memo(&self, stamp: &str) -> PathBuf {
        let hash = hex(&Sha256::digest(stamp.as_bytes()));
        self.dir.join(format!("nvrtc-{}.txt", &hash[..16]))
    }

    fn publish(&self, path: &Path, bytes: &[u8]) {
        let temp = temporary(&self.dir);
        let done = fs::write(&temp, bytes).and_then(|()| fs::rename(&temp, path));
        if let Err(error) = done {
            warn_once(&self.dir, &unusable(&self.dir, "writing a file", &error));
            // Best effort: the directory may be read-only or full.
            let _ = fs::remove_file(&temp);
        }
    }
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

/// Whether kernels can be kept: makes the directory if need be, then writes, renames, reads and removes a file as the
/// cache does.
///
/// # Errors
/// [`Error::CacheUnusable`] with the first step that fails.
pub(crate) fn probe(dir: Option<PathBuf>) -> Result<PathBuf, Error> {
    let dir = dir.ok_or_else(no_place)?;
    fs::create_dir_all(&dir).map_err(|e| unusable(&dir, "creating it", &e))?;
    let (temp, path) = (temporary(&dir), temporary(&dir).with_extension("probe"));
    let bytes: Vec<u8> = (0..PROBE_BYTES).map(|i| (i % 251) as u8).collect();
    // A full disk may show only when the bytes reach it.
    let write = || fs::File::create(&temp).and_then(|mut f| f.write_all(&bytes).and(f.sync_all()));
    let probed = write()
        .map_err(|e| unusable(&dir, "writing a file of 1 MiB", &e))
        .and_then(|()| fs::rename(&temp, &path).map_err(|e| unusable(&dir, "renaming a file", &e)))
        .and_then(|()| fs::read(&path).map_err(|e| unusable(&dir, "reading a file", &e)))
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

fn unusable(dir: &Path, step: &str, why: &dyn std::fmt::Display) -> Error {
    Error::CacheUnusable { dir: Some(dir.into()), what: format!("{step} failed: {why}") }
}

/// Logs the first failure of each directory as a warning, later ones for debugging: every kernel meets the same one.
fn warn_once(dir: &Path, error: &Error) {
    static SAID: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    match SAID.lock().unwrap_or_else(|e| e.into_inner()).insert(dir.into()) {
        true => tracing::warn!(%error, "kernels are compiled and not kept"),
        false => tracing::debug!(%error, "a kernel was not kept"),
    }
}

fn encode(output: &Output) -> Vec<u8> {
    let mut body = Vec::with_capacity(16 + output.log.len() + output.cubin.len());
    body.extend((output.log.len() as u64).to_le_bytes());
    body.extend((output.cubin.len() as u64).to_le_bytes());
    body.extend(output.log.as_bytes());
    body.extend(&output.cubin);
    let mut file = Vec::with_capacity(HEAD + body.len());
    file.extend(MAGIC);
    file.extend(Sha256::digest(&body));
    file.extend(&body);
    file
}

fn decode(file: &[u8]) -> Option<Output> {
    let rest = file.strip_prefix(MAGIC)?;
    let (sum, body) = rest.split_at_checked(32)?;
    if Sha256::digest(body).as_slice() != sum {
        return None;
    }
    let (log_len, rest) = body.split_first_chunk::<8>()?;
    let (cubin_len, rest) = rest.split_first_chunk::<8>()?;
    let (log, cubin) = rest.split_at_checked(u64::from_le_bytes(*log_len).try_into().ok()?)?;
    if cubin.len() as u64 != u64::from_le_bytes(*cubin_len) {
        return None;
    }
    Some(Output { cubin: cubin.to_vec(), log: String::from_utf8(log.to_vec()).ok()? })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        // Writing to a String cannot fail.
        let _ = write!(s, "{b:02x}");
        s
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> Output {
        Output { cubin: (0..=255u8).cycle().take(5000).collect(), log: "ptxas info\n".into() }
    }

    #[test]
    fn a_file_reads_back() {
        assert_eq!(decode(&encode(&output())), Some(output()));
    }

    #[test]
    fn no_torn_or_flipped_file_is_accepted() {
        let file = encode(&output());
        for cut in [0, 7, 8, 39, 40, 55, 56, 60, file.len() - 1] {
            assert_eq!(decode(&file[..cut]), None, "cut at {cut}");
        }
        for at in [0, 8, 40, 48, 56, file.len() - 1] {
            let mut bad = file.clone();
            bad[at] ^= 1;
            assert_eq!(decode(&bad), None, "flipped at {at}");
        }
        let mut long = file.clone();
        long.push(0);
        assert_eq!(decode(&long), None);
    }

    #[test]
    fn a_probe_finds_what_is_wrong_and_leaves_nothing() {
        let dir = std::env::temp_dir().join(format!("mk-probe-{}", std::process::id()));
        assert_eq!(probe(Some(dir.clone())).unwrap(), dir);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir_all(&dir).unwrap();
        let says = |dir: Option<&str>| probe(dir.map(PathBuf::from)).unwrap_err().to_string();
        assert!(says(None).contains("neither MK_CACHE_DIR nor"));
        let none = says(Some("/proc/no/such/place"));
        assert!(
            none.contains("/proc/no/such/place") && none.contains("creating it failed"),
            "{none}"
        );
        // A directory in which nothing can be written, whoever asks.
        let locked = says(Some("/proc/self"));
        assert!(locked.contains("writing a file of 1 MiB failed"), "{locked}");
        assert!(locked.contains("set MK_CACHE_DIR"), "{locked}");
    }

    #[test]
    fn every_input_changes_the_key() {
        let unit = Unit { name: "k", cuda: "x", arch: "sm_90a", options: &[] };
        let key = |unit, flags: &[&str], build| {
            let flags: Vec<String> = flags.iter().map(|f| f.to_string()).collect();
            Key::new(unit, &flags, build).0
        };
        let base = key(unit, &["-a"], "1");
        assert_ne!(base, key(Unit { cuda: "y", ..unit }, &["-a"], "1"));
        assert_ne!(base, key(Unit { arch: "sm_90", ..unit }, &["-a"], "1"));
        assert_ne!(base, key(unit, &["-b"], "1"));
        assert_ne!(base, key(unit, &["-a"], "2"));
        assert_eq!(base, key(unit, &["-a"], "1"));
    }
}
