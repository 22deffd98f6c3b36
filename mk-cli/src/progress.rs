//! A sign of life on stderr for what takes longer than a second.

use crate::terminal;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Says what is going on, until it is dropped.
pub struct Progress {
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
    done: Arc<AtomicUsize>,
}

/// How often something is said where no terminal shows it, after the first second.
const PAUSE: Duration = Duration::from_secs(5);

impl Progress {
    /// Begins. Nothing is said in the first second; then each second on a terminal, and every five seconds elsewhere.
    pub fn new(what: impl Into<String>) -> Progress {
        Progress::start(what.into(), None)
    }

    /// [`Progress::new`] of so many things, with how many are done and how long the others will take.
    pub fn of(what: impl Into<String>, total: usize) -> Progress {
        Progress::start(what.into(), Some(total))
    }

    /// One thing more is done.
    pub fn tick(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn start(what: String, total: Option<usize>) -> Progress {
        let done = Arc::new(AtomicUsize::new(0));
        if terminal::mode().quiet {
            return Progress { stop: None, ticker: None, done };
        }
        let (stop, stopped) = channel::<()>();
        let count = done.clone();
        let ticker = std::thread::spawn(move || {
            let terminal = io::stderr().is_terminal();
            let (begin, mut pause) = (Instant::now(), Duration::from_secs(1));
            let mut said = false;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let line = line(&what, count.load(Ordering::Relaxed), total, begin.elapsed());
                // Progress that nobody can read is not worth a failure.
                let _ = if terminal {
                    // The cursor goes back, so that what is printed next begins on a line of its own.
                    write!(io::stderr(), "\x1b[K{line}\r")
                } else {
                    pause = PAUSE;
                    writeln!(io::stderr(), "{line}")
                };
                said = true;
            }
            if said && terminal {
                let _ = write!(io::stderr(), "\x1b[K");
            }
        });
        Progress { stop: Some(stop), ticker: Some(ticker), done }
    }
}

/// `predicting candidates: 40 of 100 ... 4 s, about 6 s left`.
fn line(what: &str, done: usize, total: Option<usize>, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    let Some(total) = total else { return format!("{what} ... {seconds} s") };
    let left = match done {
        0 => String::new(),
        done => {
            let each = elapsed.as_secs_f64() / done as f64;
            format!(", about {:.0} s left", each * total.saturating_sub(done) as f64)
        }
    };
    format!("{what}: {done} of {total} ... {seconds} s{left}")
}

impl Drop for Progress {
    fn drop(&mut self) {
        // Hanging up ends the ticker.
        self.stop.take();
        if let Some(ticker) = self.ticker.take() {
            let _ = ticker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_what_is_done() {
        let said = |done, total, seconds| line("x", done, total, Duration::from_secs(seconds));
        assert_eq!(said(0, None, 3), "x ... 3 s");
        assert_eq!(said(0, Some(100), 3), "x: 0 of 100 ... 3 s");
        assert_eq!(said(40, Some(100), 4), "x: 40 of 100 ... 4 s, about 6 s left");
        assert_eq!(said(100, Some(100), 4), "x: 100 of 100 ... 4 s, about 0 s left");
    }
}
