//! Mutants of every plan, judged by three that share no code: the verifier, an explorer of all runs, and the CPU executor.
//!
//! Where one of them is wrong, the others say so. CI takes a part of the mutants; `cargo xtask mutants`
//! takes all. The figures are in `docs/verification.md`.

mod accesses;
mod agreement;
mod alike;
mod cases;
#[path = "../../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
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

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

/// Whether `cargo test` takes a part of all cases.
fn few() -> bool {
    !drawn::whole()
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
