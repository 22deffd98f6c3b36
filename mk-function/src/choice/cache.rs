//! Measured winners, kept on disk.
//!
//! One file for each pipeline with its sizes, number of ranks, target, GPU and version of mk; it holds all of these,
//! and is used only where they are equal. It is written to a temporary name and renamed, as kernels in the cache are. A
//! file that does not read is a note, not an error: it costs time only.

use super::space;
use mk_codegen::{
    cost::DeviceModel,
    settings::{self, Config, Facts},
};
use mk_runtime::jit::JitOptions;
use mk_syntax::{Bound, Program};
use std::{
    fs, io,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};
use thiserror::Error;

/// What a measurement holds for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    fields: Vec<(&'static str, String)>,
    facts: Facts,
}

/// A winner.
#[derive(Clone, Debug, PartialEq)]
pub struct Winner {
    /// Its config.
    pub config: Config,
    /// Its median time, in milliseconds.
    pub ms: f64,
}

/// Why a cache file is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the tuning cache's file {} is not used: {what}; `{by}` writes it again", path.display())]
pub struct Damaged {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
    /// The command that writes it.
    pub by: &'static str,
}

/// The command that writes winners.
const TUNE: &str = "mk tune";

impl Key {
    /// Of a pipeline on `ranks` GPUs of that name.
    pub fn new(program: &Program, bound: &Bound, ranks: u32, target: &str, gpu: &str) -> Key {
        // Neither names of the caller's nor comments decide a plan, but tensors' names are in it.
        let text = format!(
            "{:?} {:?} {:?} {:?}",
            program.tensors(),
            program.symbols(),
            program.nodes(),
            program.results()
        );
        let fields = vec![
            ("mk", env!("CARGO_PKG_VERSION").to_string()),
            ("gpu", gpu.to_string()),
            ("target", target.to_string()),
            ("ranks", ranks.to_string()),
            ("sizes", format!("{bound:?}")),
            ("program", text),
        ];
        Key { fields, facts: space::facts(program, bound, ranks) }
    }

    fn name(&self) -> String {
        // FNV-1a. Two keys of one name would only evict each other.
        let bytes =
            self.fields.iter().flat_map(|(name, v)| name.bytes().chain([0]).chain(v.bytes()));
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        format!("{hash:016x}.tune")
    }
}

/// The directory of winners.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// One more with every change of what a setting's text means.
const HEAD: &str = "mk tune 3";

impl Cache {
    /// Beside the kernel cache of these options; `None` where that is off or has no place.
    pub fn new(jit: &JitOptions) -> Option<Cache> {
        let root = jit.use_cache.then(|| jit.cache_root()).flatten()?;
        Some(Cache { dir: root.join("tune") })
    }

    /// The winner that was stored, if one was.
    ///
    /// # Errors
    /// [`Damaged`], for a file that does not read or is of another key.
    pub fn recall(&self, key: &Key) -> Result<Option<Winner>, Damaged> {
        let path = self.dir.join(key.name());
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Damaged { what: unread(&path, &e), path, by: TUNE }),
        };
        decode(&text, key).map(Some).map_err(|what| Damaged { path, what, by: TUNE })
    }

    /// What is said of a winner that is not used for what it says.
    pub(super) fn outdated(&self, key: &Key, what: String) -> Damaged {
        Damaged { path: self.dir.join(key.name()), what, by: TUNE }
    }

    /// Stores a winner.
    ///
    /// # Errors
    /// Where the directory or the file cannot be written.
    pub fn store(&self, key: &Key, winner: &Winner) -> io::Result<PathBuf> {
        let path = self.dir.join(key.name());
        self.publish(&path, &encode(key, winner))?;
        Ok(path)
    }

    /// The figures that `mk probe --install` left for GPUs of this name.
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn model(&self, gpu: &str) -> Result<Option<DeviceModel>, Damaged> {
        let path = self.model_path(gpu);
        let by = "mk probe --install";
        let failed = |what: String| Damaged { path: path.clone(), what, by };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(unread(&path, &e))),
        };
        let model = DeviceModel::parse(&text).map_err(|e| failed(e.to_string()))?;
        Ok(Some(model).filter(|m| m.gpu == gpu))
    }

    /// Stores figures for [`Cache::model`].
    ///
    /// # Errors
    /// Where the directory or the file cannot be written.
    pub fn store_model(&self, model: &DeviceModel) -> io::Result<PathBuf> {
        let path = self.model_path(&model.gpu);
        self.publish(&path, &model.to_json())?;
        Ok(path)
    }

    /// `NVIDIA-H200.model.json`. What is in the file says of which GPU it is.
    fn model_path(&self, gpu: &str) -> PathBuf {
        let name = gpu.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        self.dir.join(format!("{name}.model.json"))
    }

    fn publish(&self, path: &std::path::Path, text: &str) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        // Machines that share the directory have processes of the same number.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let temporary = path.with_extension(format!("{}-{now:x}.tmp", std::process::id()));
        let done = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
        if done.is_err() {
            // Remove the rest of a failed write.
            let _ = fs::remove_file(&temporary);
        }
        done.map_err(|e| {
            io::Error::new(e.kind(), format!("{}: {}", path.display(), unread(path, &e)))
        })
    }
}

/// Why a file cannot be read, or written.
fn unread(path: &std::path::Path, error: &io::Error) -> String {
    if path.is_dir() { "it is a folder: remove it".into() } else { error.to_string() }
}

fn encode(key: &Key, winner: &Winner) -> String {
    let mut text = format!("{HEAD}\n");
    for (name, value) in &key.fields {
        // One line each, whatever the value.
        text += &format!("{name} {}\n", value.escape_debug());
    }
    text += &format!("config {}\n", settings::write(&winner.config, &key.facts));
    text + &format!("ms {}\nend\n", winner.ms)
}

fn decode(text: &str, key: &Key) -> Result<Winner, String> {
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        return Err(format!("it does not begin with `{HEAD}`"));
    }
    let mut field = |name: &str| {
        let line = lines.next().ok_or_else(|| format!("it ends before `{name}`"))?;
        let value = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' '));
        value.ok_or_else(|| format!("`{line}` is not `{name}`"))
    };
    for (name, value) in &key.fields {
        if field(name)? != value.escape_debug().to_string() {
            return Err(format!("it is of another {name}"));
        }
    }
    let config = field("config")?;
    let config =
        space::read(config, key.facts.ranks).map_err(|e| format!("{e} (of this version)"))?;
    let ms = field("ms")?.parse::<f64>().ok().filter(|ms| *ms > 0.0 && ms.is_finite());
    let ms = ms.ok_or("its time is no time")?;
    match lines.next() {
        Some("end") => Ok(Winner { config, ms }),
        _ => Err("it is cut short".into()),
    }
}
