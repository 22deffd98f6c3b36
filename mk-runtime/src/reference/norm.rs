//! Error norms: relative Frobenius norms over the whole and over each tile. A single wrong tile disappears in the
//! whole, and shows in its own norm.

/// Bytes of `TileError` in kernels.cu.
pub(super) const TILE_BYTES: usize = 24;

/// How far a result is from its reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorNorm {
    /// ‖x − ref‖ / ‖ref‖ over all elements (0 where both are 0, infinite where only ‖ref‖ is).
    pub global: f64,
    /// The same over the worst 128 × 128 tile.
    pub worst_tile: f64,
    /// That tile: (row, column), in tiles.
    pub worst_at: (u64, u64),
    /// Elements of x that are infinite or NaN. They make both norms infinite.
    pub nonfinite: u64,
}

impl ErrorNorm {
    /// Sums the kernel's output: one record per tile, row-major, `tile_cols` in a row.
    pub(super) fn from_tiles(bytes: &[u8], tile_cols: u64) -> ErrorNorm {
        let (mut error, mut reference) = (0.0, 0.0);
        let mut norm = ErrorNorm { global: 0.0, worst_tile: 0.0, worst_at: (0, 0), nonfinite: 0 };
        for (i, tile) in bytes.as_chunks::<TILE_BYTES>().0.iter().enumerate() {
            let words = tile.as_chunks::<8>().0;
            let (e, r) = (f64::from_le_bytes(words[0]), f64::from_le_bytes(words[1]));
            let bad = u64::from_le_bytes(words[2]);
            error += e;
            reference += r;
            norm.nonfinite += bad;
            let this = relative(e, r, bad);
            if this > norm.worst_tile {
                norm.worst_tile = this;
                norm.worst_at = (i as u64 / tile_cols, i as u64 % tile_cols);
            }
        }
        norm.global = relative(error, reference, norm.nonfinite);
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

    fn tiles(of: &[(f64, f64, u64)]) -> Vec<u8> {
        of.iter()
            .flat_map(|(e, r, n)| [e.to_le_bytes(), r.to_le_bytes(), n.to_le_bytes()].concat())
            .collect()
    }

    #[test]
    fn one_bad_tile_shows() {
        let norm = ErrorNorm::from_tiles(
            &tiles(&[(0.0, 100.0, 0), (0.0, 100.0, 0), (0.0, 100.0, 0), (4.0, 100.0, 0)]),
            2,
        );
        assert_eq!((norm.global, norm.worst_tile), (0.1, 0.2));
        assert_eq!(norm.worst_at, (1, 1));
    }

    #[test]
    fn a_nan_is_never_small() {
        let norm = ErrorNorm::from_tiles(&tiles(&[(0.0, 1.0, 1), (0.0, 1.0, 0)]), 2);
        assert_eq!((norm.global, norm.worst_tile), (f64::INFINITY, f64::INFINITY));
        assert_eq!((norm.nonfinite, norm.worst_at), (1, (0, 0)));
    }

    #[test]
    fn a_zero_reference_is_met_exactly_or_not_at_all() {
        assert_eq!(ErrorNorm::from_tiles(&tiles(&[(0.0, 0.0, 0)]), 1).global, 0.0);
        assert_eq!(ErrorNorm::from_tiles(&tiles(&[(1.0, 0.0, 0)]), 1).global, f64::INFINITY);
    }
}
