//! Runs the command.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// What the command did.
pub struct Done {
    /// Exit status; -1 for a signal.
    pub status: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Done {
    fn of(output: Output) -> Done {
        Done {
            status: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).expect("UTF-8"),
            err: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// Asserts success with nothing but progress on stderr.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.status, 0, "{}{}", self.out, self.err);
        assert!(!self.err.contains("error"), "{}", self.err);
        self.out
    }

    /// Asserts failure with this exit status and these pieces of text on stderr, and no panic.
    #[track_caller]
    pub fn fails(self, status: i32, pieces: &[&str]) {
        assert_eq!(self.status, status, "{}{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        for piece in pieces {
            assert!(self.err.contains(piece), "no `{piece}` in:\n{}", self.err);
        }
    }
}

/// The command, in the root of the workspace.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mk"));
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub fn mk(args: &[&str]) -> Done {
    done(command(args))
}

/// Runs it as it is.
pub fn done(mut command: Command) -> Done {
    Done::of(command.output().expect("the command starts"))
}

/// Runs the command with this text on stdin.
pub fn mk_reads(args: &[&str], stdin: &[u8]) -> Done {
    let mut command = command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let mut pipe = child.stdin.take().expect("piped");
    // A command that reads nothing may have ended.
    let _ = pipe.write_all(stdin);
    drop(pipe);
    Done::of(child.wait_with_output().expect("the command ends"))
}

/// One JSON object on stdout, whether the command succeeds or fails with this exit status.
#[track_caller]
pub fn mk_json(args: &[&str], status: i32) -> serde_json::Value {
    let done = mk(args);
    assert_eq!(done.status, status, "{}{}", done.out, done.err);
    let json: serde_json::Value = serde_json::from_str(&done.out).expect(&done.out);
    assert_eq!((&json["schema"], &json["ok"]), (&1.into(), &(status == 0).into()), "{json}");
    json
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A directory that goes away.
pub struct TempDir(PathBuf);

impl TempDir {
    /// A new one.
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        TempDir(path)
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_string()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Best effort: the target directory is cleaned by others, too.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
