//! Dimensions that come with each launch: what they do to shapes, tensor maps, and the hash that ranks compare.

use crate::{Error, Result};
use mk_abi::{KernelSource, MapBase, TensorMapSpec};

/// Checks the values that a launch gives.
///
/// # Errors
/// [`Error::Count`] for another number of values than the kernel has dimensions; [`Error::Shape`] for one outside its
/// bounds.
pub(super) fn check_dims(source: &KernelSource, dims: &[u32]) -> Result<()> {
    let expected = source.runtime_dims.len();
    if dims.len() != expected {
        return Err(Error::Count {
            kernel: source.name.clone(),
            what: "run-time dimensions",
            expected,
            given: dims.len(),
        });
    }
    for (dim, value) in source.runtime_dims.iter().zip(dims) {
        if !(dim.min..=dim.max).contains(value) {
            let what = format!(
                "kernel {}: {} = {value} is not from {} to {}, which it was compiled for",
                source.name, dim.name, dim.min, dim.max
            );
            return Err(Error::Shape { what });
        }
    }
    Ok(())
}

/// A tensor map of the launch's extents: boxes beyond them are clipped. Replaces the dimensions of a map of the
/// caller's tensor that a run-time dimension decides by those of the tensor; if it decides the first, that one and the
/// row.
pub(super) fn map(
    source: &KernelSource,
    rank: u32,
    spec: &TensorMapSpec,
    dims: &[u32],
) -> TensorMapSpec {
    let mut spec = spec.clone();
    let MapBase::Tensor(t) = spec.base else { return spec };
    let Some((dim, rows)) = source.runtime_rows(rank, t as usize, dims) else { return spec };
    // Innermost first.
    let Some(at) = spec.dims.len().checked_sub(1 + dim) else { return spec };
    spec.dims[at] = rows;
    // Strides of dimensions outside the run-time one change with it: innermost first, from the second one on.
    for outer in at.max(1)..spec.strides_bytes.len() {
        spec.strides_bytes[outer] = spec.strides_bytes[outer - 1] * spec.dims[outer].max(1);
    }
    spec
}

/// Whether a run-time dimension decides the rows of a tensor.
pub(super) fn decides(source: &KernelSource, tensor: usize) -> bool {
    source.runtime_dims.iter().flat_map(|d| &d.tensors).any(|t| t.tensor as usize == tensor)
}

/// Hash of plan and values (FNV-1a over their bytes): detects ranks that enter with different ones.
pub(super) fn launch_hash(plan_hash: u32, dims: &[u32]) -> u32 {
    dims.iter()
        .flat_map(|d| d.to_le_bytes())
        .fold(plan_hash, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::contract::tests::source;
    use mk_abi::{RuntimeDim, RuntimeRows, Share};

    fn dynamic(share: Share) -> KernelSource {
        let mut source = source();
        source.world_size = 3;
        source.ranks = vec![source.ranks[0].clone(); 3];
        let tensors = vec![RuntimeRows { tensor: 0, dim: 0, share }];
        source.runtime_dims = vec![RuntimeDim { name: "M".into(), min: 1, max: 8, tensors }];
        source
    }

    #[test]
    fn rows_follow_the_launch() {
        let whole = dynamic(Share::Whole);
        assert_eq!(whole.shapes(2, &[5]), [[5, 16]]);
        let part = dynamic(Share::Part);
        let of = |rank| part.shapes(rank, &[5])[0][0];
        assert_eq!([of(0), of(1), of(2)], [2, 2, 1]);
        let of = |rank| part.shapes(rank, &[2])[0][0];
        assert_eq!([of(0), of(1), of(2)], [1, 1, 0]);
        let spec = map(&part, 2, &part.ranks[2].maps[0], &[5]);
        assert_eq!(spec.dims, [16, 1]);
    }

    /// `[3, M, 2, 16]`, whose second dimension comes with the launch.
    #[test]
    fn strides_follow_a_dimension_inside() {
        let mut source = dynamic(Share::Zigzag);
        source.runtime_dims[0].tensors[0].dim = 1;
        for binding in &mut source.ranks {
            binding.tensor_shapes[0] = vec![3, 8, 2, 16];
        }
        let mut spec = source.ranks[0].maps[0].clone();
        spec.dims = vec![16, 2, 8, 3];
        spec.strides_bytes = vec![32, 64, 512];
        // Parts of one: 0 to 4, and one that is empty.
        for (rank, rows) in [(0, 1), (1, 2), (2, 2)] {
            assert_eq!(source.shapes(rank, &[5])[0], [3, rows, 2, 16]);
            let now = map(&source, rank, &spec, &[5]);
            assert_eq!((now.dims, now.strides_bytes[2]), (vec![16, 2, rows, 3], 64 * rows));
        }
    }

    #[test]
    fn values_outside_the_bound_are_refused() {
        let source = dynamic(Share::Part);
        assert!(check_dims(&source, &[8]).is_ok());
        assert!(matches!(check_dims(&source, &[]), Err(Error::Count { expected: 1, .. })));
        for bad in [0, 9] {
            let error = check_dims(&source, &[bad]).expect_err("refused").to_string();
            assert!(error.contains("is not from 1 to 8"), "{error}");
        }
        // Of tokens there may be none, and then no rank has rows.
        let mut tokens = dynamic(Share::Part);
        tokens.runtime_dims[0].min = 0;
        assert!(check_dims(&tokens, &[0]).is_ok() && check_dims(&tokens, &[9]).is_err());
        assert_eq!([0, 1, 2].map(|rank| tokens.shapes(rank, &[0])[0][0]), [0; 3]);
    }

    #[test]
    fn hashes_tell_values_apart() {
        assert_eq!(launch_hash(7, &[]), 7);
        assert_ne!(launch_hash(7, &[1]), launch_hash(7, &[2]));
        assert_ne!(launch_hash(7, &[256]), launch_hash(7, &[1]));
    }
}
