//! Where everything of a scene lies, in pixels.
//!
//! ```text
//! memory of this rank │ tracks │ lane │ lane │ … │ tracks │ signals, memory of peers
//! ```
//!
//! Nothing overlaps, by construction: families are one below the other, each in its role's lane, so that the line of a
//! port runs level to the tracks at either side and meets no other family; a track is a vertical line for one place and
//! one direction, and lines that cross do not join (where they join there is a dot). Ports of families lie on multiples
//! of [`GRID`], those of places half-way between.

use super::scene::{Block, Place, Port, Scene};

/// Width of a character of the small and of the large text (11 and 13 pixels, monospaced).
const SMALL: f64 = 6.65;
const LARGE: f64 = 7.85;

const GRID: f64 = 18.0;
const MARGIN: f64 = 28.0;
/// Of lane headers.
pub(super) const TOP: f64 = 78.0;
const HEAD: f64 = 46.0;
const TRACK: f64 = 12.0;
const PLACE_HEIGHT: f64 = 42.0;
const LEGEND: f64 = 54.0;
/// Texts are cut to this many characters; the tooltips have more.
const MAX_CHARS: usize = 44;

/// A rectangle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rect {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Rect {
    pub fn right(&self) -> f64 {
        self.x + self.width
    }
}

/// All that goes from families to a place, or from it to them: one line at the place, a track beside the lanes, and a
/// line for each port.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub place: usize,
    pub is_into_family: bool,
    /// Where it meets the place.
    pub at_place: (f64, f64),
    pub track_x: f64,
    /// Both ends of the track.
    pub track: (f64, f64),
    /// Where it meets families.
    pub at_families: Vec<(f64, f64)>,
}

impl Line {
    /// Whether a level line at `y` joins the track between its ends.
    pub fn joins(&self, y: f64) -> bool {
        self.track.0 < y && y < self.track.1
    }
}

/// Where everything lies.
pub(super) struct Layout {
    pub width: f64,
    pub height: f64,
    /// By lane, header included.
    pub lanes: Vec<Rect>,
    pub blocks: Vec<Rect>,
    pub places: Vec<Rect>,
    pub lines: Vec<Line>,
    /// The left edges of the columns of places.
    pub columns: [f64; 2],
    /// Of the legend.
    pub legend_y: f64,
}

/// A text as it is shown.
pub(super) fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(max - 1).chain(['…']).collect(),
    }
}

pub(super) fn shown(text: &str) -> String {
    cut(text, MAX_CHARS)
}

fn width(text: &str, character: f64) -> f64 {
    text.chars().count().min(MAX_CHARS) as f64 * character
}

/// Of the name and the notes of a family.
pub(super) fn head_height(block: &Block) -> f64 {
    26.0 + 15.0 * block.notes.len() as f64
}

/// The height of a port, relative to its family's, whose ports begin at the next line of the grid.
pub(super) fn port_offset(block: &Block, port: usize) -> f64 {
    // The text of a port reaches above its line.
    let first = ((head_height(block) + 6.0) / GRID).ceil() * GRID;
    first + GRID * port as f64
}

fn block_height(block: &Block) -> f64 {
    match block.ports.len() {
        0 => (head_height(block) / GRID).ceil() * GRID,
        n => port_offset(block, n - 1) + 14.0,
    }
}

impl Layout {
    pub fn of(scene: &Scene) -> Layout {
        let (blocks_y, bottom) = rows(scene);
        let sides = [true, false].map(|own| Side::of(scene, &blocks_y, own));
        let lanes = lane_widths(scene);
        let [left, right] = &sides;

        let left_width = left.width(scene);
        let lanes_x = MARGIN + left_width + left.channel();
        let mut x = lanes_x;
        let bottom = bottom.max(left.bottom()).max(right.bottom());
        let mut lane_rects = Vec::new();
        for width in &lanes {
            lane_rects.push(Rect { x, y: TOP, width: *width, height: bottom - TOP + 8.0 });
            x += width + 8.0;
        }
        let lanes_right = (x - 8.0).max(lanes_x);
        let right_x = lanes_right + right.channel();
        let right_width = right.width(scene);
        let legend_y = bottom + 34.0;

        let blocks: Vec<Rect> = scene
            .blocks
            .iter()
            .zip(&blocks_y)
            .map(|(block, &y)| {
                let lane = lane_rects.get(block.lane).copied().unwrap_or_default();
                let (x, width) = (lane.x + 10.0, lane.width - 20.0);
                Rect { x, y, width, height: block_height(block) }
            })
            .collect();
        let mut places = vec![Rect::default(); scene.places.len()];
        for (side, x, width) in [(left, MARGIN, left_width), (right, right_x, right_width)] {
            for (&place, &y) in side.places.iter().zip(&side.ys) {
                places[place] = Rect { x, y, width, height: PLACE_HEIGHT };
            }
        }
        let mut layout = Layout {
            width: right_x + right_width + MARGIN,
            height: legend_y + LEGEND - 20.0,
            lanes: lane_rects,
            blocks,
            places,
            lines: Vec::new(),
            columns: [MARGIN, right_x],
            legend_y,
        };
        layout.lines = lines(scene, &layout, &sides, [lanes_x, lanes_right]);
        layout
    }
}

/// The top of each family, and the end of all.
fn rows(scene: &Scene) -> (Vec<f64>, f64) {
    let mut y = ((TOP + HEAD) / GRID).ceil() * GRID;
    let mut ys = Vec::new();
    for block in &scene.blocks {
        ys.push(y);
        y = ((y + block_height(block)) / GRID).ceil() * GRID + GRID;
    }
    (ys, y - GRID)
}

fn lane_widths(scene: &Scene) -> Vec<f64> {
    let lane = |(i, lane): (usize, &super::scene::Lane)| {
        let mut widest = width(&lane.name, LARGE).max(width(&lane.note, SMALL));
        for block in scene.blocks.iter().filter(|b| b.lane == i) {
            widest = widest.max(width(&block.name, LARGE) + 6.0 * SMALL);
            let texts = block.notes.iter().chain(block.ports.iter().map(|p| &p.text));
            widest = texts.fold(widest, |widest, text| widest.max(width(text, SMALL)));
        }
        widest + 28.0 + 20.0
    };
    scene.lanes.iter().enumerate().map(lane).collect()
}

/// One column of places, with the tracks that lead to it.
struct Side {
    /// Places from top to bottom.
    places: Vec<usize>,
    ys: Vec<f64>,
    /// For each place and direction: the place, whether into the family, its end at the place, its extent, its number.
    tracks: Vec<Track>,
    n_tracks: usize,
}

struct Track {
    place: usize,
    is_into_family: bool,
    /// Where it meets the place.
    y: f64,
    from: f64,
    to: f64,
    number: usize,
}

impl Side {
    fn of(scene: &Scene, blocks_y: &[f64], own: bool) -> Side {
        let mut wanted: Vec<(f64, usize)> = Vec::new();
        for (i, place) in scene.places.iter().enumerate() {
            if place.kind.is_own_memory() == own {
                let ys: Vec<f64> = ports_of(scene, blocks_y, i).map(|(_, y)| y).collect();
                let mean = ys.iter().sum::<f64>() / ys.len().max(1) as f64;
                wanted.push((mean - PLACE_HEIGHT / 2.0, i));
            }
        }
        wanted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (mut places, mut ys, mut tracks) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = TOP + HEAD;
        for (y, place) in wanted {
            let directions: Vec<bool> = [false, true]
                .into_iter()
                .filter(|&into| {
                    ports_of(scene, blocks_y, place).any(|(p, _)| p.kind.is_into_family() == into)
                })
                .collect();
            // Ports half-way between lines of the grid: one in the middle, two a line apart.
            let first = if directions.len() > 1 { 12.0 } else { 21.0 };
            let y = ((y.max(next) + first - GRID / 2.0) / GRID).ceil() * GRID + GRID / 2.0 - first;
            next = y + PLACE_HEIGHT + 10.0;
            for (n, is_into_family) in directions.into_iter().enumerate() {
                let y = y + first + GRID * n as f64;
                let ys = ports_of(scene, blocks_y, place)
                    .filter(|(p, _)| p.kind.is_into_family() == is_into_family)
                    .map(|(_, y)| y);
                let (from, to) = ys.fold((y, y), |(from, to), y| (from.min(y), to.max(y)));
                tracks.push(Track { place, is_into_family, y, from, to, number: 0 });
            }
            places.push(place);
            ys.push(y);
        }
        let n_tracks = number(&mut tracks);
        Side { places, ys, tracks, n_tracks }
    }

    fn width(&self, scene: &Scene) -> f64 {
        let width = |p: &usize| {
            let Place { name, note, .. } = &scene.places[*p];
            width(name, LARGE).max(width(note, SMALL)) + 28.0
        };
        self.places.iter().map(width).fold(0.0, f64::max)
    }

    /// Between the column and the lanes.
    fn channel(&self) -> f64 {
        30.0 + TRACK * self.n_tracks as f64
    }

    fn bottom(&self) -> f64 {
        self.ys.last().map_or(0.0, |y| y + PLACE_HEIGHT)
    }
}

/// The ports that lead to a place, with their heights.
fn ports_of<'s>(
    scene: &'s Scene,
    blocks_y: &'s [f64],
    place: usize,
) -> impl Iterator<Item = (&'s Port, f64)> {
    scene.blocks.iter().zip(blocks_y).flat_map(move |(block, y)| {
        let ports = block.ports.iter().enumerate().filter(move |(_, p)| p.place == place);
        ports.map(move |(i, port)| (port, y + port_offset(block, i)))
    })
}

/// Numbers the tracks, so that those of one number do not touch; gives how many numbers there are.
fn number(tracks: &mut [Track]) -> usize {
    let mut order: Vec<usize> = (0..tracks.len()).collect();
    order.sort_by(|&a, &b| tracks[a].from.total_cmp(&tracks[b].from).then(a.cmp(&b)));
    let mut ends: Vec<f64> = Vec::new();
    for i in order {
        let free = ends.iter().position(|end| end + GRID < tracks[i].from);
        let number = free.unwrap_or(ends.len());
        if free.is_none() {
            ends.push(0.0);
        }
        ends[number] = tracks[i].to;
        tracks[i].number = number;
    }
    ends.len()
}

fn lines(scene: &Scene, layout: &Layout, sides: &[Side; 2], lanes: [f64; 2]) -> Vec<Line> {
    let mut lines = Vec::new();
    for (own, side) in [true, false].into_iter().zip(sides) {
        for track in &side.tracks {
            // The first tracks are those beside the lanes.
            let away = 14.0 + TRACK * track.number as f64;
            let place = layout.places[track.place];
            let track_x = if own { lanes[0] - away } else { lanes[1] + away };
            let at_place = (if own { place.right() } else { place.x }, track.y);
            let at_families = ends(scene, layout, track, own);
            let Track { place, is_into_family, from, to, .. } = *track;
            let track = (from, to);
            lines.push(Line { place, is_into_family, at_place, track_x, track, at_families });
        }
    }
    lines
}

/// Where the lines of a track meet families.
fn ends(scene: &Scene, layout: &Layout, track: &Track, own: bool) -> Vec<(f64, f64)> {
    let blocks = scene.blocks.iter().zip(&layout.blocks);
    let ports = blocks.flat_map(|(block, rect)| {
        let x = if own { rect.x } else { rect.right() };
        let ports = block.ports.iter().enumerate();
        ports.map(move |(i, port)| (port, (x, rect.y + port_offset(block, i))))
    });
    let ours = ports.filter(|(port, _)| {
        port.place == track.place && port.kind.is_into_family() == track.is_into_family
    });
    ours.map(|(_, end)| end).collect()
}
