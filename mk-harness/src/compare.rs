//! Error norms on the host.

pub use mk_runtime::ErrorNorm as Norms;

/// Rows and columns of the tiles whose error counts for itself.
const TILE: usize = 128;

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Relative Frobenius norm of the error.
    pub global: f64,
    /// The same for every 128 x 128 tile.
    pub tile: f64,
}

impl Default for Tolerance {
    /// For bf16 and f16 results: rounding to bf16 once costs 1.7e-3, and so does each further value that is stored on
    /// the way (the operand of a second product, the summands of a reduction).
    fn default() -> Tolerance {
        Tolerance { global: 5e-3, tile: 2e-2 }
    }
}

impl Tolerance {
    /// Whether a result passes. One that is not finite never does.
    pub fn accepts(&self, norms: &Norms) -> bool {
        norms.nonfinite == 0 && norms.global < self.global && norms.worst_tile < self.tile
    }
}

#[derive(Clone, Copy, Default)]
struct Reduction {
    error: f64,
    reference: f64,
    nonfinite: u64,
    count: f64,
}

/// Compares a tensor whose last dimension is `cols` with its reference of the same length.
///
/// A tile whose reference is near 0 by chance (the last one of a ragged shape may be a single element) is measured
/// against a tenth of the mean square of the whole.
pub fn compare(got: &[f32], reference: &[f64], cols: usize) -> Norms {
    let cols = cols.max(1);
    let across = cols.div_ceil(TILE);
    let down = (got.len() / cols).div_ceil(TILE);
    let mut tiles = vec![Reduction::default(); across * down];
    for (row, (got, reference)) in got.chunks(cols).zip(reference.chunks(cols)).enumerate() {
        for (col, (x, y)) in got.iter().zip(reference).enumerate() {
            let tile = &mut tiles[row / TILE * across + col / TILE];
            tile.nonfinite += u64::from(!x.is_finite());
            tile.error += (f64::from(*x) - y).powi(2);
            tile.reference += y * y;
            tile.count += 1.0;
        }
    }
    let all = tiles.iter().fold(Reduction::default(), |a, t| Reduction {
        error: a.error + t.error,
        reference: a.reference + t.reference,
        nonfinite: a.nonfinite + t.nonfinite,
        count: a.count + t.count,
    });
    let mut norms = Norms {
        global: relative(&all, 0.0),
        worst_tile: 0.0,
        worst_at: (0, 0),
        nonfinite: all.nonfinite,
    };
    for (i, tile) in tiles.iter().enumerate() {
        let this = relative(tile, 0.1 * all.reference / all.count * tile.count);
        if this > norms.worst_tile {
            norms.worst_tile = this;
            norms.worst_at = ((i / across) as u64, (i % across) as u64);
        }
    }
    norms
}

fn relative(sums: &Reduction, least: f64) -> f64 {
    if sums.nonfinite > 0 || !sums.error.is_finite() {
        f64::INFINITY
    } else if sums.error == 0.0 {
        0.0
    } else {
        (sums.error / sums.reference.max(least)).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_tile_shows() {
        let reference = vec![1.0; 256 * 256];
        let mut got = vec![1.0f32; 256 * 256];
        let tolerance = Tolerance::default();
        assert!(tolerance.accepts(&compare(&got, &reference, 256)));
        got[200 * 256 + 130] = 4.0;
        let norms = compare(&got, &reference, 256);
        assert_eq!(norms.worst_at, (1, 1));
        assert!((norms.worst_tile - 3.0 / 128.0).abs() < 1e-9 && !tolerance.accepts(&norms));
        got[5] = f32::NAN;
        let norms = compare(&got, &reference, 256);
        assert_eq!((norms.nonfinite, norms.global), (1, f64::INFINITY));
        assert!(!tolerance.accepts(&norms));
    }

    #[test]
    fn nothing_is_right() {
        assert!(Tolerance::default().accepts(&compare(&[], &[], 64)));
    }
}
