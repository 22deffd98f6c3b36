//! Files that the command writes, and the cache that it keeps.
#![cfg(unix)]

use crate::command::{TempDir, command, done, mk};
use mk_skip::{Need, skip};
use std::os::unix::fs::{PermissionsExt, symlink};

const EMIT: [&str; 3] = ["emit", "examples/gemm.mk", "-o"];

#[track_caller]
fn emit(path: &str) {
    mk(&[&EMIT[..], &[path]].concat()).ok();
}

#[test]
fn a_link_stays_and_its_file_is_written() {
    let dir = TempDir::new();
    let (file, link, second) = (dir.file("real.cu"), dir.file("link.cu"), dir.file("second.cu"));
    std::fs::write(&file, "old").expect("written");
    symlink("real.cu", &link).expect("a link");
    symlink(&link, &second).expect("a link to it");
    emit(&second);
    for link in [&link, &second] {
        assert!(std::fs::symlink_metadata(link).expect("there").is_symlink(), "{link}");
    }
    assert!(!std::fs::symlink_metadata(&file).expect("there").is_symlink());
    assert!(std::fs::read_to_string(&file).expect("reads").contains("mk_kernel"));
    // A link to a file that is not there makes it.
    let (missing, dangling) = (dir.file("missing.cu"), dir.file("dangling.cu"));
    symlink("missing.cu", &dangling).expect("a link");
    emit(&dangling);
    assert!(std::fs::read_to_string(&missing).expect("reads").contains("mk_kernel"));
    let circle = dir.file("circle.cu");
    symlink("circle.cu", &circle).expect("a link");
    mk(&[&EMIT[..], &[&circle]].concat()).fails(1, &["cannot write", "circle.cu", "links"]);
    // Nothing else is left there.
    let names = std::fs::read_dir(dir.file("")).expect("a folder").count();
    assert_eq!(names, 6);
}

#[test]
fn a_file_is_replaced_as_a_whole() {
    let dir = TempDir::new();
    let (file, before) = (dir.file("x.cu"), dir.file("before"));
    std::fs::write(&file, "old").expect("written");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).expect("a mode");
    std::fs::hard_link(&file, &before).expect("a second name");
    emit(&file);
    assert_eq!(std::fs::read_to_string(&before).expect("reads"), "old");
    let mode = std::fs::metadata(&file).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    // A device is written to.
    emit("/dev/null");
    mk(&[&EMIT[..], &["/dev/full"]].concat()).fails(1, &["cannot write /dev/full"]);
}

/// Said once, whatever the number of kernels, and no failure.
#[test]
fn a_cache_that_cannot_be_used_is_said_once() {
    let build = ["build", "gemm(a, b)", "--shape", "a=64x64", "--shape", "b=64x64"];
    for (cache, why) in [
        // Where nothing can be written, whoever asks.
        ("/proc/self", "writing a file failed"),
        ("/proc/no/such", "creating it failed"),
        ("/dev/null/cache", "creating it failed"),
    ] {
        let mut command = command(&build);
        command.env("MK_CACHE_DIR", cache);
        let done = done(command);
        if done.err.contains("NVRTC") {
            return skip(Need::Nvrtc, "");
        }
        let says = format!("warning: kernels are compiled and not kept: the kernel cache {cache}");
        assert!(done.err.contains(&says) && done.err.contains(why), "{}", done.err);
        assert_eq!(done.err.matches("warning: ").count(), 1, "{}", done.err);
        assert!(done.status == 0 && done.out.contains("registers"), "{}", done.out);
    }
    let mut quiet = command(&[&build[..], &["-q"]].concat());
    quiet.env("MK_CACHE_DIR", "/proc/self");
    assert_eq!(done(quiet).err, "");
}
