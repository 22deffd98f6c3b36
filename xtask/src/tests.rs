//! Runs the workspace's tests, one executable more at a time than there are cores: many of them have one long test, and
//! some wait for peers.

use crate::{
    counts::Counts,
    run::{Pulse, Result, cargo, quiet, target},
};
use serde_json::Value;
use std::{
    collections::VecDeque,
    env,
    io::{Read, pipe},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

/// The executables that take longest, which begin first.
const LONGEST: [&str; 7] =
    ["network", "transport", "mutants", "nvrtc", "executor", "cli", "mk_runtime"];

/// Something that runs tests and says what libtest says.
struct Job {
    name: String,
    command: Command,
}

/// Builds all tests, runs them, shows what they print, and counts. That some fail is no error yet: [`Counts::finish`].
///
/// # Errors
/// Where they do not build, or one ends without a result.
pub fn run(counts: &mut Counts) -> Result<()> {
    let skipped = counts.begin_skips()?;
    let jobs = jobs()?;
    eprintln!("==> tests, in {} executables", jobs.len());
    let (begin, heard) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let pulse = Pulse::of("tests", Arc::clone(&heard));
    let (queue, counts_) = (Mutex::new(VecDeque::from(jobs)), Mutex::new(&mut *counts));
    let wrong = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || {
        while let Some(mut job) = next() {
            job.command.env("MK_SKIPPED", &skipped);
            let said = output(&mut job);
            let mut counts = counts_.lock().unwrap_or_else(PoisonError::into_inner);
            heard.fetch_add(1, Ordering::Relaxed);
            let failed = match said {
                Ok((text, success)) => {
                    println!("{text}");
                    (!counts.read_results(&text) && !success)
                        .then(|| format!("{} ended without a result", job.name))
                }
                Err(error) => Some(format!("{}: {error}", job.name)),
            };
            wrong.lock().unwrap_or_else(PoisonError::into_inner).extend(failed);
        }
    };
    thread::scope(|s| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        (0..=cores).for_each(|_| {
            s.spawn(work);
        });
    });
    drop(pulse);
    counts.end_skips(&skipped);
    eprintln!("    tests: {:.1} s", begin.elapsed().as_secs_f64());
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Executables by those that take longest, then the examples of documentation.
fn jobs() -> Result<Vec<Job>> {
    eprintln!("==> building the tests");
    let begin = Instant::now();
    let mut build = cargo(&["test", "--workspace", "--no-run", "--message-format"]);
    let built = build.arg("json-render-diagnostics").stderr(std::process::Stdio::inherit());
    let built = built.output().map_err(|e| format!("cargo cannot be run: {e}"))?;
    if !built.status.success() {
        return Err("the tests do not build".into());
    }
    eprintln!("    building the tests: {:.1} s", begin.elapsed().as_secs_f64());
    let libraries = libraries()?;
    let text = String::from_utf8_lossy(&built.stdout);
    let mut jobs: Vec<Job> = text.lines().filter_map(|line| job(line, &libraries)).collect();
    let place = |job: &Job| LONGEST.iter().position(|n| *n == job.name).unwrap_or(LONGEST.len());
    jobs.sort_by_key(place);
    if jobs.is_empty() {
        return Err("cargo built no tests".into());
    }
    let command = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
    jobs.push(Job { name: "documentation".into(), command });
    Ok(jobs)
}

/// What a line of cargo's says to run, as cargo would run it.
fn job(line: &str, libraries: &str) -> Option<Job> {
    let said: Value = serde_json::from_str(line).ok()?;
    if said["profile"]["test"] != true {
        return None;
    }
    let executable = said["executable"].as_str()?;
    let folder = Path::new(said["manifest_path"].as_str()?).parent()?;
    let name = said["target"]["name"].as_str()?.to_owned();
    let package = said["package_id"].as_str()?.rsplit(['/', '#']).next()?.split('@').next()?;
    let mut command = Command::new(executable);
    command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder).env("CARGO_PKG_NAME", package);
    command.env("CARGO", cargo(&[]).get_program()).env("LD_LIBRARY_PATH", libraries);
    Some(Job { name, command })
}

/// Where executables find Rust's libraries and the workspace's.
fn libraries() -> Result<String> {
    let sysroot = quiet(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let mut list = vec![PathBuf::from(sysroot.trim()), target().join("debug/deps")];
    list.extend(env::var_os("LD_LIBRARY_PATH").iter().flat_map(env::split_paths));
    let list = env::join_paths(list).map_err(|e| e.to_string())?;
    Ok(list.to_string_lossy().into_owned())
}

/// What it prints, and whether it succeeds.
fn output(job: &mut Job) -> std::io::Result<(String, bool)> {
    let begin = Instant::now();
    let (mut out, end) = pipe()?;
    let mut child = job.command.stdout(end.try_clone()?).stderr(end).spawn()?;
    // Its ends of the pipe are the child's alone, so that reading ends with it.
    job.command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut bytes = Vec::new();
    out.read_to_end(&mut bytes)?;
    let status = child.wait()?;
    let seconds = begin.elapsed().as_secs_f64();
    let text = format!("     {} ({seconds:.1} s)\n{}", job.name, String::from_utf8_lossy(&bytes));
    Ok((text, status.success()))
}
