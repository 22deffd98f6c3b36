//! Grids of cases: tests draw a part of them by a seed, and `cargo xtask sweep` runs all.

use rand::{SeedableRng, rngs::SmallRng, seq::SliceRandom};
use std::{
    env,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// Checks cases in an order that a seed draws (`MK_SEED`, or the time), each with a seed of its own, on all cores: for
/// `seconds`, or as many as `MK_SWEEP` says, or with `MK_SWEEP=all` all of them. Says the seed, and how many there were.
///
/// # Panics
/// Where `check` does, and where not one case was checked.
pub fn run<T: Sync>(what: &str, mut cases: Vec<T>, seconds: u64, check: impl Fn(&T, u64) + Sync) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let seed = number("MK_SEED").unwrap_or(now);
    let whole = env::var("MK_SWEEP").is_ok_and(|what| what == "all");
    let seconds = number("MK_SWEEP").unwrap_or(seconds);
    cases.shuffle(&mut SmallRng::seed_from_u64(seed));
    println!("MK_SEED={seed}");
    let (begin, next, done) = (Instant::now(), AtomicUsize::new(0), AtomicUsize::new(0));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                while whole || begin.elapsed() < Duration::from_secs(seconds) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(n) else { return };
                    check(case, seed.wrapping_add(n as u64));
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let n = done.into_inner();
    println!("{n} of {} {what} are right, {:.0?}", cases.len(), begin.elapsed());
    assert!(n > 0, "no time for one");
}
