//! The VM: QEMU without KVM, its serial line as log, its exit status that of the tests.

use super::packages::Unpacked;
use crate::run::Result;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Memory of the VM: the image three times, and arenas of 64 MiB writes on both sides.
const MIB: u32 = 2048;
const CPUS: u32 = 2;
const BOOT: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr tsc=reliable no_timer_check \
    random.trust_cpu=on";

/// What came out.
pub struct Outcome {
    /// The exit status of the tests.
    pub status: i32,
    pub log: String,
}

/// Boots, shows what it says, and waits for its end.
///
/// # Errors
/// When it ends without a verdict, or not in time.
pub fn run(
    unpacked: &Unpacked,
    (kernel, image): &(PathBuf, PathBuf),
    limit: u64,
    log: &Path,
) -> Result<Outcome> {
    let host = unpacked.host();
    let lib = host.join("usr/lib/x86_64-linux-gnu");
    let guest = Unpacked::libraries(&unpacked.guest());
    let mut qemu = Command::new("timeout");
    qemu.args(["-k", "5", &limit.to_string()]).arg(host.join("usr/bin/qemu-system-x86_64"));
    qemu.env("LD_LIBRARY_PATH", format!("{}:{guest}", Unpacked::libraries(&host)));
    qemu.env("QEMU_MODULE_DIR", lib.join("qemu"));
    qemu.arg("-L").arg(host.join("usr/share/qemu")).arg("-L").arg(host.join("usr/share/seabios"));
    qemu.args(["-M", "pc", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"]);
    qemu.args(["-smp", &CPUS.to_string(), "-m", &MIB.to_string()]);
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(image).args(["-append", BOOT]);
    qemu.args(["-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
    qemu.stdin(Stdio::null()).stdout(Stdio::piped());
    eprintln!("==> softroce: booting");
    let mut child = qemu.spawn().map_err(|e| format!("QEMU cannot be run: {e}"))?;
    let mut text = String::new();
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).split(b'\n') {
            let line = line.map_err(|e| format!("the VM's serial line: {e}"))?;
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches('\r');
            println!("{line}");
            text.push_str(line);
            text.push('\n');
        }
    }
    let status = child.wait().map_err(|e| format!("QEMU: {e}"))?;
    fs::write(log, &text).map_err(|e| format!("{}: {e}", log.display()))?;
    match verdict(status.code(), &text) {
        Some(status) => Ok(Outcome { status, log: text }),
        None if matches!(status.code(), Some(124 | 137)) => {
            Err(format!("the VM did not end within {limit} s; {} has its log", log.display()))
        }
        None => {
            Err(format!("the VM ended without a verdict ({status}); {} has its log", log.display()))
        }
    }
}

/// The device ends QEMU with `status * 2 + 1`. QEMU's own errors look alike, so that the log must say it, too.
fn verdict(code: Option<i32>, log: &str) -> Option<i32> {
    let status = code.filter(|c| c & 1 == 1)? >> 1;
    log.contains(&format!("EXIT {status}\n")).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_said_twice() {
        assert_eq!(verdict(Some(1), "## [9.1] EXIT 0\n"), Some(0));
        assert_eq!(verdict(Some(203), "## [9.1] EXIT 101\n"), Some(101));
        assert_eq!(verdict(Some(1), "qemu: no such file\n"), None);
        assert_eq!(verdict(Some(0), "## [9.1] EXIT 0\n"), None);
        assert_eq!(verdict(Some(124), "## [9.1] EXIT 62\n"), None);
        assert_eq!(verdict(None, ""), None);
    }
}
