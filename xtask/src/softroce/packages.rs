//! Debian's packages, downloaded by its own client and unpacked, for the VM and for building crate `ibverbs-sys`.

use crate::{
    fabric::apt,
    run::{Result, entries, name, quiet},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// For the host: the emulator, and what `ibverbs-sys` is built with. With what they need and this machine lacks.
const HOST: &[&str] =
    &["qemu-system-x86", "cmake", "libclang1-14", "libclang-common-14-dev", "libibverbs-dev"];
/// For the VM, in full.
const GUEST: &[&str] = &[
    "busybox-static",
    "kmod",
    "dash",
    "iproute2",
    "libmnl0",
    "libbpf1",
    "libelf1",
    "rdma-core",
    "ibverbs-providers",
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
];
/// The kernel's package of this name depends on that of the present version.
const KERNEL: &str = "linux-image-amd64";
/// Of the kernel's package, what can matter: all of it has 390 MB.
const KERNEL_FILES: &[&str] = &[
    "./boot/vmlinuz*",
    "./lib/modules/*/modules.*",
    "./lib/modules/*/kernel/drivers/infiniband/core/*",
    "./lib/modules/*/kernel/drivers/infiniband/sw/*",
    "./lib/modules/*/kernel/drivers/net/*.ko",
    "./lib/modules/*/kernel/net/*",
    "./lib/modules/*/kernel/crypto/*",
    "./lib/modules/*/kernel/lib/*",
    "./lib/modules/*/kernel/arch/x86/crypto/*",
    "./lib/modules/*/kernel/fs/configfs/*",
];
/// Says that a folder is whole, and by which state of this file.
const STAMP: &str = "whole";

/// Where everything is.
pub struct Unpacked {
    pub folder: PathBuf,
}

impl Unpacked {
    pub fn host(&self) -> PathBuf {
        self.folder.join("host")
    }

    pub fn guest(&self) -> PathBuf {
        self.folder.join("guest")
    }

    pub fn kernel(&self) -> PathBuf {
        self.folder.join("kernel")
    }

    /// Folders of libraries, for a search path.
    pub fn libraries(root: &Path) -> String {
        let at = |p: &str| root.join(p).display().to_string();
        [at("usr/lib/x86_64-linux-gnu"), at("lib/x86_64-linux-gnu")].join(":")
    }

    /// The one kernel's folder of modules.
    pub fn modules(&self) -> Result<PathBuf> {
        only(&self.kernel().join("lib/modules"), "")
    }

    /// The environment in which `ibverbs-sys` is built: cmake, libclang and headers from here. It compiles rdma-core to
    /// have its headers, which configuring makes, so that building is left out.
    pub fn build(&self, command: &mut Command) -> Result<()> {
        let host = self.host();
        let lib = host.join("usr/lib/x86_64-linux-gnu");
        let clang = only(&host.join("usr/lib/llvm-14/lib/clang"), "")?;
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", host.join("usr/bin").display()));
        command.env("LD_LIBRARY_PATH", Unpacked::libraries(&host));
        command.env("LIBCLANG_PATH", &lib).env("CMAKE", self.folder.join("cmake-configure"));
        command.env("PKG_CONFIG_PATH", lib.join("pkgconfig")).env("PKG_CONFIG_SYSROOT_DIR", &host);
        let include = [clang.join("include"), host.join("usr/include")];
        let include = include.map(|p| format!("-I{}", p.display())).join(" ");
        command.env("BINDGEN_EXTRA_CLANG_ARGS", include);
        Ok(())
    }
}

/// The only entry of a folder whose name begins so.
pub fn only(folder: &Path, begin: &str) -> Result<PathBuf> {
    let mut found = entries(folder)?;
    found.retain(|p| name(p).starts_with(begin));
    found.pop().ok_or_else(|| format!("nothing in {} begins with `{begin}`", folder.display()))
}

/// Downloads and unpacks, unless it is there.
pub fn unpack(folder: &Path) -> Result<Unpacked> {
    let unpacked = Unpacked { folder: folder.into() };
    if folder.join(STAMP).exists() {
        return Ok(unpacked);
    }
    if std::env::consts::ARCH != "x86_64" {
        return Err("the VM is an x86-64 one, and so are its test binaries".into());
    }
    eprintln!("==> unpacking a kernel, QEMU and rdma-core from Debian's archive (110 MB)");
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let packages = folder.join("packages");
    fs::create_dir_all(&packages).map_err(|e| format!("{}: {e}", packages.display()))?;
    // Lists of its own: those of the machine may be old or missing.
    let apt = |program: &str| apt(program, &packages, Some(folder));
    quiet(apt("apt-get").arg("update"))?;
    let depends = quiet(apt("apt-cache").args(["depends", KERNEL]))?;
    let kernel = depends.lines().find_map(|l| l.trim().strip_prefix("Depends: "));
    let kernel = kernel.ok_or_else(|| format!("{KERNEL} is not in this archive: Debian has it"))?;
    let simulated =
        apt("apt-get").args(["-s", "install", "--no-install-recommends"]).args(HOST).output();
    let simulated = simulated.map_err(|e| format!("apt-get cannot be run: {e}"))?;
    let simulated = String::from_utf8_lossy(&simulated.stdout).into_owned();
    let missing = simulated.lines().filter_map(|l| l.strip_prefix("Inst ")?.split(' ').next());
    let mut host: Vec<&str> = missing.chain(HOST.iter().copied()).collect();
    host.sort_unstable();
    host.dedup();
    let mut all: Vec<&str> = host.iter().chain(GUEST).copied().chain([kernel]).collect();
    all.sort_unstable();
    all.dedup();
    quiet(apt("apt-get").arg("download").args(&all))?;
    for (names, target) in [(&host[..], unpacked.host()), (GUEST, unpacked.guest())] {
        for name in names {
            let package = only(&packages, &format!("{name}_"))?;
            quiet(Command::new("dpkg-deb").arg("-x").arg(package).arg(&target))?;
        }
    }
    let package = only(&packages, &format!("{kernel}_"))?;
    let target = unpacked.kernel();
    fs::create_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
    let pipe = "dpkg-deb --fsys-tarfile \"$1\" | { shift; tar -x --wildcards \"$@\"; }";
    let mut tar = Command::new("bash");
    tar.args(["-o", "pipefail", "-c", pipe, "bash"]).arg(package).arg("-C").arg(&target);
    quiet(tar.args(KERNEL_FILES))?;
    let kmod = unpacked.guest().join("bin/kmod");
    let version = unpacked.modules()?;
    let version = version.file_name().unwrap_or_default();
    // It goes by the name that it is called by.
    let mut depmod = Command::new("bash");
    let libraries = Unpacked::libraries(&unpacked.guest());
    depmod
        .args(["-c", "exec -a depmod \"$@\"", "bash"])
        .arg(kmod)
        .env("LD_LIBRARY_PATH", libraries);
    quiet(depmod.arg("-b").arg(&target).arg(version))?;
    let wrapper = folder.join("cmake-configure");
    let text = "#!/bin/sh\ncase $1 in --build) exit 0 ;; esac\nexec cmake \"$@\"\n";
    fs::write(&wrapper, text).map_err(|e| format!("{}: {e}", wrapper.display()))?;
    quiet(Command::new("chmod").arg("755").arg(&wrapper))?;
    fs::remove_dir_all(&packages).map_err(|e| format!("{}: {e}", packages.display()))?;
    fs::write(folder.join(STAMP), "").map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(unpacked)
}
