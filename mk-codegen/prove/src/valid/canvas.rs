//! A few shapes of SVG.

use std::fmt::Write;

/// Width of a character of 12 pixels in a monospaced font.
const CHAR: f64 = 7.25;
const FONT: &str = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace";

/// What something is drawn as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Group,
    Memory,
    Read,
    Write,
    Wait,
    Post,
    Caller,
    Quiet,
    Wrong,
}

impl Colour {
    /// Fill and stroke.
    fn pair(self) -> (&'static str, &'static str) {
        match self {
            Colour::Group => ("#f7f8fa", "#d0d5dd"),
            Colour::Memory => ("#ede9fe", "#8b5cf6"),
            Colour::Read => ("#dbeafe", "#3b82f6"),
            Colour::Write => ("#ffedd5", "#f97316"),
            Colour::Wait => ("#fef9c3", "#ca8a04"),
            Colour::Post => ("#dcfce7", "#16a34a"),
            Colour::Caller => ("#e0e7ff", "#6366f1"),
            Colour::Quiet => ("none", "#98a2b3"),
            Colour::Wrong => ("#fee2e2", "#dc2626"),
        }
    }
}

/// Shapes, in the order in which they were drawn.
pub(super) struct Canvas {
    width: f64,
    body: String,
}

impl Canvas {
    pub fn new(width: f64) -> Canvas {
        Canvas { width, body: String::new() }
    }

    pub fn width(&self) -> f64 {
        self.width
    }

    /// Makes room for what needs these widths.
    pub fn widen(&mut self, needed: [f64; 2]) {
        self.width = needed.into_iter().fold(self.width, f64::max);
    }

    /// The picture, cut at `height`.
    pub fn finish(self, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {w:.0} {height:.0}\" font-family=\"{FONT}\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body,
            w = self.width,
        )
    }

    fn shape(&mut self, text: String) {
        self.body += &text;
        self.body.push('\n');
    }

    pub fn text_width(text: &str) -> f64 {
        CHAR * text.chars().count() as f64
    }

    fn write(&mut self, x: f64, y: f64, size: u32, weight: u32, fill: &str, text: &str) {
        let mut safe = String::new();
        for c in text.chars() {
            match c {
                '<' => safe += "&lt;",
                '>' => safe += "&gt;",
                '&' => safe += "&amp;",
                // Not allowed in XML at all.
                c if c.is_control() => safe.push(' '),
                c => safe.push(c),
            }
        }
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" font-weight=\"{weight}\" \
             fill=\"{fill}\">{safe}</text>"
        );
        self.shape(out);
    }

    pub fn title(&mut self, x: f64, y: f64, text: &str) {
        self.write(x, y, 16, 700, "#111827", text);
    }
    pub fn text(&mut self, x: f64, y: f64, text: &str, bold: bool) {
        self.write(x, y, 12, if bold { 700 } else { 400 }, "#1f2937", text);
    }
    pub fn small(&mut self, x: f64, y: f64, text: &str) {
        self.write(x, y, 10, 400, "#667085", text);
    }
    /// What is wrong.
    pub fn note(&mut self, x: f64, y: f64, text: &str) {
        self.write(x, y, 12, 700, Colour::Wrong.pair().1, text);
    }

    pub fn rect(&mut self, x: f64, y: f64, w: f64, h: f64, colour: Colour, thick: bool) {
        let (fill, stroke) = colour.pair();
        let (stroke, wide) = if thick { (Colour::Wrong.pair().1, 2.5) } else { (stroke, 1.0) };
        self.shape(format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"6\" fill=\"{fill}\" \
             stroke=\"{stroke}\" stroke-width=\"{wide}\"/>"
        ));
    }

    pub fn pill_width(text: &str) -> f64 {
        Canvas::text_width(text) + 18.0
    }

    /// A box around a text, 28 high; returns its width.
    pub fn pill(&mut self, x: f64, y: f64, text: &str, colour: Colour, thick: bool) -> f64 {
        let width = Canvas::pill_width(text);
        self.rect(x, y, width, 28.0, colour, thick);
        self.text(x + 9.0, y + 18.5, text, false);
        width
    }

    pub fn line(&mut self, a: (f64, f64), b: (f64, f64), colour: Colour, dashed: bool) {
        let dash = if dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        self.shape(format!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\" stroke-width=\"1.8\"{dash}/>",
            a.0, a.1, b.0, b.1, colour.pair().1
        ));
    }

    /// A line with a head at `b`.
    pub fn arrow(&mut self, a: (f64, f64), b: (f64, f64), colour: Colour, dashed: bool) {
        self.line(a, b, colour, dashed);
        let (dx, dy) = (b.0 - a.0, b.1 - a.1);
        let len = dx.hypot(dy).max(1.0);
        let (ux, uy) = (dx / len, dy / len);
        let (x, y) = (b.0 - 8.0 * ux, b.1 - 8.0 * uy);
        self.shape(format!(
            "<polygon points=\"{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}\" fill=\"{}\"/>",
            b.0,
            b.1,
            x - 4.0 * uy,
            y + 4.0 * ux,
            x + 4.0 * uy,
            y - 4.0 * ux,
            colour.pair().1
        ));
    }
}

/// Lines of at most `columns` characters, broken at spaces.
pub(super) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let used = lines[last].chars().count();
        if used > 0 && used + 1 + word.chars().count() > columns {
            lines.push(word.to_string());
        } else {
            if used > 0 {
                lines[last].push(' ');
            }
            lines[last] += word;
        }
    }
    lines
}
