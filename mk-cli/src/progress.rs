//! A sign of life on stderr for what takes longer than a second.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Says what is going on, until it is dropped.
pub struct Progress {
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins. Nothing is said in the first second; then each second on a terminal, and ever more rarely elsewhere.
    pub fn new(what: impl Into<String>) -> Progress {
        let what = what.into();
        let (stop, stopped) = channel::<()>();
        let terminal = io::stderr().is_terminal();
        let ticker = std::thread::spawn(move || {
            let (begin, mut pause) = (Instant::now(), Duration::from_secs(1));
            let mut said = false;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let seconds = begin.elapsed().as_secs();
                // Progress that nobody can read is not worth a failure.
                let _ = if terminal {
                    // The cursor goes back, so that what is printed next begins on a line of its own.
                    write!(io::stderr(), "\x1b[K{what} ... {seconds} s\r")
                } else {
                    pause = (pause * 2).min(Duration::from_secs(30));
                    writeln!(io::stderr(), "{what} ... {seconds} s")
                };
                said = true;
            }
            if said && terminal {
                let _ = write!(io::stderr(), "\x1b[K");
            }
        });
        Progress { stop: Some(stop), ticker: Some(ticker) }
    }
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
