//! Compiles CUDA files as the JIT does, and disassembles them, for `cargo xtask sass`: `FOLDER/NAME.sass` for every
//! `NAME.cu`. Needs NVRTC and nvdisasm, and no GPU.
//!
//! A first line `// options: …` holds further compiler options.

use mk_runtime::jit::{JitOptions, Unit, compile_unit, find_nvdisasm};
use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};

/// The only architecture that kernels are emitted for.
const ARCH: &str = "sm_90a";

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [folder, sources @ ..] = paths.as_slice() else {
        return Err("usage: disassemble FOLDER FILE.cu…".into());
    };
    let nvdisasm = find_nvdisasm().ok_or("no nvdisasm: run `cargo xtask setup`")?;
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), String> {
        while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            disassemble(source, folder, &nvdisasm)
                .map_err(|e| format!("{}: {e}", source.display()))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err("panicked".into())))
    })?;
    Ok(())
}

fn disassemble(source: &Path, folder: &Path, nvdisasm: &Path) -> Result<(), Box<dyn Error>> {
    let cuda = fs::read_to_string(source)?;
    let first = cuda.lines().next().and_then(|l| l.strip_prefix("// options: "));
    let options: Vec<String> = first.unwrap_or("").split_whitespace().map(str::to_string).collect();
    // The same name for all: it is part of mangled names.
    let unit = Unit { name: "kernel", cuda: &cuda, arch: ARCH, options: &options };
    let jit = JitOptions { use_cache: false, allow_spills: true, ..JitOptions::default() };
    let cubin = compile_unit(unit, &jit)?.cubin;
    let stem = source.file_stem().ok_or("has no name")?;
    let out = folder.join(stem);
    let binary = out.with_extension("cubin");
    fs::write(&binary, cubin)?;
    let result = Command::new(nvdisasm).arg(&binary).output();
    fs::remove_file(&binary)?;
    let result = result?;
    if !result.status.success() {
        return Err(String::from_utf8_lossy(&result.stderr).trim().into());
    }
    // Renamed into place: an interrupted run leaves no half of a listing behind.
    let part = out.with_extension("sass.part");
    fs::write(&part, result.stdout)?;
    Ok(fs::rename(part, out.with_extension("sass"))?)
}
