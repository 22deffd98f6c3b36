//! A part of a list that a seed draws, where a grid of its own has all.

use std::{env, time::SystemTime};

/// One in `one_in` of a list, from one on that the seed draws (`MK_SEED`, or the time); with `MK_SWEEP=all`, all. Never
/// none of a list that has some.
pub fn some<T>(list: impl IntoIterator<Item = T>, one_in: usize) -> impl Iterator<Item = T> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let seed: u64 = env::var("MK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(now);
    let whole = env::var("MK_SWEEP").is_ok_and(|what| what == "all");
    println!("MK_SEED={seed}");
    let list: Vec<T> = list.into_iter().collect();
    let step = if whole { 1 } else { one_in.min(list.len().max(1)) };
    list.into_iter().skip(seed as usize % step).step_by(step)
}
