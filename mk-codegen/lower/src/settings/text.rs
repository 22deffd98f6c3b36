//! Settings as text: what `--set`, Python, caches and reports read and write.

/// A value that has a text.
pub(super) trait Text: Sized {
    /// What is accepted, for error messages and the reference.
    const FORM: &'static str;

    /// The text that [`Text::read`] takes.
    fn write(&self) -> String;

    /// The value; `None` for a text that is none.
    fn read(text: &str) -> Option<Self>;
}

/// A value that may be left to the compiler.
pub(super) fn write_or<T: Text>(value: &Option<T>, without: &str) -> String {
    value.as_ref().map_or_else(|| without.to_string(), T::write)
}

/// Reads what [`write_or`] writes.
pub(super) fn read_or<T: Text>(text: &str, without: &str) -> Option<Option<T>> {
    if text == without { Some(None) } else { T::read(text).map(Some) }
}
