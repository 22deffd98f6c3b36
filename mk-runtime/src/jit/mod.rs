//! CUDA text to CUBIN: NVRTC, its log, and a disk cache.
//!
//! A warm start reads one file and does not load NVRTC at all. NVRTC is opened by absolute path through this crate's
//! own handle, so that another copy on the loader's path cannot take its place.

mod cache;
mod find;
mod log;
mod nvrtc;
mod options;
mod sass;

pub use find::{Nvrtc, find_nvrtc};
pub use log::{EntryReport, Report, Warning};
pub use nvrtc::NvrtcVersion;
pub use options::{JitOptions, Unit};
pub use sass::{SassCounts, count_sass, disassemble, find_nvdisasm};

use crate::{
    Error, Result,
    store::{Kind, Store},
};
use mk_abi::KernelSource;
use std::fmt;
use std::time::{Duration, Instant};

/// A loadable kernel.
#[derive(Clone)]
pub struct Compiled {
    /// The binary that `cuModuleLoadData` takes.
    pub cubin: Vec<u8>,
    /// Registers, spills, shared memory and warnings.
    pub report: Report,
    /// Whether it was read from the disk cache.
    pub from_cache: bool,
    /// How long it took to get, reading the cache included.
    pub compile_time: Duration,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled")
            .field("cubin_bytes", &self.cubin.len())
            .field("report", &self.report)
            .field("from_cache", &self.from_cache)
            .field("compile_time", &self.compile_time)
            .finish()
    }
}

/// Compiles a kernel, or reads it from the cache.
///
/// # Errors
/// [`Error::NvrtcMissing`] or [`Error::NvrtcUnusable`] without a compiler; [`Error::Compile`] with NVRTC's log;
/// [`Error::Spill`] unless `options` or the source allow it; [`Error::Serialised`] for wgmma that ptxas serialised and
/// for a setmaxnreg that it ignored; [`Error::BadSource`] when the entry point is not in the result. A cache that
/// cannot be read or written is not an error.
pub fn compile(source: &KernelSource, options: &JitOptions) -> Result<Compiled> {
    let unit = Unit {
        name: &source.name,
        cuda: &source.cuda,
        arch: &source.arch,
        options: &source.options,
    };
    // The kernel says how much it may spill; a unit by itself may spill nothing.
    let relaxed = JitOptions { allow_spills: true, ..options.clone() };
    let compiled = compile_unit(unit, &relaxed)?;
    if !options.allow_spills {
        refuse_spills(&source.name, &compiled.report, source.spill_bytes)?;
    }
    if compiled.report.entry(&source.entry).is_none() {
        let known: Vec<&str> = compiled.report.entries.iter().map(|e| &*e.name).collect();
        return Err(Error::BadSource {
            kernel: source.name.clone(),
            what: format!("it has no entry point {}; it has: {}", source.entry, known.join(", ")),
        });
    }
    Ok(compiled)
}

/// Compiles any translation unit, or reads it from the cache. See [`compile`].
///
/// # Errors
/// As [`compile`], the entry point excepted.
pub fn compile_unit(unit: Unit<'_>, options: &JitOptions) -> Result<Compiled> {
    let start = Instant::now();
    let flags = flags(unit);
    let nvrtc = find_nvrtc(options)?;
    let store = options.use_cache.then(|| Store::open(options.cache_dir.as_deref())).flatten();
    let build = match &store {
        Some(store) => nvrtc.build_id(store)?,
        None => nvrtc.load()?.build_id(),
    };
    let key = cache::key(unit, &flags, &build);
    if let Some(hit) = store.as_ref().and_then(|s| cache::read(s, &key)) {
        let report = log::parse(&hit.log);
        accept(unit.name, &report, options)?;
        return Ok(Compiled {
            cubin: hit.cubin,
            report,
            from_cache: true,
            compile_time: start.elapsed(),
        });
    }
    let output = nvrtc.load()?.compile(unit, &flags)?;
    if let Some(store) = &store {
        store.write(Kind::Kernel, &key, &cache::encode(&output));
    }
    let report = log::parse(&output.log);
    accept(unit.name, &report, options)?;
    let compile_time = start.elapsed();
    tracing::debug!(kernel = unit.name, ?compile_time, "compiled");
    Ok(Compiled { cubin: output.cubin, report, from_cache: false, compile_time })
}

fn flags(unit: Unit<'_>) -> Vec<String> {
    let mut flags = vec![
        format!("--gpu-architecture={}", unit.arch),
        "--std=c++20".into(),
        "--device-as-default-execution-space".into(),
        "--ptxas-options=-v".into(),
    ];
    flags.extend(unit.options.iter().cloned());
    flags
}

/// Refuses a kernel that stores more than `allowed` bytes of registers per thread in local memory.
fn refuse_spills(kernel: &str, report: &Report, allowed: u32) -> Result<()> {
    match report.all().find(|e| e.spills() && e.spill_store_bytes > allowed) {
        Some(e) => Err(Error::Spill {
            kernel: kernel.into(),
            entry: e.name.clone(),
            store_bytes: e.spill_store_bytes,
            load_bytes: e.spill_load_bytes,
        }),
        None => Ok(()),
    }
}

fn accept(kernel: &str, report: &Report, options: &JitOptions) -> Result<()> {
    if let Some(w) = report.warnings.iter().find(|w| w.is_serialisation()) {
        return Err(Error::Serialised {
            kernel: kernel.into(),
            code: w.code.clone(),
            text: w.text.clone(),
        });
    }
    if !options.allow_spills {
        refuse_spills(kernel, report, 0)?;
    }
    Ok(())
}
