//! The part of its cases that a test takes, where a command of its own takes all.
#![allow(dead_code, reason = "a test reads some of it")]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    env,
    hash::{DefaultHasher, Hash, Hasher},
    panic::Location,
    sync::OnceLock,
    time::SystemTime,
};

/// What decides about draws: `MK_SEED`, or the time at first. It is printed, once by each thread.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    thread_local! {
        static SAID: Cell<bool> = const { Cell::new(false) };
    }
    let seed = *SEED.get_or_init(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let given = env::var("MK_SEED").ok().and_then(|s| s.parse().ok());
        given.unwrap_or_else(|| since.map_or(0, |d| d.as_secs()))
    });
    if !SAID.replace(true) {
        println!("MK_SEED={seed}");
    }
    seed
}

/// Whether all cases are wanted: `MK_SWEEP=all`.
pub fn whole() -> bool {
    env::var("MK_SWEEP").is_ok_and(|what| what == "all")
}

/// One of each `one_in` neighbours in a list, drawn for each of them and anew at each call; all where all are wanted.
/// Neighbours share most of what the loops that made the list run over, so that all of it is drawn from; one from the
/// same place of each would be the same value of the innermost loop. Never none of a list that has some.
#[track_caller]
pub fn some<T>(list: impl IntoIterator<Item = T>, one_in: usize) -> impl Iterator<Item = T> {
    let step = if whole() { 1 } else { one_in };
    let call = drawn(Location::caller());
    let list: Vec<T> = list.into_iter().collect();
    let n = list.len();
    list.into_iter().enumerate().filter_map(move |(at, item)| {
        let from = at - at % step;
        let mut hasher = DefaultHasher::new();
        (call, from).hash(&mut hasher);
        let of = step.min(n - from) as u64;
        (at - from == (hasher.finish() % of) as usize).then_some(item)
    })
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
