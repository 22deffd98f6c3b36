//! A process per GPU, and everything that goes wrong: each case ends as a typed error on every surviving rank, within
//! its bound, and a new instance or world works afterwards. `docs/reliability.md` has the table.
//!
//! Cases of several processes start this binary again, once per rank, with the variables that torchrun sets. Without
//! enough GPUs a test says `SKIPPED` and passes. To see what happened:
//! `cargo test -p mk-kernels --test faults -- --nocapture --test-threads=1`.

mod children;
mod cost;
mod hosts;
mod local;
mod overlap;
mod processes;
mod rig;
mod same;
mod start;

#[path = "../wide/mod.rs"]
mod pipelines;

use mk::runtime::World;
use mk_skip::{Need, skip};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// GPU tests one after another: they hold whole GPUs and measure how long things take.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Ends the process, and says why, if it lives too long: a hang must not look like a slow test.
pub struct Watchdog {
    _stop: std::sync::mpsc::Sender<()>,
}

impl Watchdog {
    /// Bites after `limit`, unless it is dropped before.
    pub fn new(what: &str, limit: Duration) -> Watchdog {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let what = what.to_string();
        std::thread::spawn(move || {
            let timeout = std::sync::mpsc::RecvTimeoutError::Timeout;
            if stopped.recv_timeout(limit) == Err(timeout) {
                eprintln!("HANG: {what} took more than {limit:?}");
                std::process::abort();
            }
        });
        Watchdog { _stop: stop }
    }
}

/// Worlds of 2 to 4 GPUs in this process, as many as there are; says so when there is none.
pub fn worlds(test: &str) -> Vec<World> {
    let mut out = Vec::new();
    for n in 2..=4 {
        match World::local(n) {
            Ok(world) => out.push(world),
            Err(e) if e.is_no_device() => {}
            Err(e) => println!("{test}: {n} GPUs: {e}"),
        }
    }
    if out.is_empty() {
        skip(Need::Gpus(2), test);
    }
    out
}

/// The largest of [`worlds`].
pub fn world(test: &str) -> Option<World> {
    worlds(test).pop()
}

/// The largest of [`worlds`]; where there is one GPU, two ranks that share it.
pub fn world_or_shared(test: &str) -> Option<World> {
    match World::local(2) {
        Err(_) if World::local(1).is_ok() => World::on_devices(&[0, 0]).ok(),
        _ => world(test),
    }
}

/// Where a process that [`children`] starts begins. In an ordinary run there is nothing to do.
#[test]
fn child() {
    children::run();
}
