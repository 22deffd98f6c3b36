//! The part of its cases that a test takes, where a command of its own takes all.
#![allow(dead_code, reason = "a test reads some of it")]

use std::{env, time::SystemTime};

/// What decides about the draw: `MK_SEED`, or the time. It is printed.
pub fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let seed = env::var("MK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(now);
    println!("MK_SEED={seed}");
    seed
}

/// Whether all cases are wanted: `MK_SWEEP=all`.
pub fn whole() -> bool {
    env::var("MK_SWEEP").is_ok_and(|what| what == "all")
}

/// One in `one_in` of a list, from one on that the seed draws; all where all are wanted. Never none of a list that has some.
pub fn some<T>(list: impl IntoIterator<Item = T>, one_in: usize) -> impl Iterator<Item = T> {
    let list: Vec<T> = list.into_iter().collect();
    let step = if whole() { 1 } else { one_in.min(list.len().max(1)) };
    let first = seed() as usize % step;
    list.into_iter().skip(first).step_by(step)
}
