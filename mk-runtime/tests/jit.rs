//! Real compilations, without a GPU. Needs NVRTC; says SKIPPED without it.

mod common;

use common::{TempDir, has_nvrtc, kernel};
use mk_runtime::Error;
use mk_runtime::jit::{self, JitOptions};
use mk_skip::{Need, skip};
use std::process::{Command, Stdio};
use std::time::Duration;

const GEMM: &str = include_str!("kernels/gemm_tile.cu");
const SMALL: &str = "extern \"C\" __global__ void small(int* x) { *x = 1; }";

fn small() -> mk_abi::KernelSource {
    kernel("small", SMALL, 1)
}

#[test]
fn a_wgmma_kernel_becomes_a_cubin() {
    if !has_nvrtc() {
        return;
    }
    let dir = TempDir::new("wgmma");
    let compiled = jit::compile(&kernel("gemm_tile", GEMM, 1), &dir.options()).unwrap();
    assert_eq!(&compiled.cubin[..4], b"\x7fELF");
    let entry = compiled.report.entry("gemm_tile").unwrap();
    assert!(entry.registers > 16 && !entry.spills(), "{entry:?}");
    assert_eq!(entry.smem_static_bytes % 8, 0);
    assert_eq!(compiled.report.warnings, []);
    match jit::disassemble(&compiled.cubin) {
        Ok(sass) => {
            let counts = jit::count_sass(&sass);
            assert_eq!(counts.get("HGMMA"), 4, "{counts:?}");
            assert_eq!(counts.get("UTMALDG"), 2, "{counts:?}");
        }
        Err(Error::ToolMissing { .. }) => skip(Need::Program("nvdisasm"), ""),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn spills_are_errors_unless_allowed_and_serialisation_always() {
    if !has_nvrtc() {
        return;
    }
    let dir = TempDir::new("strict");
    let spill = kernel("spill", include_str!("kernels/spill.cu"), 1);
    match jit::compile(&spill, &dir.options()) {
        Err(Error::Spill { store_bytes, .. }) => assert!(store_bytes > 0),
        other => panic!("{other:?}"),
    }
    let serial = kernel("serialised", include_str!("kernels/serialised.cu"), 1);
    match jit::compile(&serial, &dir.options()) {
        Err(Error::Serialised { code, .. }) => assert_eq!(code, "C7511"),
        other => panic!("{other:?}"),
    }
    let lenient = JitOptions { allow_spills: true, ..dir.options() };
    // Both were cached: what is allowed is decided on every read, not when the file was written.
    assert!(jit::compile(&spill, &lenient).unwrap().from_cache);
    assert!(jit::compile(&spill, &dir.options()).is_err());
    assert!(matches!(jit::compile(&serial, &lenient), Err(Error::Serialised { .. })));
}

#[test]
fn mistakes_are_reported() {
    if !has_nvrtc() {
        return;
    }
    let dir = TempDir::new("mistakes");
    let mut source = kernel("small", "extern \"C\" __global__ void small() { oops; }", 1);
    match jit::compile(&source, &dir.options()) {
        Err(Error::Compile { log, .. }) => assert!(log.contains("oops"), "{log}"),
        other => panic!("{other:?}"),
    }
    source.cuda = SMALL.into();
    source.entry = "large".into();
    match jit::compile(&source, &dir.options()) {
        Err(error @ Error::BadSource { .. }) => {
            assert!(error.to_string().contains("it has: small"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    source.options = vec!["--no-such-option".into()];
    match jit::compile(&source, &dir.options()) {
        Err(Error::Nvrtc { what, .. }) => assert!(what.contains("--no-such-option"), "{what}"),
        other => panic!("{other:?}"),
    }
    source.options = vec![];
    source.arch = "compute_90a".into();
    match jit::compile(&source, &dir.options()) {
        Err(error @ Error::Nvrtc { .. }) => assert!(error.to_string().contains("sm_90a")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_warm_start_is_fast_and_the_same() {
    if !has_nvrtc() {
        return;
    }
    let dir = TempDir::new("warm");
    let source = kernel("gemm_tile", GEMM, 1);
    let cold = jit::compile(&source, &dir.options()).unwrap();
    let warm = jit::compile(&source, &dir.options()).unwrap();
    println!("cold {:?}, warm {:?}", cold.compile_time, warm.compile_time);
    assert!(!cold.from_cache && warm.from_cache);
    assert_eq!((cold.cubin, cold.report), (warm.cubin, warm.report));
    assert!(cold.compile_time < Duration::from_secs(10));
    // The budget is 10 ms; a busy test machine gets some slack.
    assert!(warm.compile_time < Duration::from_millis(50));
}

#[test]
fn child_warm() {
    // Only as a child process of another test.
    if std::env::var_os("MK_TEST_CHILD").is_none() {
        return;
    }
    let compiled = jit::compile(&kernel("gemm_tile", GEMM, 1), &JitOptions::default()).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    println!(
        "MESSAGE cached {} loaded {} in {:?}",
        compiled.from_cache,
        maps.contains("libnvrtc"),
        compiled.compile_time
    );
}

#[test]
fn a_warm_process_does_not_load_nvrtc() {
    if !has_nvrtc() {
        return;
    }
    let dir = TempDir::new("warm-process");
    let run = || {
        let output = child("child_warm").env("MK_CACHE_DIR", &dir.0).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let cold = run();
    assert!(cold.contains("MESSAGE cached false loaded true"), "{cold}");
    let warm = run();
    println!("{warm}");
    assert!(warm.contains("MESSAGE cached true loaded false"), "{warm}");
}

#[test]
fn a_damaged_entry_is_compiled_again_and_replaced() {
    if !has_nvrtc() {
        return;
    }
    let dir = TempDir::new("damage");
    let good = jit::compile(&small(), &dir.options()).unwrap();
    let entries = |ext: &str| -> Vec<_> {
        std::fs::read_dir(&dir.0)
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.extension().is_some_and(|x| x == ext))
            .collect()
    };
    let [entry] = &entries("mkc")[..] else { panic!("one entry") };
    let bytes = std::fs::read(entry).unwrap();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 0x40;
    for bad in [&bytes[..bytes.len() / 2], &flipped, b""] {
        std::fs::write(entry, bad).unwrap();
        let again = jit::compile(&small(), &dir.options()).unwrap();
        assert!(!again.from_cache);
        assert_eq!(again.cubin, good.cubin);
        assert!(jit::compile(&small(), &dir.options()).unwrap().from_cache);
    }
    // The remembered version too.
    let [memo] = &entries("txt")[..] else { panic!("one memo") };
    std::fs::write(memo, "garbage\nnvrtc 1.0").unwrap();
    assert!(jit::compile(&small(), &dir.options()).unwrap().from_cache);
}

#[test]
fn a_cache_that_cannot_be_written_costs_only_time() {
    if !has_nvrtc() {
        return;
    }
    let options =
        JitOptions { cache_dir: Some("/proc/no/such/place".into()), ..JitOptions::default() };
    assert!(!jit::compile(&small(), &options).unwrap().from_cache);
}

#[test]
fn threads_may_share_a_cache() {
    if !has_nvrtc() {
        return;
    }
    let dir = TempDir::new("threads");
    let cubins: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| jit::compile(&small(), &dir.options()).unwrap().cubin))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(cubins.windows(2).all(|w| w[0] == w[1]));
    assert!(jit::compile(&small(), &dir.options()).unwrap().from_cache);
}

/// Runs one test of this file in a process of its own.
fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).stdin(Stdio::null());
    command.env("MK_TEST_CHILD", "1");
    command
}

#[test]
fn child_compiles_many() {
    // Only as a child process of another test.
    if std::env::var_os("MK_TEST_CHILD").is_none() {
        return;
    }
    let Some(dir) = std::env::var_os("MK_CACHE_DIR") else {
        return;
    };
    for round in 0..20 {
        let text = format!("{SMALL} // {}", round % 4);
        let compiled = jit::compile(&kernel("small", &text, 1), &JitOptions::default()).unwrap();
        assert_eq!(&compiled.cubin[..4], b"\x7fELF");
        if round % 4 == 0 {
            // Somebody's disk fills, or a node dies in the middle: truncate whatever is there.
            for entry in std::fs::read_dir(&dir).unwrap().flatten() {
                if entry.path().extension().is_some_and(|x| x == "mkc") {
                    let _ = std::fs::write(entry.path(), b"torn");
                }
            }
        }
    }
}

#[test]
fn eight_processes_may_share_a_cache_that_is_damaged_meanwhile() {
    if !has_nvrtc() {
        return;
    }
    let dir = TempDir::new("processes");
    let children: Vec<_> = (0..8)
        .map(|_| {
            child("child_compiles_many")
                .env("MK_CACHE_DIR", &dir.0)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut process in children {
        assert!(process.wait().unwrap().success());
    }
    let left = std::fs::read_dir(&dir.0).unwrap().flatten();
    let temps = left.filter(|e| e.file_name().to_string_lossy().starts_with(".tmp"));
    assert_eq!(temps.count(), 0);
}

#[test]
fn child_without_nvrtc() {
    // Only as a child process of another test.
    if std::env::var_os("MK_TEST_CHILD").is_none() {
        return;
    }
    match jit::compile(&small(), &JitOptions::default()) {
        Err(error) => println!("MESSAGE {error}"),
        Ok(_) => println!("MESSAGE compiled"),
    }
}

#[test]
fn a_missing_nvrtc_is_an_error_that_says_how_to_get_it() {
    let dir = TempDir::new("missing");
    let output = child("child_without_nvrtc")
        .env("MK_NVRTC_DIR", &dir.0)
        .env("MK_CACHE_DIR", &dir.0)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("MESSAGE NVRTC (libnvrtc.so.13) was not found"), "{text}");
    assert!(text.contains("cargo xtask setup"), "{text}");
    assert!(text.contains("pip install nvidia-cuda-nvrtc==13.0.88"), "{text}");
}

#[test]
fn a_file_that_is_no_library_is_an_error() {
    let dir = TempDir::new("unusable");
    std::fs::write(dir.0.join("libnvrtc.so.13"), "not an ELF file").unwrap();
    let options = JitOptions { nvrtc_dir: Some(dir.0.clone()), ..dir.options() };
    match jit::compile(&small(), &options) {
        Err(error @ Error::NvrtcUnusable { .. }) => {
            assert!(error.to_string().contains("cargo xtask setup"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
