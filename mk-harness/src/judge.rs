//! Judges results: every element by its own error bound.
//!
//! ```text
//! Program, sizes, ranks ──> Dense ──> Expected: element and bound ──┐
//! plan or kernel ──> outputs ───────────────────────────────────────┴─> Judgement
//! ```
//!
//! An element is right where it is between what the two ends of its interval, `reference ± bound`, round to in the
//! result's type. So it is exact where nothing is computed, infinite where the reference is beyond the range, and as
//! near as the spacing of subnormals is. Errors that pass element by element are caught by norms: a tile whose
//! error is greater than its roundings explain is wrong.

use crate::{Expected, math, near::Near};
use mk_abi::count;
use std::fmt;

pub use mk_runtime::ErrorNorm as Norms;

/// Rows and columns of the tiles whose error counts for itself.
const TILE: usize = 128;
/// Largest accepted ratio of the error of a tile, or of the whole, to the expected one.
const EXCESS: f64 = 1.5;
/// Fewest elements for which that ratio is meaningful.
const MANY: f64 = 1024.0;

/// The verdict on a result on a rank, or on several results.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Relative error over the whole and over the worst tile. Elements that are beyond the range in the reference and
    /// in the result are left out.
    pub norms: Norms,
    /// Elements that were judged.
    pub judged: u64,
    /// Elements that cannot be judged: an intermediate value is near the limit of its dtype's range.
    pub unknown: u64,
    /// Elements beyond their bounds.
    pub beyond: u64,
    /// The element that is furthest beyond its bound.
    pub worst: Option<Beyond>,
    /// Error over expected error, of the tile of which it is the greatest, or of the whole.
    pub excess: f64,
    /// The greatest bound, and the expected error of the whole, relative to the mean square of the reference:
    /// [`crate::Tolerance`] is made of them.
    pub(crate) scale: Scale,
}

/// An element that is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beyond {
    /// Its position in the rank's part.
    pub at: (usize, usize),
    /// The result.
    pub got: f32,
    /// The reference.
    pub want: f64,
    /// Error bound, before rounding.
    pub bound: f64,
}

/// Expected size of errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Scale {
    /// Expected relative error of the whole.
    pub expected: f64,
    /// The largest bound, rounding of the result included, over the root of the mean square of the reference.
    pub largest: f64,
}

impl Default for Judgement {
    /// No elements.
    fn default() -> Judgement {
        Judgement {
            norms: Norms::NONE,
            judged: 0,
            unknown: 0,
            beyond: 0,
            worst: None,
            excess: 0.0,
            scale: Scale::default(),
        }
    }
}

impl Judgement {
    /// Whether the result is right. If no element could be judged, it is not.
    pub fn passes(&self) -> bool {
        self.beyond == 0 && self.excess <= EXCESS && (self.judged > 0 || self.unknown == 0)
    }

    /// Combines two verdicts: the worse of each figure.
    pub fn and(self, other: Judgement) -> Judgement {
        let distance = |j: &Judgement| j.worst.map_or(0.0, |b| b.times());
        Judgement {
            norms: worse(self.norms, other.norms),
            judged: self.judged + other.judged,
            unknown: self.unknown + other.unknown,
            beyond: self.beyond + other.beyond,
            worst: if distance(&other) > distance(&self) { other.worst } else { self.worst },
            excess: self.excess.max(other.excess),
            scale: Scale {
                expected: self.scale.expected.max(other.scale.expected),
                largest: self.scale.largest.max(other.scale.largest),
            },
        }
    }
}

/// The worse of two errors, in each norm.
pub(crate) fn worse(a: Norms, b: Norms) -> Norms {
    let tile = if b.worst_tile > a.worst_tile { b } else { a };
    Norms {
        global: a.global.max(b.global),
        nonfinite: a.nonfinite + b.nonfinite,
        worst_element: a.worst_element.max(b.worst_element),
        ..tile
    }
}

impl Beyond {
    /// Its error in multiples of the bound; infinite for a wrong infinity, and where it should be exact.
    fn times(&self) -> f64 {
        let times = (f64::from(self.got) - self.want).abs() / self.bound;
        if times.is_nan() { f64::INFINITY } else { times }
    }
}

impl fmt::Display for Judgement {
    /// `error 1.66e-3, worst tile 1.71e-3 (row 128, column 0), all within their bounds`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (row, col) = self.norms.worst_at;
        write!(f, "error {:.2e}, ", self.norms.global)?;
        write!(f, "worst tile {:.2e} ", self.norms.worst_tile)?;
        write!(f, "(row {}, column {})", TILE as u64 * row, TILE as u64 * col)?;
        match self.worst {
            None => write!(f, ", all within their bounds")?,
            Some(b) => {
                let ((row, col), n) = (b.at, self.beyond);
                let n = count(n, "element");
                write!(f, ", {n} beyond their bounds: [{row}, {col}] is {:e}, ", b.got)?;
                write!(f, "and {:e} +- {:.1e} is right", b.want, b.bound)?;
            }
        }
        if self.excess > EXCESS {
            write!(f, ", {:.1} times the error to be expected", self.excess)?;
        }
        match self.unknown {
            0 => Ok(()),
            n => write!(f, ", {n} not judged: on the way there they may leave the range"),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Squares {
    error: f64,
    largest: f64,
    reference: f64,
    expected: f64,
    nonfinite: u64,
    count: f64,
}

impl Squares {
    fn and(self, t: &Squares) -> Squares {
        Squares {
            error: self.error + t.error,
            largest: self.largest.max(t.largest),
            reference: self.reference + t.reference,
            expected: self.expected + t.expected,
            nonfinite: self.nonfinite + t.nonfinite,
            count: self.count + t.count,
        }
    }

    fn relative(&self, error: f64, least: f64) -> f64 {
        match error {
            _ if self.nonfinite > 0 || !error.is_finite() => f64::INFINITY,
            0.0 => 0.0,
            error => (error / self.reference.max(least)).sqrt(),
        }
    }

    fn excess(&self) -> f64 {
        match self.count >= MANY && self.expected > 0.0 && self.nonfinite == 0 {
            true => (self.error / self.expected).sqrt(),
            false => 0.0,
        }
    }
}

/// Judges what a rank holds of a result.
///
/// In the norms a tile whose reference is near 0 by chance (the last one of a ragged shape may be a single element) is
/// measured against a tenth of the mean square of the whole.
///
/// # Panics
/// If there are fewer or more elements than expected.
pub fn judge(got: &[f32], expected: &Expected) -> Judgement {
    let (matrix, dtype) = (&expected.matrix, expected.dtype);
    assert_eq!(got.len(), matrix.len(), "a result and its reference have one size");
    let cols = matrix.cols.max(1);
    let across = cols.div_ceil(TILE);
    let down = (got.len() / cols).div_ceil(TILE);
    let mut tiles = vec![Squares::default(); across * down];
    let (mut all, mut largest) = (Judgement::default(), 0.0f64);
    for (i, &x) in got.iter().enumerate() {
        let (at, near) = ((i / cols, i % cols), matrix.at(i));
        if near.is_unasked() {
            continue;
        }
        if near.bound() == f64::INFINITY {
            all.unknown += 1;
            continue;
        }
        all.judged += 1;
        let rounded = |y| math::round(dtype, y);
        if !right(x, near, rounded) {
            all.beyond += 1;
            let found = Beyond { at, got: x, want: near.x, bound: near.bound() };
            if all.worst.is_none_or(|w| found.times() > w.times()) {
                all.worst = Some(found);
            }
        }
        let tile = &mut tiles[at.0 / TILE * across + at.1 / TILE];
        let want = rounded(near.x);
        match x.is_finite() && want.is_finite() {
            true => {
                let (error, half) = (f64::from(x) - near.x, near.stored(dtype));
                tile.error += error * error;
                tile.largest = tile.largest.max(error.abs());
                tile.reference += near.x * near.x;
                tile.expected += half.variance();
                tile.count += 1.0;
                largest = largest.max(half.bound());
            }
            false if f64::from(x) == want || x.is_nan() && want.is_nan() => {}
            false => tile.nonfinite += u64::from(!x.is_finite()),
        }
    }
    let whole = tiles.iter().fold(Squares::default(), |a, t| a.and(t));
    let mean = whole.reference / whole.count.max(1.0);
    all.norms.global = whole.relative(whole.error, 0.0);
    all.norms.nonfinite = whole.nonfinite;
    all.excess = whole.excess();
    for (i, tile) in tiles.iter().enumerate() {
        let least = 0.1 * mean * tile.count;
        let this = tile.relative(tile.error, least);
        if this > all.norms.worst_tile {
            all.norms.worst_tile = this;
            all.norms.worst_at = ((i / across) as u64, (i % across) as u64);
        }
        let element = tile.relative(tile.largest * tile.largest * tile.count, least);
        all.norms.worst_element = all.norms.worst_element.max(element);
        all.excess = all.excess.max(tile.excess());
    }
    all.scale = Scale {
        expected: whole.relative(whole.expected, 0.0),
        largest: if largest == 0.0 { 0.0 } else { largest / mean.sqrt() },
    };
    all
}

/// Whether an element is between what the ends of its interval round to; the very bits where the interval is a point.
fn right(x: f32, near: Near, rounded: impl Fn(f64) -> f64) -> bool {
    let bound = near.bound();
    if near.x.is_nan() {
        return x.is_nan();
    }
    if bound == 0.0 {
        return x.to_bits() == (rounded(near.x) as f32).to_bits();
    }
    let (low, high) = (rounded(near.x - bound), rounded(near.x + bound));
    (low..=high).contains(&f64::from(x))
}
