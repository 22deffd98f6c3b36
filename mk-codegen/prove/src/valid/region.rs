//! Geometry of regions: overlap, area and cover.

/// A region: base and length in each dimension, every length at least 1.
pub(super) type Dims = Box<[(i64, i64)]>;

/// Whether two boxes have an element in common.
pub(super) fn meet(a: &[(i64, i64)], b: &[(i64, i64)]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.0 < b.0 + b.1 && b.0 < a.0 + a.1)
}

/// Number of elements that two boxes have in common.
pub(super) fn common_area(a: &[(i64, i64)], b: &[(i64, i64)]) -> i64 {
    let common =
        |(a, b): (&(i64, i64), &(i64, i64))| ((a.0 + a.1).min(b.0 + b.1) - a.0.max(b.0)).max(0);
    a.iter().zip(b).map(common).fold(1, i64::saturating_mul)
}

/// The common part of two boxes.
pub(super) fn intersect(a: &[(i64, i64)], b: &[(i64, i64)]) -> Option<Dims> {
    a.iter()
        .zip(b)
        .map(|(a, b)| {
            let base = a.0.max(b.0);
            let len = (a.0 + a.1).min(b.0 + b.1) - base;
            (len > 0).then_some((base, len))
        })
        .collect()
}

/// Number of elements. Boxes lie inside buffers, whose size is bounded, so that this does not overflow.
pub(super) fn area(dims: &[(i64, i64)]) -> i64 {
    dims.iter().fold(1i64, |n, d| n.saturating_mul(d.1))
}

/// A part of `whole` that no box of `parts` covers.
pub(super) fn uncovered<'a>(
    whole: &[(i64, i64)],
    parts: impl IntoIterator<Item = &'a [(i64, i64)]>,
) -> Option<Dims> {
    let mut left: Vec<Dims> = vec![whole.into()];
    for part in parts {
        let mut next = Vec::with_capacity(left.len());
        for piece in left {
            subtract(piece, part, &mut next);
        }
        left = next;
        if left.is_empty() {
            return None;
        }
    }
    left.into_iter().next()
}

/// Pushes the pieces of `piece` outside `part`.
fn subtract(mut piece: Dims, part: &[(i64, i64)], out: &mut Vec<Dims>) {
    let Some(hole) = intersect(&piece, part) else {
        out.push(piece);
        return;
    };
    for d in 0..piece.len() {
        let (base, len) = piece[d];
        let (hole_base, hole_len) = hole[d];
        let (end, hole_end) = (base + len, hole_base + hole_len);
        for (from, to) in [(base, hole_base), (hole_end, end)] {
            if from < to {
                let mut rest = piece.clone();
                rest[d] = (from, to - from);
                out.push(rest);
            }
        }
        piece[d] = hole[d];
    }
}

/// `[0 : 128, 64 : 32]`.
pub(super) fn text(dims: &[(i64, i64)]) -> String {
    let parts: Vec<_> = dims.iter().map(|d| format!("{} : {}", d.0, d.1)).collect();
    format!("[{}]", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cover_is_exact() {
        let whole = [(0, 4), (0, 4)];
        let quarters: Vec<[(i64, i64); 2]> =
            vec![[(0, 2), (0, 2)], [(0, 2), (2, 2)], [(2, 2), (0, 2)], [(2, 2), (2, 2)]];
        assert_eq!(uncovered(&whole, quarters.iter().map(|q| q.as_slice())), None);
        let missing = uncovered(&whole, quarters[..3].iter().map(|q| q.as_slice()));
        assert_eq!(missing.as_deref(), Some(&quarters[3][..]));
        // Overlapping parts do not count twice.
        let twice = [&quarters[0][..], &quarters[0][..]];
        assert!(uncovered(&whole, twice).is_some());
    }
}
