//! A scene as SVG, with no tool but this.

use super::layout::{Layout, Line, Rect, TOP, cut, port_offset, shown};
use super::scene::{Block, Place, PlaceKind, Scene};
use mk_plan::Plan;
use std::fmt::Write;

/// Between two pictures.
const GAP: f64 = 16.0;
/// Characters of a tooltip.
const MAX_TITLE: usize = 400;

/// Opaque, so that it can be read on any page; viewers that prefer dark get dark.
const STYLE: &str = "\
text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11px;fill:#1f2328}\
.t{font-size:17px;font-weight:bold}.n{font-size:13px;font-weight:bold}.m{fill:#59636e}.e{text-anchor:end}\
.page{fill:#fdfdfe;stroke:#d0d7de}.lane{fill:#eef1f5}.fam{fill:#ffffff;stroke:#6e7781}.rule{stroke:#d8dee4}\
.caller{fill:#ddf4ff;stroke:#54a0dd}.own{fill:#f6f8fa;stroke:#8c959f}.peers{fill:#fff1e5;stroke:#bc4c00;stroke-dasharray:5 3}\
.osig{fill:#dafbe1;stroke:#1a7f37}.psig{fill:#f3e8ff;stroke:#8250df;stroke-dasharray:5 3}\
path{fill:none;stroke-width:1.5}.rd{stroke:#0969da}.wr{stroke:#bc4c00}.ol{stroke:#1a7f37}.pl{stroke:#8250df;stroke-dasharray:5 3}\
.rdf{fill:#0969da}.wrf{fill:#bc4c00}.olf{fill:#1a7f37}.plf{fill:#8250df}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.m{fill:#9aa4af}.page{fill:#0d1117;stroke:#30363d}.lane{fill:#161b22}\
.fam{fill:#0d1117;stroke:#8b949e}.rule{stroke:#30363d}.caller{fill:#0c2d4a;stroke:#388bfd}.own{fill:#21262d;stroke:#8b949e}\
.peers{fill:#3d2208;stroke:#f0883e}.osig{fill:#0f2d17;stroke:#3fb950}.psig{fill:#271a45;stroke:#a371f7}\
.rd{stroke:#58a6ff}.wr{stroke:#f0883e}.ol{stroke:#3fb950}.pl{stroke:#a371f7}\
.rdf{fill:#58a6ff}.wrf{fill:#f0883e}.olf{fill:#3fb950}.plf{fill:#a371f7}}";

/// The plan as a picture: a lane for each role with its families from top to bottom in the order in which signals let
/// them go, this rank's memory on the left, signals and peers' memory on the right. Tooltips have the whole
/// accesses, waits and posts.
pub fn svg(plan: &Plan) -> String {
    at(plan, None).0
}

/// Pictures of plans below each other, in the order in which they are launched.
pub fn stacked(plans: &[&Plan]) -> String {
    if let [plan] = plans {
        return svg(plan);
    }
    let (mut body, mut width, mut height) = (String::new(), 0.0, 0.0);
    for plan in plans {
        let (text, wide, high) = at(plan, Some(height));
        body += &text;
        width = f64::max(width, wide);
        height += high + GAP;
    }
    let height = f64::max(height - GAP, 0.0);
    let size = format!("width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\"");
    format!("<svg xmlns=\"http://www.w3.org/2000/svg\" {size} role=\"img\">\n{body}</svg>\n")
}

/// The picture, of itself or at a height within another; its width and height.
fn at(plan: &Plan, y: Option<f64>) -> (String, f64, f64) {
    let scene = Scene::of(plan);
    let layout = Layout::of(&scene);
    let mut out = Svg { text: String::new() };
    let (width, height) = (layout.width.ceil(), layout.height.ceil());
    let place = y.map_or(String::new(), |y| format!("y=\"{y}\" "));
    let size =
        format!("{place}width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\"");
    out.line(&format!("<svg xmlns=\"http://www.w3.org/2000/svg\" {size} role=\"img\">"));
    out.line(&format!("<title>Plan of {}</title>", escape(&cut(&scene.title, MAX_TITLE))));
    out.line(&format!("<style>{STYLE}</style>"));
    let page = Rect { x: 0.5, y: 0.5, width: width - 1.0, height: height - 1.0 };
    out.rect("page", page, 10.0);
    out.text("t", 28.0, 34.0, &cut(&scene.title, 80));
    out.text("m", 28.0, 54.0, &cut(&scene.subtitle, 160));
    out.text("m", layout.columns[0], TOP + 18.0, "memory of this rank");
    out.text("m", layout.columns[1], TOP + 18.0, "signals, memory of peers");
    for (lane, rect) in scene.lanes.iter().zip(&layout.lanes) {
        out.rect("lane", *rect, 8.0);
        out.text("n", rect.x + 12.0, rect.y + 20.0, &shown(&lane.name));
        out.text("m", rect.x + 12.0, rect.y + 36.0, &shown(&lane.note));
    }
    for line in &layout.lines {
        out.connection(&scene, line);
    }
    for (place, rect) in scene.places.iter().zip(&layout.places) {
        out.place(place, *rect);
    }
    for (block, rect) in scene.blocks.iter().zip(&layout.blocks) {
        out.block(&scene, block, *rect);
    }
    out.legend(layout.columns[0], layout.legend_y);
    out.line("</svg>");
    (out.text, width, height)
}

struct Svg {
    text: String,
}

impl Svg {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn rect(&mut self, class: &str, r: Rect, radius: f64) {
        let Rect { x, y, width, height } = r;
        self.line(&format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"{radius}\"/>"
        ));
    }

    fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        self.line(&format!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
            escape(text)
        ));
    }

    /// A text that is cut, with a tooltip that is not.
    fn titled(&mut self, class: &str, x: f64, y: f64, text: &str, title: &str) {
        let (text, title) = (escape(&shown(text)), escape(&cut(title, MAX_TITLE)));
        self.line(&format!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}<title>{title}</title></text>"
        ));
    }

    /// A line with a dot where another joins it, and a head where it arrives.
    fn connection(&mut self, scene: &Scene, line: &Line) {
        let (class, fill) = colour(&scene.places[line.place], line.is_into_family);
        let (x, (top, bottom)) = (line.track_x, line.track);
        if top < bottom {
            self.line(&format!("<path class=\"{class}\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>"));
        }
        let levels = line.at_families.iter().map(|end| (*end, line.is_into_family));
        for ((end, y), is_head) in levels.chain([(line.at_place, !line.is_into_family)]) {
            self.line(&format!("<path class=\"{class}\" d=\"M{x:.1} {y:.1}H{end:.1}\"/>"));
            if line.joins(y) {
                self.line(&format!(
                    "<circle class=\"{fill}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"
                ));
            }
            if is_head {
                // Away from the track.
                let back = if end > x { end - 7.0 } else { end + 7.0 };
                self.line(&format!(
                    "<polygon class=\"{fill}\" points=\"{end:.1},{y:.1} {back:.1},{:.1} {back:.1},{:.1}\"/>",
                    y - 4.0,
                    y + 4.0
                ));
            }
        }
    }

    fn place(&mut self, place: &Place, rect: Rect) {
        let (class, radius) = match place.kind {
            PlaceKind::Caller => ("caller", 8.0),
            PlaceKind::Own => ("own", 8.0),
            PlaceKind::Peers => ("peers", 8.0),
            PlaceKind::OwnSignal => ("osig", rect.height / 2.0),
            PlaceKind::PeerSignal => ("psig", rect.height / 2.0),
        };
        if place.kind == PlaceKind::Peers {
            // Sequentially: there are several.
            self.rect(class, Rect { x: rect.x + 4.0, y: rect.y - 4.0, ..rect }, radius);
        }
        self.rect(class, rect, radius);
        self.text("n", rect.x + 14.0, rect.y + 18.0, &shown(&place.name));
        let (x, y) = (rect.x + 14.0, rect.y + 33.0);
        self.titled("m", x, y, &place.note, &format!("{} {}", place.id, place.note));
    }

    fn block(&mut self, scene: &Scene, block: &Block, rect: Rect) {
        self.rect("fam", rect, 4.0);
        self.text("n", rect.x + 12.0, rect.y + 18.0, &shown(&block.name));
        self.text("m e", rect.right() - 10.0, rect.y + 18.0, &block.id.to_string());
        for (i, note) in block.notes.iter().enumerate() {
            self.text("m", rect.x + 12.0, rect.y + 34.0 + 15.0 * i as f64, &shown(note));
        }
        for (i, port) in block.ports.iter().enumerate() {
            let place = &scene.places[port.place];
            let y = rect.y + port_offset(block, i);
            let (class, x) = match place.kind.is_own_memory() {
                true => ("", rect.x + 12.0),
                false => ("e", rect.right() - 12.0),
            };
            self.titled(class, x, y + 4.0, &port.text, &port.detail);
        }
    }

    fn legend(&mut self, x: f64, y: f64) {
        let entries = [
            ("rd", "reads"),
            ("wr", "writes"),
            ("ol", "signal on this rank"),
            ("pl", "signal from rank to rank"),
        ];
        let mut x = x;
        for (class, what) in entries {
            self.line(&format!("<path class=\"{class}\" d=\"M{x:.1} {:.1}h26\"/>", y - 4.0));
            self.text("m", x + 34.0, y, what);
            x += 34.0 + 6.65 * what.len() as f64 + 24.0;
        }
        self.rect("peers", Rect { x, y: y - 11.0, width: 26.0, height: 14.0 }, 4.0);
        self.text("m", x + 34.0, y, "memory of peers");
    }
}

/// The classes of a line and of its head.
fn colour(place: &Place, is_into_family: bool) -> (&'static str, &'static str) {
    match place.kind {
        PlaceKind::OwnSignal => ("ol", "olf"),
        PlaceKind::PeerSignal => ("pl", "plf"),
        _ if is_into_family => ("rd", "rdf"),
        _ => ("wr", "wrf"),
    }
}

/// Text as XML has it; what XML cannot have is replaced.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let _ = match c {
            '&' => out.write_str("&amp;"),
            '<' => out.write_str("&lt;"),
            '>' => out.write_str("&gt;"),
            '"' => out.write_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                out.write_char('\u{fffd}')
            }
            c => out.write_char(c),
        };
    }
    out
}
