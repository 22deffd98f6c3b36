//! Warnings of the libraries, and what they are doing when that takes long, to the logger `mk` of Python's `logging`.

use mk::runtime::events::EventText;
use pyo3::prelude::*;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Says what a first call is doing.
const PROGRESS: &str = "mk_function::progress";

/// Passes events on; spans are nothing to it.
#[derive(Default)]
struct Log {
    spans: AtomicU64,
}

/// That of the `mk` command, in a process that is one.
static COMMAND: OnceLock<mk_cli::Log> = OnceLock::new();

/// Has events go to the command's log from here on.
pub fn to_command(log: mk_cli::Log) {
    // The second command of a process says as much as the first.
    let _ = COMMAND.set(log);
    tracing::callsite::rebuild_interest_cache();
}

/// Begins. Where the process listens to the libraries already, it goes on to.
pub fn begin() {
    let _ = tracing::subscriber::set_global_default(Log::default());
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        if let Some(command) = COMMAND.get() {
            return command.enabled(metadata);
        }
        let most = if metadata.target() == PROGRESS { Level::INFO } else { Level::WARN };
        *metadata.level() <= most && metadata.target().starts_with("mk")
    }

    fn event(&self, event: &Event<'_>) {
        if let Some(command) = COMMAND.get() {
            return command.event(event);
        }
        let text = EventText::of(event);
        let text = text.message + &text.fields;
        let method = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "info",
        };
        if method == "info" && io::stderr().is_terminal() {
            // Shown while waiting; the next line overwrites it. Write errors are ignored.
            let _ = write!(io::stderr(), "\x1b[K{text}\r");
        }
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
