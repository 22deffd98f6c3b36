//! Error norms: relative Frobenius norms over the whole and over each tile, and the largest error of an element. A
//! single wrong tile disappears in the whole, and shows in its own norm; a single wrong element disappears in its tile.

/// Bytes of `TileError` in kernels.cu.
pub(super) const TILE_BYTES: usize = 32;
/// Rows and columns of a tile.
const TILE: u64 = 128;

/// How far a result is from its reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorNorm {
    /// ‖x − ref‖ / ‖ref‖ over all elements (0 where both are 0, infinite where only ‖ref‖ is).
    pub global: f64,
    /// The same over the worst 128 × 128 tile.
    pub worst_tile: f64,
    /// That tile: (row, column), in tiles.
    pub worst_at: (u64, u64),
    /// The largest |x − ref| of a tile over the root of the mean square of the tile's ref, over the worst tile. A
    /// single wrong element, which disappears in the norm of its tile, shows here.
    pub worst_element: f64,
    /// Elements of x that are infinite or NaN where ref is not. They make all norms infinite.
    pub nonfinite: u64,
}

impl ErrorNorm {
    /// Of no element.
    pub const NONE: ErrorNorm = ErrorNorm {
        global: 0.0,
        worst_tile: 0.0,
        worst_at: (0, 0),
        worst_element: 0.0,
        nonfinite: 0,
    };

    /// Sums the kernel's output for a matrix of `rows` and `cols`: one record per tile, row-major.
    ///
    /// A tile whose reference is near 0 by chance (the last one of a ragged shape may be a single element) is measured
    /// against a tenth of the mean square of the whole. `own`: how many rows of each row of tiles count, where the
    /// others are 0 on both sides; all of them without it.
    pub(super) fn from_tiles(bytes: &[u8], rows: u64, cols: u64, own: Option<&[u64]>) -> ErrorNorm {
        let extent = |n: u64, i: u64| n.saturating_sub(i * TILE).min(TILE);
        let height = |i: u64| match own {
            None => extent(rows, i),
            Some(own) => own.get(i as usize).copied().unwrap_or(0).min(TILE),
        };
        let tile_cols = cols.div_ceil(TILE).max(1);
        let tiles = bytes.as_chunks::<TILE_BYTES>().0.iter().map(|tile| {
            let words = tile.as_chunks::<8>().0;
            let [e, r, largest] = [words[0], words[1], words[3]].map(f64::from_le_bytes);
            (e, r, largest, u64::from_le_bytes(words[2]))
        });
        let (mut error, mut reference) = (0.0, 0.0);
        let mut norm = ErrorNorm::NONE;
        for (e, r, _, bad) in tiles.clone() {
            error += e;
            reference += r;
            norm.nonfinite += bad;
        }
        norm.global = relative(error, reference, norm.nonfinite);
        let counted: u64 = (0..rows.div_ceil(TILE)).map(height).sum();
        let mean = reference / (counted * cols).max(1) as f64;
        for (i, (e, r, largest, bad)) in tiles.enumerate() {
            let at = (i as u64 / tile_cols, i as u64 % tile_cols);
            let count = (height(at.0) * extent(cols, at.1)) as f64;
            let r = r.max(0.1 * mean * count);
            let this = relative(e, r, bad);
            if this > norm.worst_tile {
                norm.worst_tile = this;
                norm.worst_at = at;
            }
            norm.worst_element =
                norm.worst_element.max(relative(largest * largest * count, r, bad));
        }
        norm
    }
}

fn relative(error: f64, reference: f64, nonfinite: u64) -> f64 {
    if nonfinite > 0 || !error.is_finite() {
        f64::INFINITY
    } else if error == 0.0 {
        0.0
    } else {
        (error / reference).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of tiles with these sums of squares, largest errors, and elements that are not finite.
    fn tiles(of: &[(f64, f64, f64, u64)]) -> Vec<u8> {
        let bytes = |(e, r, largest, n): &(f64, f64, f64, u64)| {
            [e.to_le_bytes(), r.to_le_bytes(), n.to_le_bytes(), largest.to_le_bytes()].concat()
        };
        of.iter().flat_map(bytes).collect()
    }

    #[test]
    fn one_bad_tile_shows() {
        let good = (0.0, 16384.0, 0.0, 0);
        let norm = ErrorNorm::from_tiles(
            &tiles(&[good, good, good, (655.36, 16384.0, 0.5, 0)]),
            256,
            256,
            None,
        );
        assert_eq!((norm.global, norm.worst_tile, norm.worst_element), (0.1, 0.2, 0.5));
        assert_eq!(norm.worst_at, (1, 1));
    }

    #[test]
    fn one_bad_element_shows() {
        let norm = ErrorNorm::from_tiles(&tiles(&[(1.0, 16384.0, 1.0, 0)]), 128, 128, None);
        assert_eq!((norm.worst_tile, norm.worst_element), (1.0 / 128.0, 1.0));
    }

    /// Rows that do not count are no part of a mean: an error is as large among few rows as among many.
    #[test]
    fn rows_that_do_not_count_make_no_element_small() {
        let few = tiles(&[(0.01, 6.0 * 128.0, 0.1, 0), (0.0, 16384.0, 0.0, 0), (0.0, 0.0, 0.0, 0)]);
        let of = |own| ErrorNorm::from_tiles(&few, 384, 128, own).worst_element;
        assert!((of(Some(&[6, 128, 0])) - 0.1).abs() < 1e-9);
        assert!(of(None) > 0.3);
    }

    #[test]
    fn a_small_tile_is_measured_against_the_whole() {
        let all = tiles(&[(0.0, 16384.0, 0.0, 0), (1e-6, 1e-9, 1e-3, 0)]);
        let norm = ErrorNorm::from_tiles(&all, 129, 128, None);
        assert!(norm.worst_tile < 1e-3, "{norm:?}");
    }

    #[test]
    fn a_nan_is_never_small() {
        let norm =
            ErrorNorm::from_tiles(&tiles(&[(0.0, 1.0, 0.0, 1), (0.0, 1.0, 0.0, 0)]), 1, 256, None);
        assert_eq!((norm.global, norm.worst_tile), (f64::INFINITY, f64::INFINITY));
        assert_eq!((norm.nonfinite, norm.worst_at), (1, (0, 0)));
    }

    #[test]
    fn a_zero_reference_is_met_exactly_or_not_at_all() {
        let of = |tile| ErrorNorm::from_tiles(&tiles(&[tile]), 128, 128, None).global;
        assert_eq!(of((0.0, 0.0, 0.0, 0)), 0.0);
        assert_eq!(of((1.0, 0.0, 1.0, 0)), f64::INFINITY);
    }
}
