//! Mutants of every plan, judged by three that share no code: the verifier, an explorer of all runs, and the CPU executor.
//!
//! Where one of them is wrong, the others say so. CI takes a part of the mutants; `MK_MUTANTS=all`, or `cargo xtask
//! mutants`, takes all. The figures are in `docs/verification.md`.

mod accesses;
mod agreement;
mod alike;
mod cases;
mod explorer;
#[path = "../common/kinds.rs"]
mod kinds;
mod mutate;
mod operands;
#[path = "../common/random.rs"]
mod random;
mod states;
mod symmetry;
mod values;
mod verifier;

use std::{
    env,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

/// Every so-manieth of a list, from one on that the seed draws (`MK_SEED` repeats it); with `MK_MUTANTS=all`, all.
fn drawn<T>(list: impl IntoIterator<Item = T>, stride: usize) -> impl Iterator<Item = T> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let seed = env::var("MK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(now);
    println!("MK_SEED={seed}");
    let stride = if few() { stride } else { 1 };
    list.into_iter().skip(seed as usize % stride).step_by(stride)
}

/// Whether `cargo test` takes a part of all cases.
fn few() -> bool {
    env::var_os("MK_MUTANTS").is_none_or(|v| v != "all")
}

/// Calls `f` for every element, on as many threads as there are cores, and gathers what it returns in no order.
fn in_parallel<T: Sync, R: Send>(list: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, out) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                while let Some(x) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = f(x);
                    out.lock().expect("no thread panics with the lock").push(result);
                }
            });
        }
    });
    out.into_inner().expect("no thread panics with the lock")
}
