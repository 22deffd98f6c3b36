//! Signs of life of what takes longer than a second: events of level INFO, as every line of these libraries is one of
//! `tracing`.
//!
//! What goes on is a list that any thread adds to ([`doing`]); it is said while somebody watches ([`watch`]): after one
//! second, and then every five.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

/// Before the first line.
const FIRST: Duration = Duration::from_secs(1);
/// Between lines.
const PAUSE: Duration = Duration::from_secs(5);

/// What goes on in this process, the earliest first, with numbers to find it by.
static LIST: Mutex<(u64, Vec<(u64, String)>)> = Mutex::new((0, Vec::new()));

fn list() -> MutexGuard<'static, (u64, Vec<(u64, String)>)> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that goes on until it is dropped.
pub(crate) struct Doing(u64);

/// Adds to what goes on: ``proving `mlp` ``.
pub(crate) fn doing(what: String) -> Doing {
    let (next, all) = &mut *list();
    *next += 1;
    all.push((*next, what));
    Doing(*next)
}

impl Drop for Doing {
    fn drop(&mut self) {
        list().1.retain(|(id, _)| *id != self.0);
    }
}

/// Says what goes on until it is dropped.
pub(crate) struct Watch {
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

/// Begins.
pub(crate) fn watch() -> Watch {
    watch_every(FIRST, PAUSE)
}

fn watch_every(first: Duration, pause: Duration) -> Watch {
    let (stop, stopped) = channel::<()>();
    let ticker = Builder::new().name("mk-progress".into()).spawn(move || {
        let (begin, mut next) = (Instant::now(), first);
        while stopped.recv_timeout(next) == Err(RecvTimeoutError::Timeout) {
            next = pause;
            let what: Vec<String> = list().1.iter().map(|(_, what)| what.clone()).collect();
            if !what.is_empty() {
                tracing::info!("{} ... {} s", what.join(", "), begin.elapsed().as_secs());
            }
        }
    });
    // Where no thread can be had, nothing is said.
    Watch { stop: Some(stop), ticker: ticker.ok() }
}

impl Drop for Watch {
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
    use mk_runtime::events::EventText;
    use std::sync::{Arc, Mutex};
    use tracing::{Event, Level, Metadata, Subscriber, span};

    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<(Level, String)>>>);

    impl Subscriber for Heard {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == module_path!().trim_end_matches("::tests")
        }
        fn event(&self, event: &Event<'_>) {
            let text = EventText::of(event).message;
            self.0.lock().unwrap().push((*event.metadata().level(), text));
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn what_goes_on_is_said_while_it_does() {
        let heard = Heard::default();
        // Of the whole process: the line is of another thread.
        let _ = tracing::subscriber::set_global_default(heard.clone());
        let said = || std::mem::take(&mut *heard.0.lock().unwrap());
        let tick = Duration::from_millis(20);
        let proving = doing("proving `a`".into());
        std::thread::sleep(3 * tick);
        assert!(said().is_empty(), "nobody watches");
        let watching = watch_every(tick, tick);
        let compiling = doing("compiling `b`".into());
        std::thread::sleep(5 * tick);
        drop(proving);
        std::thread::sleep(5 * tick);
        drop(compiling);
        std::thread::sleep(3 * tick);
        let lines = said();
        let texts: Vec<&str> = lines.iter().map(|(_, text)| text.as_str()).collect();
        assert!(lines.iter().all(|(level, _)| *level == Level::INFO), "{lines:?}");
        assert_eq!(texts.first().copied(), Some("proving `a`, compiling `b` ... 0 s"));
        assert!(texts.contains(&"compiling `b` ... 0 s"), "{texts:?}");
        drop(watching);
        let _more = doing("more".into());
        std::thread::sleep(3 * tick);
        assert!(said().is_empty(), "nobody watches any more");
        // What takes less than the first pause says nothing.
        drop(watch_every(Duration::from_secs(1), tick));
        assert!(said().is_empty());
    }
}
