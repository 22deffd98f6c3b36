//! Ctrl-C while the interpreter is released: long work asks it whether somebody wants it to end.

use pyo3::prelude::*;
use std::sync::{
    Mutex,
    mpsc::{self, RecvTimeoutError},
};
use std::time::Duration;

/// Between two looks at signals.
const LOOK: Duration = Duration::from_millis(50);

/// The exception that ended a wait, for the call that waited.
static CAUSE: Mutex<Option<PyErr>> = Mutex::new(None);

/// Has waits for other processes ask the interpreter.
pub fn listen() {
    mk::runtime::world::ask_while_waiting(|| {
        let asked = Python::try_attach(|py| py.check_signals());
        let Some(Err(error)) = asked else { return false };
        *CAUSE.lock().unwrap_or_else(|e| e.into_inner()) = Some(error);
        true
    });
}

/// What a signal handler raised while this process waited, once.
pub fn cause() -> Option<PyErr> {
    CAUSE.lock().unwrap_or_else(|e| e.into_inner()).take()
}

/// Works in a thread of its own, while this one looks for signals. One that ends the wait leaves the work to itself: it
/// goes on in its thread, and its result is dropped.
pub fn detached<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let receiver = Mutex::new(receiver);
    let worker = std::thread::spawn(move || {
        // Nobody listens any more where a signal ended the wait.
        let _ = sender.send(work());
    });
    loop {
        let look = || receiver.lock().unwrap_or_else(|e| e.into_inner()).recv_timeout(LOOK);
        match py.detach(look) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("a worker that ends has sent"),
            },
        }
    }
}

/// Drops what waits for GPUs or ranks, detached: other threads go on.
pub fn release<T: Send>(what: T) {
    let mut what = Some(what);
    Python::try_attach(|py| py.detach(|| drop(what.take())));
}
