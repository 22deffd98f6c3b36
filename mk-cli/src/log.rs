//! Warnings of the libraries on stderr; with `-v` what they do, too, and when.

use crate::terminal;
use mk::runtime::events::EventText;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Says events on stderr; spans are nothing to it.
pub struct Log {
    begin: Instant,
    most: Level,
    spans: AtomicU64,
}

impl Log {
    /// One that says as much as the command line asks for.
    pub(crate) fn new() -> Log {
        let mode = terminal::mode();
        let most = match (mode.quiet, mode.verbose) {
            (true, _) => Level::ERROR,
            (_, true) => Level::DEBUG,
            _ => Level::WARN,
        };
        Log { begin: Instant::now(), most, spans: AtomicU64::new(1) }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most && metadata.target().starts_with("mk")
    }

    fn event(&self, event: &Event<'_>) {
        let EventText { message, fields } = EventText::of(event);
        if *event.metadata().level() <= Level::WARN {
            terminal::say_on_stderr(format_args!("warning: {message}{fields}"));
        } else {
            let seconds = self.begin.elapsed().as_secs_f32();
            terminal::say_on_stderr(format_args!("{seconds:8.3} s  {message}{fields}"));
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
