//! Starts this binary again, once per rank, and listens to what the processes say.

use crate::{Watchdog, hosts, processes, same, start};
use mk::runtime::World;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Which case a process runs.
const CASE: &str = "MK_FAULT_CASE";
/// Marks the lines that are meant for the parent.
const MARK: &str = "@@";

/// Every case that processes run, by name. The world is made by the case where making it is what is tested.
type Case = fn(rank: u32, size: u32);
const CASES: &[(&str, Case)] = &[
    ("same", same::child),
    ("never_launches", processes::never_launches),
    ("never_launches_engine", processes::never_launches_engine),
    ("never_launches_queued", processes::never_launches_queued),
    ("aborted", processes::aborted),
    ("aborted_engine", processes::aborted_engine),
    ("aborted_behind", processes::aborted_behind),
    ("left", processes::left),
    ("bound_meanwhile", processes::bound_meanwhile),
    ("killed_at_work", processes::killed_at_work),
    ("killed_at_work_engine", processes::killed_at_work_engine),
    ("killed_at_work_queued", processes::killed_at_work_queued),
    ("killed_while_awaited", processes::killed_while_awaited),
    ("corrupted_word", processes::corrupted_word),
    ("other_values", processes::other_values),
    ("other_plans", processes::other_plans),
    ("other_kernel", processes::other_kernel),
    ("out_of_order", processes::out_of_order),
    ("overlapping", processes::overlapping),
    ("absent", start::absent),
    ("hosts", start::hosts),
    ("hosts_same", hosts::same),
    ("hosts_at_work", hosts::at_work),
    ("hosts_aborted", hosts::aborted),
    ("hosts_other_kernel", hosts::other_kernel),
    ("one_gpu_for_two", start::one_gpu_for_two),
    ("isolated", start::isolated),
    ("no_such_gpu", start::no_such_gpu),
];

/// Runs the case that this process was started for, if it was.
pub fn run() {
    let Ok(case) = std::env::var(CASE) else { return };
    let _watchdog = Watchdog::new(&case, Duration::from_secs(100));
    let number =
        |name| std::env::var(name).ok().and_then(|v| v.parse().ok()).expect("set by the parent");
    let found = CASES.iter().find(|(name, _)| *name == case).expect("a case");
    (found.1)(number("RANK"), number("WORLD_SIZE"));
    say("DONE");
}

/// Tells the parent.
pub fn say(what: impl AsRef<str>) {
    // One line: errors have several.
    println!("{MARK}{}", what.as_ref().replace('\n', " | "));
    std::io::stdout().flush().expect("the parent listens");
}

/// The world that torchrun's variables describe.
pub fn world() -> World {
    World::from_env().expect("connects")
}

/// Processes of one case.
pub struct Children {
    case: &'static str,
    all: Vec<(u32, Child)>,
    lines: Receiver<(u32, String)>,
    heard: Vec<(u32, String)>,
    /// Ranks that were killed, whether or not they have gone yet.
    killed: Vec<u32>,
}

impl Children {
    /// Starts ranks `ranks` of a world of `size`.
    pub fn start(case: &'static str, ranks: impl IntoIterator<Item = u32>, size: u32) -> Children {
        Children::start_with(case, ranks, size, |_| Vec::new())
    }

    /// As [`Children::start`], with variables more for each rank.
    pub fn start_with(
        case: &'static str,
        ranks: impl IntoIterator<Item = u32>,
        size: u32,
        variables: impl Fn(u32) -> Vec<(&'static str, String)>,
    ) -> Children {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = format!("{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        let (say, lines) = channel();
        let begin = |rank: u32| {
            let mut child = Command::new(std::env::current_exe().expect("this binary"))
                .args(["child", "--exact", "--nocapture", "--test-threads=1"])
                .env(CASE, case)
                .envs([("RANK", rank), ("LOCAL_RANK", rank)].map(|(k, v)| (k, v.to_string())))
                .envs(
                    [("WORLD_SIZE", size), ("LOCAL_WORLD_SIZE", size)]
                        .map(|(k, v)| (k, v.to_string())),
                )
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", "29500")
                .env("TORCHELASTIC_RUN_ID", &run)
                .envs(variables(rank))
                .stdout(Stdio::piped())
                .stdin(Stdio::null())
                .spawn()
                .expect("starts");
            let out = BufReader::new(child.stdout.take().expect("piped"));
            let say = say.clone();
            std::thread::spawn(move || {
                for line in out.lines().map_while(Result::ok) {
                    match line.split_once(MARK) {
                        Some((_, told)) => drop(say.send((rank, told.to_string()))),
                        None => eprintln!("  [rank {rank}] {line}"),
                    }
                }
            });
            (rank, child)
        };
        let all = ranks.into_iter().map(begin).collect();
        Children { case, all, lines, heard: Vec::new(), killed: Vec::new() }
    }

    /// Waits until `count` processes have said `what`.
    pub fn wait_for(&mut self, what: &str, count: usize, limit: Duration) {
        let begin = Instant::now();
        while self.heard.iter().filter(|(_, l)| l.starts_with(what)).count() < count {
            match self.lines.recv_timeout(limit.saturating_sub(begin.elapsed())) {
                Ok(line) => self.heard.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let heard = std::mem::take(&mut self.heard);
                    self.kill_all();
                    panic!(
                        "{}: {count} ranks did not say {what} within {limit:?}; heard {heard:?}",
                        self.case
                    );
                }
            }
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self, rank: u32) {
        let found = self.all.iter_mut().find(|(r, _)| *r == rank).expect("a rank");
        found.1.kill().expect("kills");
        self.killed.push(rank);
    }

    /// Waits for the end of all (but those that were killed), and gives what they said after `prefix`, by rank.
    pub fn finish(mut self, prefix: &str, limit: Duration) -> Vec<(u32, String)> {
        let living = self
            .all
            .iter_mut()
            .filter(|(rank, _)| !self.killed.contains(rank))
            .filter_map(|(_, c)| c.try_wait().ok()?.is_none().then_some(()))
            .count();
        let already = self.heard.iter().filter(|(_, l)| l == "DONE").count();
        self.wait_for("DONE", living.max(already), limit);
        for (rank, child) in &mut self.all {
            let status = child.wait().expect("ends");
            let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
            assert!(status.success() || killed, "{}: rank {rank} ended with {status}", self.case);
        }
        self.heard.extend(self.lines.try_iter());
        self.heard.sort_by_key(|(rank, _)| *rank);
        let said = self
            .heard
            .iter()
            .filter_map(|(r, l)| Some((*r, l.strip_prefix(prefix)?.trim().to_string())));
        said.collect()
    }

    fn kill_all(&mut self) {
        for (_, child) in &mut self.all {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.kill_all();
    }
}
