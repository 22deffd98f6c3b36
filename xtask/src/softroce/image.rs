//! What the VM boots: a kernel without its compression, and an initial file system: busybox, modules, rdma-core's
//! library and its provider for soft-RoCE, and, in an archive behind it, the test binaries with the libraries that they
//! need.

use super::packages::{Unpacked, only};
use crate::run::{Result, quiet};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

/// Modules, with those that they need.
const MODULES: &[&str] = &["crc32_generic", "crc32c_generic", "rdma_rxe"];
/// Opened by name, so that no binary lists it: ends of threads need it.
const BY_NAME: &[&str] = &["/lib/x86_64-linux-gnu/libgcc_s.so.1"];
/// The first process.
const INIT: &str = include_str!("init.sh");

/// What does not change with the tests.
pub struct Base {
    pub kernel: PathBuf,
    archive: PathBuf,
}

fn io<T>(path: &Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|e| format!("{}: {e}", path.display()))
}

/// The kernel and the first archive.
pub fn base(unpacked: &Unpacked) -> Result<Base> {
    let base = Base {
        kernel: unpacked.folder.join("vmlinux"),
        archive: unpacked.folder.join("base.cpio"),
    };
    let root = unpacked.folder.join("root");
    let same = fs::read_to_string(root.join("init")).is_ok_and(|init| init == INIT);
    if same && base.kernel.exists() && base.archive.exists() {
        return Ok(base);
    }
    if root.exists() {
        io(&root, fs::remove_dir_all(&root))?;
    }
    for folder in
        ["bin", "sbin", "proc", "sys", "dev", "tmp", "etc/libibverbs.d", "run", "modules", "t"]
    {
        let folder = root.join(folder);
        io(&folder, fs::create_dir_all(&folder))?;
    }
    let guest = unpacked.guest();
    copy(&guest.join("bin/busybox"), &root.join("bin/busybox"))?;
    modules(&unpacked.modules()?, &root.join("modules"))?;
    let ip = guest.join("bin/ip");
    // `rdma` makes the device; busybox's own shell would run busybox's own `ip` whatever PATH says.
    let programs = [ip, guest.join("usr/bin/rdma"), guest.join("bin/dash")];
    closure(&root, &programs, &guest)?;
    io(&root, symlink("../usr/bin/dash", root.join("bin/sh")))?;
    let driver = "etc/libibverbs.d/rxe.driver";
    copy(&guest.join(driver), &root.join(driver))?;
    let provider = only(&guest.join("usr/lib/x86_64-linux-gnu/libibverbs"), "librxe-")?;
    let library = only(&guest.join("usr/lib/x86_64-linux-gnu"), "libibverbs.so.1.")?;
    // Opened by name, too.
    closure(&root, &[provider.clone(), library.clone()], &guest)?;
    let lib = root.join("usr/lib/x86_64-linux-gnu");
    copy(&library, &lib.join("libibverbs.so.1"))?;
    let providers = lib.join("libibverbs");
    io(&providers, fs::create_dir_all(&providers))?;
    copy(&provider, &providers.join(provider.file_name().unwrap_or_default()))?;
    for file in [
        ("etc/passwd", "root:x:0:0:root:/:/bin/sh\n"),
        ("etc/hosts", "127.0.0.1 localhost\n"),
        ("etc/nsswitch.conf", ""),
        ("init", INIT),
    ] {
        io(&root, fs::write(root.join(file.0), file.1))?;
    }
    quiet(Command::new("chmod").arg("755").arg(root.join("init")))?;
    archive(unpacked, &root, &base.archive)?;
    decompress(&only(&unpacked.kernel().join("boot"), "vmlinuz")?, &base.kernel)?;
    Ok(base)
}

/// The archive that the VM has, tests included.
pub fn with_tests(
    unpacked: &Unpacked,
    base: &Base,
    binaries: &[PathBuf],
    script: &str,
) -> Result<(PathBuf, PathBuf)> {
    let root = unpacked.folder.join("tests");
    if root.exists() {
        io(&root, fs::remove_dir_all(&root))?;
    }
    io(&root, fs::create_dir_all(root.join("t")))?;
    closure(&root, binaries, &unpacked.guest())?;
    io(&root, fs::write(root.join("t/run.sh"), script))?;
    let (behind, whole) = (unpacked.folder.join("tests.cpio"), unpacked.folder.join("image.cpio"));
    archive(unpacked, &root, &behind)?;
    let mut bytes = io(&base.archive, fs::read(&base.archive))?;
    bytes.extend(io(&behind, fs::read(&behind))?);
    io(&whole, fs::write(&whole, bytes))?;
    Ok((base.kernel.clone(), whole))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    io(from, fs::copy(from, to)).map(drop)
}

/// Copies modules and a list of them, each behind those that it needs.
fn modules(kernel: &Path, target: &Path) -> Result<()> {
    let file = kernel.join("modules.dep");
    let depends = io(&file, fs::read_to_string(&file))?;
    let builtin = fs::read_to_string(kernel.join("modules.builtin")).unwrap_or_default();
    let mut order: Vec<&str> = Vec::new();
    for module in MODULES {
        let ends = format!("/{module}.ko");
        let line =
            depends.lines().find(|l| l.split(':').next().is_some_and(|m| m.ends_with(&ends)));
        let Some((of, needs)) = line.and_then(|l| l.split_once(':')) else {
            if builtin.lines().any(|l| l.ends_with(&ends)) {
                continue;
            }
            return Err(format!("this kernel has no module {module}"));
        };
        // The nearest is first in the file.
        let all = needs.split_whitespace().rev().chain([of]);
        order.extend(all.filter(|m| !order.contains(m)).collect::<Vec<_>>());
    }
    let name = |m: &str| m.rsplit('/').next().unwrap_or(m).to_string();
    for module in &order {
        copy(&kernel.join(module), &target.join(name(module)))?;
    }
    let list: String = order.iter().map(|m| name(m) + "\n").collect();
    io(target, fs::write(target.join("list"), list))
}

/// Copies programs to `usr/bin`, libraries to where the loader looks, and whatever both are linked with.
fn closure(root: &Path, files: &[PathBuf], guest: &Path) -> Result<()> {
    let (bin, lib) = (root.join("usr/bin"), root.join("usr/lib/x86_64-linux-gnu"));
    for folder in [&bin, &lib, &root.join("lib64")] {
        io(folder, fs::create_dir_all(folder))?;
    }
    let mut needed: BTreeSet<String> = BY_NAME.iter().map(|p| (*p).to_string()).collect();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.contains(".so") {
            copy(file, &bin.join(&name))?;
        }
        let mut ldd = Command::new("ldd");
        let text = quiet(ldd.arg(file).env("LD_LIBRARY_PATH", Unpacked::libraries(guest)))?;
        for line in text.lines() {
            if line.contains("not found") {
                return Err(format!("{}: {}", file.display(), line.trim()));
            }
            let path = line.split_whitespace().find(|w| w.starts_with('/'));
            needed.extend(path.map(str::to_string));
        }
    }
    for path in needed {
        let name = path.rsplit('/').next().unwrap_or(&path);
        let folder = if name.starts_with("ld-linux") { root.join("lib64") } else { lib.clone() };
        copy(Path::new(&path), &folder.join(name))?;
    }
    Ok(())
}

/// An archive of a folder, as kernels read it.
fn archive(unpacked: &Unpacked, folder: &Path, to: &Path) -> Result<()> {
    let busybox = unpacked.guest().join("bin/busybox");
    let script = "cd \"$1\" && find . | LC_ALL=C sort | \"$2\" cpio -o -H newc > \"$3\"";
    let mut shell = Command::new("bash");
    shell.args(["-o", "pipefail", "-c", script, "bash"]).arg(folder).arg(busybox).arg(to);
    quiet(&mut shell).map(drop)
}

/// The kernel behind its own decompressor, which takes seconds under emulation. QEMU boots it by its PVH entry.
fn decompress(from: &Path, to: &Path) -> Result<()> {
    const XZ: &[u8] = b"\xfd7zXZ\x00";
    let image = io(from, fs::read(from))?;
    let at = image.windows(XZ.len()).position(|w| w == XZ);
    let at = at.ok_or_else(|| format!("{} is not compressed by xz", from.display()))?;
    let packed = to.with_extension("xz");
    io(&packed, fs::write(&packed, &image[at..]))?;
    // What follows the stream is the decompressor's.
    let script = "xz -dc --single-stream \"$1\" > \"$2\"";
    quiet(Command::new("bash").args(["-c", script, "bash"]).arg(&packed).arg(to))?;
    io(&packed, fs::remove_file(&packed))
}
