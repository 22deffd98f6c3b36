//! Warnings of the libraries, to the logger `mk` of Python's `logging`.

use mk::runtime::events::EventText;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Passes events on; spans are nothing to it.
#[derive(Default)]
struct Log {
    spans: AtomicU64,
}

/// Begins. Where the process listens to the libraries already, it goes on to.
pub fn begin() {
    let _ = tracing::subscriber::set_global_default(Log::default());
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("mk")
    }

    fn event(&self, event: &Event<'_>) {
        let text = EventText::of(event);
        let text = text.message + &text.fields;
        let method = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        // While the interpreter shuts down nobody listens, and a handler that fails has no caller to tell.
        Python::try_attach(|py| {
            let said = py.import("logging").and_then(|logging| {
                logging.call_method1("getLogger", ("mk",))?.call_method1(method, ("%s", text))
            });
            if let Err(error) = said {
                error.write_unraisable(py, None);
            }
        });
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Warns, for tests.
#[pyfunction]
#[pyo3(name = "_warn")]
pub fn warn(text: &str) {
    tracing::warn!(target: "mk_python", "{text}");
}
