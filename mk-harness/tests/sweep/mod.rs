//! Grids of cases: tests draw a part of them by a seed, and `cargo xtask sweep` runs all.

pub mod drawn;

use rand::{SeedableRng, rngs::SmallRng, seq::SliceRandom};
use std::{
    env,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Checks cases in an order that a seed draws (`MK_SEED`, or the time), each with a seed of its own, on all cores: for
/// `seconds`, or as many as `MK_SWEEP` says, or with `MK_SWEEP=all` all of them. Says the seed, and how many there were.
///
/// # Panics
/// Where `check` does, and where not one case was checked.
pub fn run<T: Sync>(what: &str, mut cases: Vec<T>, seconds: u64, check: impl Fn(&T, u64) + Sync) {
    let (seed, whole) = (drawn::seed(), drawn::whole());
    let given = env::var("MK_SWEEP").ok().and_then(|s| s.parse().ok());
    let seconds = given.unwrap_or(seconds);
    cases.shuffle(&mut SmallRng::seed_from_u64(seed));
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
