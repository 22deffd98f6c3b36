//! Running other programs, with errors that say what was run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// What went wrong, for a person.
pub type Result<T> = std::result::Result<T, String>;

/// The workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Where cargo leaves its files.
pub fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target)
}

/// `cargo`, in the workspace.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// How long a step may be silent.
const SILENCE: Duration = Duration::from_secs(30);

/// Says from time to time how long a step has taken, until it is dropped.
pub struct Pulse {
    end: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Pulse {
    /// From now on. `heard` counts what the step has said; while that grows, nothing is added.
    pub fn of(title: &str, heard: Arc<AtomicUsize>) -> Pulse {
        let (end, ended) = mpsc::channel();
        let (title, begin) = (title.to_string(), Instant::now());
        let thread = thread::spawn(move || {
            let mut last = heard.load(Ordering::Relaxed);
            while ended.recv_timeout(SILENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let now = heard.load(Ordering::Relaxed);
                if now == last {
                    eprintln!("    … {title}: {:.0} s so far", begin.elapsed().as_secs_f64());
                }
                last = now;
            }
        });
        Pulse { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        drop(self.end.take());
        // It ends with its channel, and a panic in it says so itself.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Runs a step to its end, and says what it is and how long it took.
pub fn step(title: &str, command: &mut Command) -> Result<()> {
    eprintln!("==> {title}");
    let begin = Instant::now();
    let _pulse = Pulse::of(title, Arc::default());
    let status = command.status().map_err(|e| format!("{title}: cannot run {command:?}: {e}"))?;
    if !status.success() {
        return Err(format!("{title} failed ({status})"));
    }
    eprintln!("    {title}: {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Runs a command that has nothing to show: what it prints, or the last line of its complaint.
pub fn quiet(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{program} cannot be run: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no message");
    Err(format!("{program} failed: {}", last.trim()))
}

/// What is in a folder, by name.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let list = fs::read_dir(folder).map_err(failed)?;
    let mut paths: Vec<_> =
        list.map(|entry| Ok(entry.map_err(failed)?.path())).collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// All files below a folder, in the folders to `enter`, and not where links lead.
pub fn below(folder: &Path, enter: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for path in entries(&folder)? {
            if !path.is_dir() || path.is_symlink() {
                found.push(path);
            } else if enter(&name(&path)) {
                folders.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The last part of a path.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A file's text.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Puts what is built in a folder of its own in the place of `target` in one step: an interrupted install leaves
/// nothing half done.
pub fn install(target: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let staging = target.with_file_name(format!("{}.{}", name(target), std::process::id()));
    let result = build(&staging).and_then(|()| {
        if target.exists() {
            fs::remove_dir_all(target)
                .map_err(|e| format!("cannot replace {}: {e}", target.display()))?;
        }
        fs::rename(&staging, target).map_err(|e| format!("cannot create {}: {e}", target.display()))
    });
    if result.is_err() {
        // Remove the rest of the attempt; the error says what happened.
        let _ = fs::remove_dir_all(&staging);
    }
    result
}
