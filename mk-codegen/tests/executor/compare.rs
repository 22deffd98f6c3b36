//! Outputs against a reference: relative error of the whole, and of every 16 x 16 tile, so that one bad tile cannot hide.

use crate::harness::{Data, Tensor};

/// The value that each element of an output must have, or `None` where nothing may be written.
pub type Reference = dyn Fn(&Data, i64, usize) -> Vec<Option<f64>>;

const TILE: usize = 16;

/// What differs, if anything.
pub fn check(
    data: &Data,
    name: &str,
    reference: &Reference,
    whole: f64,
    tile: f64,
) -> Result<(), String> {
    for ((epoch, rank, output), got) in &data.outputs {
        if output == name {
            let want = reference(data, *epoch, *rank);
            one(got, &want, whole, tile).map_err(|e| format!("epoch {epoch} rank {rank}: {e}"))?;
        }
    }
    Ok(())
}

fn one(got: &Tensor, want: &[Option<f64>], whole: f64, tile: f64) -> Result<(), String> {
    assert_eq!(got.values.len(), want.len());
    let cols = got.shape[1..].iter().product::<usize>().max(1);
    let mut sums = std::collections::BTreeMap::new();
    for (i, (x, y)) in got.values.iter().zip(want).enumerate() {
        let (row, col) = (i / cols, i % cols);
        let Some(y) = y else {
            if x.is_nan() {
                continue;
            }
            return Err(format!("[{row}, {col}] was written, with {x}"));
        };
        if !x.is_finite() {
            return Err(format!("[{row}, {col}] is {x}, not {y}"));
        }
        let sum: &mut (f64, f64, f64) = sums.entry((row / TILE, col / TILE)).or_default();
        *sum = (sum.0 + (f64::from(*x) - y).powi(2), sum.1 + y * y, sum.2 + 1.0);
    }
    let all = sums.values().fold((0.0, 0.0, 0.0), |a, s| (a.0 + s.0, a.1 + s.1, a.2 + s.2));
    for ((i, j), sum) in sums {
        // A tile of a few elements may be near 0 by chance.
        let norm = sum.1.max(0.1 * all.1 * sum.2 / all.2);
        let error = (sum.0 / norm).sqrt();
        if error > tile {
            return Err(format!("tile {i}, {j}: relative error {error:.2e}"));
        }
    }
    let error = if all.1 > 0.0 { (all.0 / all.1).sqrt() } else { 0.0 };
    if error > whole { Err(format!("relative error {error:.2e}")) } else { Ok(()) }
}
