//! Events of `tracing` as text, for programs that show those of the libraries: the command line on stderr, Python in
//! its `logging`.

use std::fmt::{Debug, Write};
use tracing::{
    Event,
    field::{Field, Visit},
};

/// An event as text.
#[derive(Default)]
pub struct EventText {
    /// What it says.
    pub message: String,
    /// Its fields, each behind a comma, and its error behind a colon.
    pub fields: String,
}

impl EventText {
    /// The text of an event.
    pub fn of(event: &Event<'_>) -> EventText {
        let mut text = EventText::default();
        event.record(&mut text);
        text
    }
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "error" => write!(self.fields, ": {value:?}"),
            name => write!(self.fields, ", {name} {value:?}"),
        };
    }
}
