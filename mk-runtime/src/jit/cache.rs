//! The disk cache: one file per kernel, published by rename, checked on every read.
//!
//! File: magic (8 bytes), key (32), SHA-256 of key and the rest (32), log length (u64, little-endian), CUBIN length (u64), log,
//! CUBIN. The key is that of the kernel, so that a file that was copied over another one is not taken for it. What is no regular
//! file, or larger than any kernel, is not read: a link may lead to a device without an end, or a fifo.
//! Several processes may write the same key at once: each renames a complete file of its own into place, and any of
//! them is right. A file that does not check is treated as absent and replaced. A cache that cannot be used at all
//! costs time and is not an error: the first failure of a directory is a warning in the log, and [`probe`] finds it.

use super::Unit;
use crate::{Error, env};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

const MAGIC: &[u8; 8] = b"mkcubin3";
const HEAD: usize = 8 + 32 + 32 + 8 + 8;
/// Most bytes of a file that is read.
const MAX_BYTES: u64 = 256 << 20;

/// What a compilation leaves: the binary and the log, from which the report is parsed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) cubin: Vec<u8>,
    pub(super) log: String,
}

/// Hash of everything that the result depends on.
pub(super) struct Key([u8; 32]);

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
        Key(hash.finalize().into())
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
        self.dir.join(format!("{}.mkc", hex(&key.0)))
    }

    pub(super) fn read(&self, key: &Key) -> Option<Output> {
        let path = self.entry(key);
        let bytes = match read_file(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a cached kernel cannot be read");
                return None;
            }
        };
        match decode(&bytes, key) {
            Ok(output) => Some(output),
            Err(why) => {
                tracing::warn!(path = %path.display(), why, "a cached kernel is not used, and is compiled again");
                None
            }
        }
    }

    pub(super) fn write(&self, key: &Key, output: &Output) {
        self.publish(&self.entry(key), &encode(output, key));
    }

    /// What [`Cache::remember`] stored under a stamp.
    pub(super) fn recall(&self, stamp: &str) -> Option<String> {
        let text = String::from_utf8(read_file(&self.memo(stamp)).ok()?).ok()?;
        let (sum, value) = text.split_once('\n')?;
        (sum == memo_sum(stamp, value)).then(|| value.to_string())
    }

    /// Stores a short text under a stamp.
    pub(super) fn remember(&self, stamp: &str, value: &str) {
        let text = format!("{}\n{value}", memo_sum(stamp, value));
        self.publish(&self.memo(stamp), text.as_bytes());
    }

    fn memo(&self, stamp: &str) -> PathBuf {
        let hash = hex(&Sha256::digest(stamp.as_bytes()));
        self.dir.join(format!("nvrtc-{}.txt", &hash[..16]))
    }

    fn publish(&self, path: &Path, bytes: &[u8]) {
        let temp = temporary(&self.dir);
        let done = fs::write(&temp, bytes)
            .map_err(|error| unusable(&self.dir, "writing a file", &error))
            .and_then(|()| self.replace(&temp, path));
        if let Err(error) = done {
            warn_once(&self.dir, &error);
            // Best effort: the directory may be read-only or full.
            let _ = fs::remove_file(&temp);
        }
    }

    /// Renames a file into an entry. One in whose place a folder stands is lost, and no other.
    fn replace(&self, temp: &Path, path: &Path) -> Result<(), Error> {
        let Err(error) = fs::rename(temp, path) else { return Ok(()) };
        if !path.is_dir() {
            return Err(unusable(&self.dir, "renaming a file", &error));
        }
        tracing::warn!(path = %path.display(), "a kernel is not kept: a folder has its name; remove it");
        // Best effort, as above.
        let _ = fs::remove_file(temp);
        Ok(())
    }
}

/// The bytes of a regular file that is no larger than a kernel may be. Opening a fifo does not wait for its other end.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is no regular file: remove it"));
    }
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

fn digest(key: &Key, body: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(key.0).chain_update(body).finalize().into()
}

fn encode(output: &Output, key: &Key) -> Vec<u8> {
    let mut body = Vec::with_capacity(16 + output.log.len() + output.cubin.len());
    body.extend((output.log.len() as u64).to_le_bytes());
    body.extend((output.cubin.len() as u64).to_le_bytes());
    body.extend(output.log.as_bytes());
    body.extend(&output.cubin);
    let mut file = Vec::with_capacity(HEAD + body.len());
    file.extend(MAGIC);
    file.extend(key.0);
    file.extend(digest(key, &body));
    file.extend(&body);
    file
}

/// What a file holds, or why it is not the kernel of a key.
fn decode(file: &[u8], key: &Key) -> Result<Output, &'static str> {
    let rest = file.strip_prefix(MAGIC).ok_or("it is of another version, or no cached kernel")?;
    let (own, rest) = rest.split_at_checked(32).ok_or("it is cut short")?;
    if own != key.0 {
        return Err("it is the file of another kernel");
    }
    let (sum, body) = rest.split_at_checked(32).ok_or("it is cut short")?;
    if digest(key, body) != sum {
        return Err("it is damaged");
    }
    parts(body).ok_or("it is damaged")
}

fn parts(body: &[u8]) -> Option<Output> {
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

    const KEY: Key = Key([7; 32]);

    fn output() -> Output {
        Output { cubin: (0..=255u8).cycle().take(5000).collect(), log: "ptxas info\n".into() }
    }

    #[test]
    fn a_file_reads_back() {
        assert_eq!(decode(&encode(&output(), &KEY), &KEY), Ok(output()));
    }

    #[test]
    fn no_torn_or_flipped_file_is_accepted() {
        let file = encode(&output(), &KEY);
        for cut in [0, 7, 8, 39, 40, 71, 72, 87, 88, 92, file.len() - 1] {
            assert!(decode(&file[..cut], &KEY).is_err(), "cut at {cut}");
        }
        for at in [0, 8, 40, 72, 80, 88, file.len() - 1] {
            let mut bad = file.clone();
            bad[at] ^= 1;
            assert!(decode(&bad, &KEY).is_err(), "flipped at {at}");
        }
        let mut long = file.clone();
        long.push(0);
        assert!(decode(&long, &KEY).is_err());
    }

    /// A cache in a folder of its own.
    fn scratch(name: &str) -> (Cache, PathBuf) {
        let dir = std::env::temp_dir().join(format!("mk-cache-{name}-{}", std::process::id()));
        (Cache::open(Some(&dir)).unwrap(), dir)
    }

    #[test]
    fn a_file_copied_over_another_is_not_taken_for_it() {
        let (cache, dir) = scratch("copied");
        let other = Key([9; 32]);
        cache.write(&KEY, &output());
        assert_eq!(cache.read(&KEY), Some(output()));
        fs::copy(cache.entry(&KEY), cache.entry(&other)).unwrap();
        assert_eq!(cache.read(&other), None);
        let file = fs::read(cache.entry(&KEY)).unwrap();
        assert_eq!(decode(&file, &other), Err("it is the file of another kernel"));
        // Nor with the other key written into it.
        let mut forged = file;
        forged[8..40].copy_from_slice(&other.0);
        assert_eq!(decode(&forged, &other), Err("it is damaged"));
        cache.remember("one", "12.9");
        fs::copy(cache.memo("one"), cache.memo("two")).unwrap();
        assert_eq!((cache.recall("one").as_deref(), cache.recall("two")), (Some("12.9"), None));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn only_regular_files_of_some_size_are_read() {
        let (cache, dir) = scratch("kinds");
        let entry = cache.entry(&KEY);
        let says = |entry: &Path| read_file(entry).unwrap_err().to_string();
        let make: [(&str, &dyn Fn()); 4] = [
            ("an endless file", &|| std::os::unix::fs::symlink("/dev/zero", &entry).unwrap()),
            ("a fifo", &|| {
                let made = std::process::Command::new("mkfifo").arg(&entry).status().unwrap();
                assert!(made.success());
            }),
            ("a directory", &|| fs::create_dir(&entry).unwrap()),
            ("a large file", &|| fs::File::create(&entry).unwrap().set_len(MAX_BYTES + 1).unwrap()),
        ];
        for (what, make) in make {
            make();
            assert_eq!(cache.read(&KEY), None, "{what}");
            let why = says(&entry);
            assert!(why.contains("regular file") || why.contains("larger than"), "{what}: {why}");
            let folder = entry.is_dir() && !entry.is_symlink();
            let temp = dir.join("temp");
            fs::write(&temp, "x").unwrap();
            // Only this entry is lost, or it is replaced: the cache is as usable as before.
            cache.replace(&temp, &entry).unwrap();
            assert!(!temp.exists(), "{what}");
            assert_eq!(entry.is_dir(), folder, "{what}");
            if folder { fs::remove_dir(&entry) } else { fs::remove_file(&entry) }.unwrap();
        }
        // A link to a kernel of the same key is one.
        cache.write(&KEY, &output());
        fs::rename(&entry, dir.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(dir.join("elsewhere"), &entry).unwrap();
        assert_eq!(cache.read(&KEY), Some(output()));
        fs::remove_dir_all(dir).unwrap();
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
