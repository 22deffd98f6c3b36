//! What passes where elements have no bounds: on GPUs results are compared as a whole with an fp32 reference, which has
//! none.

use crate::{
    Case, Dense, Inputs, Norms, Result, judge::Judgement, judge::judge, work::SAMPLED_WORK,
};

/// Rows of each result of which the bounds are computed.
const ROWS: usize = 3;

/// The largest norms of a right result.
///
/// They follow from the bounds of some rows, so that they hold for products that cancel and sums over many ranks, too,
/// and are 0 where nothing is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Relative Frobenius norm of the error.
    pub global: f64,
    /// The same for every 128 x 128 tile.
    pub tile: f64,
    /// The largest error of an element, over the root of the mean square of its tile.
    pub element: f64,
}

impl Tolerance {
    /// Of a pipeline with inputs of this seed: from bounds of rows of each result, evaluated on the host.
    ///
    /// # Errors
    /// [`HarnessError::Unsupported`](crate::HarnessError::Unsupported) for a mesh of several axes.
    pub fn new(case: Case<'_>, seed: u64) -> Result<Tolerance> {
        Tolerance::of(Inputs::new(case, seed))
    }

    /// The same, of these inputs.
    pub(crate) fn of(inputs: Inputs<'_>) -> Result<Tolerance> {
        let case = inputs.case();
        let mut all = Judgement::default();
        for result in case.program.results() {
            let n = case.bound.shape(*result).and_then(|s| s.first()).map_or(0, |n| *n as usize);
            let mut rows: Vec<usize> = (0..ROWS).map(|i| i * n / ROWS).filter(|r| *r < n).collect();
            rows.dedup();
            let dense = Dense::new(inputs, 1).within(SAMPLED_WORK);
            for (_, expected) in dense.expected_rows(*result, &rows)? {
                // The reference itself: only what errors may be is asked for.
                let right: Vec<f32> = expected.matrix.data.iter().map(|x| *x as f32).collect();
                all = all.and(judge(&right, &expected));
            }
        }
        let scale = all.scale;
        Ok(Tolerance {
            // Rows differ, and a few say less of a tile than of the whole.
            global: 3.0 * scale.expected,
            tile: 10.0 * scale.expected,
            // The largest element of all is larger than the largest of some rows.
            element: 4.0 * scale.largest,
        })
    }

    /// Norms in words, and what passes.
    pub fn beside(&self, norms: &Norms) -> String {
        format!(
            "error {:.2e} (at most {:.1e}), worst tile {:.2e} ({:.1e}), worst element {:.2e} ({:.1e}), {} elements \
             not finite",
            norms.global,
            self.global,
            norms.worst_tile,
            self.tile,
            norms.worst_element,
            self.element,
            norms.nonfinite
        )
    }

    /// Whether a result passes. One with elements that are not finite where the reference is never does.
    pub fn accepts(&self, norms: &Norms) -> bool {
        norms.nonfinite == 0
            && norms.global <= self.global
            && norms.worst_tile <= self.tile
            && norms.worst_element <= self.element
    }
}
