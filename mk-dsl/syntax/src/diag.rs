//! Errors with a place, a cause and a way out, and their rustc-like rendering.

use crate::span::{Span, position};
use std::fmt;

/// One mistake in a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The bytes of the source that are wrong.
    pub span: Span,
    /// The line of `span.start`, from 1.
    pub line: usize,
    /// The column of `span.start`, in characters, from 1.
    pub column: usize,
    /// What is wrong, one line, without a full stop.
    pub message: String,
    /// What to do about it, one line.
    pub help: String,
    excerpt: Excerpt,
}

/// The part of the source line that the rendering shows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Excerpt {
    text: String,
    /// Characters before the first caret.
    indent: usize,
    /// Number of carets.
    width: usize,
}

/// Every mistake found in one pipeline, in source order; never empty.
///
/// `Display` renders all of them:
///
/// ```text
/// error: unknown operation `gemn`
///  --> pipeline:1:14
///   |
/// 1 | gather(a) -> gemn(b)
///   |              ^^^^
///   = help: did you mean `gemm`?
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    n_omitted: usize,
    origin: String,
}

/// What is wrong and what to do: an entry of the catalogue in `messages`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub message: String,
    pub help: String,
    /// Whether another placement may be the way out, which `repair` looks for.
    pub is_placement: bool,
}

/// Collects mistakes while the text is read and checked.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    list: Vec<(Span, Text)>,
}

/// More mistakes than this are counted, not shown.
pub(crate) const MAX_SHOWN: usize = 32;
/// Characters of a source line that an excerpt shows.
const MAX_EXCERPT: usize = 120;

impl Sink {
    pub fn push(&mut self, span: Span, text: Text) {
        self.list.push((span, text));
    }

    /// Reports a mistake that leaves no value.
    pub fn refuse<T>(&mut self, span: Span, text: Text) -> Option<T> {
        self.push(span, text);
        None
    }

    /// `None` if there are more mistakes than before.
    pub fn fine_since(&self, n_before: usize) -> Option<()> {
        (self.len() == n_before).then_some(())
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, (Span, Text)> {
        self.list.iter()
    }

    /// Replaces the help of the mistake of that position.
    pub fn set_help(&mut self, i: usize, help: String) {
        if let Some((_, text)) = self.list.get_mut(i) {
            text.help = help;
        }
    }

    /// `Ok(value)` if nothing was reported.
    pub fn finish<T>(mut self, source: &str, value: Option<T>) -> Result<T, Diagnostics> {
        match value {
            Some(value) if self.list.is_empty() => Ok(value),
            _ => {
                if self.list.is_empty() {
                    self.push(Span::default(), internal());
                }
                Err(self.into_diagnostics(source))
            }
        }
    }

    pub fn into_diagnostics(mut self, source: &str) -> Diagnostics {
        self.list.sort_by_key(|(span, _)| (span.start, span.end));
        self.list.dedup();
        let n_omitted = self.list.len().saturating_sub(MAX_SHOWN);
        self.list.truncate(MAX_SHOWN);
        let list = self.list.into_iter().map(|(span, text)| Diagnostic::new(source, span, text));
        Diagnostics { list: list.collect(), n_omitted, origin: "pipeline".into() }
    }
}

fn internal() -> Text {
    Text {
        message: "the checker found no pipeline and no mistake".into(),
        help: "this is a bug in mk: please report it".into(),
        is_placement: false,
    }
}

impl Diagnostic {
    fn new(source: &str, span: Span, Text { message, help, .. }: Text) -> Self {
        let at = position(source, span.start);
        let line = source.get(at.line_start..).unwrap_or("");
        let line = line.split('\n').next().unwrap_or("").trim_end_matches('\r');
        let indent = at.column - 1;
        let rest = line.get(span.start - at.line_start..).unwrap_or("").chars().count();
        let marked = source.get(span.start..span.end).unwrap_or("").chars().count();
        // A window around the caret: an error in a line of 60 kB is still one screen line.
        let from = indent.saturating_sub(MAX_EXCERPT / 2);
        let cut = if from > 0 { "..." } else { "" };
        let shown = line.chars().skip(from).take(MAX_EXCERPT).map(visible);
        let text = cut.chars().chain(shown).collect();
        let width = marked.min(rest).clamp(1, MAX_EXCERPT / 2);
        let excerpt = Excerpt { text, indent: indent - from + cut.len(), width };
        Diagnostic { span, line: at.line, column: at.column, message, help, excerpt }
    }
}

/// One column on any terminal, and no character that reorders its neighbours.
fn visible(c: char) -> char {
    match c {
        '\t' => ' ',
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

impl Diagnostics {
    /// The mistakes, in source order, at most 32.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.list.iter()
    }

    /// How many further mistakes were found and left out.
    pub fn n_omitted(&self) -> usize {
        self.n_omitted
    }

    /// Names the text in the rendering: `--> x.mk:2:5`.
    #[must_use]
    pub fn in_file(mut self, path: impl Into<String>) -> Self {
        self.origin = path.into();
        self
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, d) in self.list.iter().enumerate() {
            if i > 0 {
                f.write_str("\n\n")?;
            }
            let gutter = d.line.to_string().len();
            let Excerpt { text, indent, width } = &d.excerpt;
            writeln!(f, "error: {}", d.message)?;
            writeln!(f, "{:gutter$}--> {}:{}:{}", "", self.origin, d.line, d.column)?;
            writeln!(f, "{:gutter$} |", "")?;
            writeln!(f, "{} | {}", d.line, text.trim_end())?;
            writeln!(f, "{:gutter$} | {:indent$}{}", "", "", "^".repeat(*width))?;
            write!(f, "{:gutter$} = help: {}", "", d.help)?;
        }
        if self.n_omitted > 0 {
            write!(f, "\n\nand {} more errors", self.n_omitted)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}
