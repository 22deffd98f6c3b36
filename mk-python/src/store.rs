//! Processes find each other through a `torch.distributed` store.

use crate::errors;
use mk::runtime::{Error, world::Bootstrap};
use pyo3::{exceptions::PyKeyboardInterrupt, prelude::*, types::PyBytes};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Between two looks at a store: the first, and the most.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// The exception that made an exchange fail, for the Python caller that waits for it.
pub type Cause = Arc<Mutex<Option<PyErr>>>;

/// The exception for a failed exchange, which may have come from Python in the first place.
pub fn blame(py: Python<'_>, cause: &Cause, error: &Error) -> PyErr {
    let first = cause.lock().unwrap_or_else(|e| e.into_inner()).take();
    match first {
        Some(first) if first.is_instance_of::<PyKeyboardInterrupt>(py) => first,
        first => {
            let error = errors::runtime(py, error);
            error.set_cause(py, first);
            error
        }
    }
}

/// All-gathers of small messages through a key-value store (`torch.distributed.Store`): each is a key per rank.
///
/// It polls `check` instead of blocking in `get`, so that signals are handled and the ranks that are missing can be
/// named.
pub struct StoreBootstrap {
    store: Py<PyAny>,
    rank: u32,
    world_size: u32,
    /// What its keys begin with; no other world of this store has it.
    prefix: String,
    timeout: Duration,
    /// Exchanges that are done.
    done: u64,
    cause: Cause,
}

impl StoreBootstrap {
    pub fn new(
        store: Py<PyAny>,
        rank: u32,
        world_size: u32,
        prefix: String,
        timeout: Duration,
    ) -> StoreBootstrap {
        StoreBootstrap {
            store,
            rank,
            world_size,
            prefix,
            timeout,
            done: 0,
            cause: Cause::default(),
        }
    }

    /// Where a Python exception is left that ended an exchange.
    pub fn cause(&self) -> Cause {
        self.cause.clone()
    }

    fn key(&self, exchange: u64, rank: u32) -> String {
        format!("{}/{exchange}/{rank}", self.prefix)
    }

    fn exchange(&self, py: Python<'_>, mine: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        let store = self.store.bind(py);
        let begin = Instant::now();
        // Some stores take an empty value for none.
        let message = [b"m", mine].concat();
        store.call_method1("set", (self.key(self.done, self.rank), PyBytes::new(py, &message)))?;
        let mut all = Vec::with_capacity(self.world_size as usize);
        for rank in 0..self.world_size {
            let key = self.key(self.done, rank);
            let mut pause = FIRST_PAUSE;
            while !store.call_method1("check", (vec![&key],))?.extract::<bool>()? {
                if begin.elapsed() > self.timeout {
                    return Err(Failure::Missing(self.missing(py), begin.elapsed()));
                }
                py.check_signals()?;
                py.detach(|| std::thread::sleep(pause));
                pause = (2 * pause).min(MAX_PAUSE);
            }
            let value = store.call_method1("get", (&key,))?;
            let bytes: Vec<u8> = value.extract()?;
            all.push(bytes.get(1..).unwrap_or_default().to_vec());
        }
        if let Some(before) = self.done.checked_sub(1) {
            // Whoever wrote for this exchange has read all of the one before. A store that cannot delete keeps a few
            // bytes.
            let _ = store.call_method1("delete_key", (self.key(before, self.rank),));
        }
        Ok(all)
    }

    /// Which ranks did not come.
    fn missing(&self, py: Python<'_>) -> Vec<u32> {
        let store = self.store.bind(py);
        let absent = |rank: &u32| {
            let seen = store.call_method1("check", (vec![self.key(self.done, *rank)],));
            !seen.and_then(|s| s.extract::<bool>()).unwrap_or(false)
        };
        (0..self.world_size).filter(absent).collect()
    }

    fn failed(&self, what: String, missing: Vec<u32>, waited: Duration) -> Error {
        Error::Rendezvous { rank: self.rank, missing, what, waited }
    }
}

/// Why an exchange failed.
enum Failure {
    /// Ranks that did not come in this time.
    Missing(Vec<u32>, Duration),
    Python(PyErr),
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Failure {
        Failure::Python(error)
    }
}

impl Bootstrap for StoreBootstrap {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        // While the interpreter shuts down nobody can be asked.
        match Python::try_attach(|py| self.exchange(py, mine)) {
            Some(Ok(all)) => {
                self.done += 1;
                Ok(all)
            }
            Some(Err(Failure::Missing(ranks, waited))) => {
                let what = "every rank must make the same worlds in the same order".into();
                Err(self.failed(what, ranks, waited))
            }
            Some(Err(Failure::Python(error))) => {
                let what = error.to_string();
                *self.cause.lock().unwrap_or_else(|e| e.into_inner()) = Some(error);
                Err(self.failed(what, Vec::new(), Duration::ZERO))
            }
            None => {
                let what = "the interpreter is shutting down".into();
                Err(self.failed(what, Vec::new(), Duration::ZERO))
            }
        }
    }
}

/// One exchange by itself, for tests: what every rank sent.
#[pyfunction]
#[pyo3(name = "_all_gather")]
pub fn all_gather(
    py: Python<'_>,
    store: Py<PyAny>,
    rank: u32,
    world_size: u32,
    messages: Vec<Vec<u8>>,
    timeout_s: f64,
) -> PyResult<Vec<Vec<Py<PyBytes>>>> {
    let timeout = crate::options::seconds(py, "timeout_s", timeout_s)?;
    let mut bootstrap = StoreBootstrap::new(store, rank, world_size, "test".into(), timeout);
    let mut all = Vec::new();
    for message in messages {
        let one = py
            .detach(|| bootstrap.all_gather(&message))
            .map_err(|e| blame(py, &bootstrap.cause, &e))?;
        all.push(one.iter().map(|bytes| PyBytes::new(py, bytes).unbind()).collect());
    }
    Ok(all)
}
