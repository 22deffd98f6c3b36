//! The thread that runs an [`Engine`].

use super::engine::{Attached, Engine};
use super::{Counts, NetFault};
use crate::error::TransportError;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Steps without work before it sleeps, and how long.
const SPINS: u32 = 2000;
const NAP: Duration = Duration::from_micros(50);

enum Request {
    Attach(Box<Attached>, Sender<Result<(), TransportError>>),
    Detach(u32, Instant, Sender<bool>),
}

/// What others see of the thread.
#[derive(Debug, Default)]
struct Shared {
    fault: Option<NetFault>,
    counts: Counts,
}

/// A running proxy. Dropping it closes its end of the network.
#[derive(Debug)]
pub struct Proxy {
    rank: u32,
    requests: Option<Sender<Request>>,
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<Result<(), TransportError>>>,
}

impl Proxy {
    /// Starts the thread. `drain` bounds the wait for writes that are under way when it is closed.
    ///
    /// # Errors
    /// [`TransportError::Memory`] where the system has no thread for it.
    pub fn start(rank: u32, engine: Engine, drain: Duration) -> Result<Proxy, TransportError> {
        let (requests, inbox) = channel();
        let shared = Arc::<Mutex<Shared>>::default();
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name(format!("mk-proxy-{rank}"));
        let thread = thread.spawn(move || run(engine, &inbox, &theirs, drain)).map_err(|e| {
            TransportError::Memory { what: format!("no thread for the proxy of rank {rank}: {e}") }
        })?;
        Ok(Proxy { rank, requests: Some(requests), shared, thread: Some(thread) })
    }

    /// Begins to send for an instance.
    ///
    /// # Errors
    /// As [`Engine::attach`]; [`TransportError::Closed`] when the thread has ended.
    pub fn attach(&self, instance: Attached) -> Result<(), TransportError> {
        let (answer, answered) = channel();
        self.ask(Request::Attach(Box::new(instance), answer))?;
        answered.recv().map_err(|_| TransportError::Closed)?
    }

    /// Waits until nothing of an instance is under way, for at most `limit`, and forgets it. False when the time was
    /// over: then it stays.
    ///
    /// # Errors
    /// [`TransportError::Closed`] when the thread has ended.
    pub fn detach(&self, instance: u32, limit: Duration) -> Result<bool, TransportError> {
        let (answer, answered) = channel();
        self.ask(Request::Detach(instance, Instant::now() + limit, answer))?;
        answered.recv().map_err(|_| TransportError::Closed)
    }

    /// What went wrong first, if something did.
    pub fn fault(&self) -> Option<NetFault> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            let closed = NetFault { rank: self.rank, edge: None, error: TransportError::Closed };
            return self.look().fault.clone().or(Some(closed));
        }
        self.look().fault.clone()
    }

    /// Figures, as of a moment ago.
    pub fn counts(&self) -> Counts {
        self.look().counts
    }

    /// Waits for writes under way and closes this end.
    ///
    /// # Errors
    /// As [`Engine::shutdown`].
    pub fn close(mut self) -> Result<(), TransportError> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), TransportError> {
        self.requests = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => {
                let what = format!("the proxy of rank {} has panicked", self.rank);
                Err(TransportError::Memory { what })
            }
            None => Ok(()),
        }
    }

    fn ask(&self, request: Request) -> Result<(), TransportError> {
        let requests = self.requests.as_ref().ok_or(TransportError::Closed)?;
        requests.send(request).map_err(|_| TransportError::Closed)
    }

    fn look(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(rank = self.rank, %error, "a proxy was not closed");
        }
    }
}

fn run(
    mut engine: Engine,
    inbox: &Receiver<Request>,
    shared: &Mutex<Shared>,
    drain: Duration,
) -> Result<(), TransportError> {
    let mut leaving: Vec<(u32, Instant, Sender<bool>)> = Vec::new();
    let mut idle = 0;
    loop {
        match inbox.try_recv() {
            Ok(Request::Attach(instance, answer)) => {
                // A caller that is gone needs no answer.
                let _ = answer.send(engine.attach(*instance));
            }
            Ok(Request::Detach(instance, until, answer)) => leaving.push((instance, until, answer)),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return engine.shutdown(drain),
        }
        idle = if engine.step() { 0 } else { idle + 1 };
        leaving.retain(|(instance, until, answer)| {
            let gone = engine.detach(*instance);
            let over = gone || Instant::now() >= *until;
            if over {
                let _ = answer.send(gone);
            }
            !over
        });
        // Figures are for people, and a fault is for pollers: neither is worth a lock in each step.
        if idle == 0 || idle == SPINS || engine.fault().is_some() {
            let mut seen = shared.lock().unwrap_or_else(PoisonError::into_inner);
            seen.counts = engine.counts();
            if seen.fault.is_none() {
                seen.fault = engine.fault().cloned();
            }
        }
        if idle >= SPINS || engine.fault().is_some() {
            idle = SPINS;
            engine.watch();
            engine.nap(NAP);
        } else if idle > 0 {
            std::hint::spin_loop();
            if idle % 64 == 0 {
                std::thread::yield_now();
            }
        }
    }
}
