//! The part of its cases that a test takes, where a command of its own takes all.
#![allow(dead_code, reason = "a test reads some of it")]

use std::{
    cell::RefCell,
    collections::BTreeMap,
    env,
    hash::{DefaultHasher, Hash, Hasher},
    panic::Location,
    sync::OnceLock,
    time::SystemTime,
};

/// What decides about draws: `MK_SEED`, or the time at first. It is printed.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = *SEED.get_or_init(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let given = env::var("MK_SEED").ok().and_then(|s| s.parse().ok());
        given.unwrap_or_else(|| since.map_or(0, |d| d.as_secs()))
    });
    println!("MK_SEED={seed}");
    seed
}

/// Whether all cases are wanted: `MK_SWEEP=all`.
pub fn whole() -> bool {
    env::var("MK_SWEEP").is_ok_and(|what| what == "all")
}

/// One in `one_in` of a list, from one on that the seed draws, another one at each call; all where all are wanted. Never
/// none of a list that has some.
#[track_caller]
pub fn some<T>(list: impl IntoIterator<Item = T>, one_in: usize) -> impl Iterator<Item = T> {
    let list: Vec<T> = list.into_iter().collect();
    let step = if whole() { 1 } else { one_in.min(list.len().max(1)) };
    let first = drawn(Location::caller()) as usize % step;
    list.into_iter().skip(first).step_by(step)
}

/// A number for this call from this place: tests have threads of their own, so that the same seed draws the same.
fn drawn(place: &Location<'_>) -> u64 {
    thread_local! {
        static CALLS: RefCell<BTreeMap<(u32, u32), u64>> = const { RefCell::new(BTreeMap::new()) };
    }
    let place = (place.line(), place.column());
    let call = CALLS.with_borrow_mut(|calls| {
        let n = calls.entry(place).or_default();
        *n += 1;
        *n
    });
    let mut hasher = DefaultHasher::new();
    (seed(), place, call).hash(&mut hasher);
    hasher.finish()
}
