//! Which part of a global tensor a rank holds.

use mk_syntax::Placement;
use std::ops::Range;

/// The part of a global tensor that one rank holds, cut as `torch.chunk` does: `ceil(n / ranks)` each, the last ranks
/// less or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Vec<usize>,
    /// The sharded dimensions, and the rank's part of each: two parts in zigzag.
    cuts: Vec<(usize, [Range<usize>; 2])>,
}

impl Layout {
    /// Part `rank` of `ranks` of a tensor of global shape `shape`, row-major, at least one dimension.
    pub fn new(shape: &[u64], placement: Placement, ranks: usize, rank: usize) -> Layout {
        Layout::over(shape, &[placement], &[ranks], rank)
    }

    /// The same of one placed over several axes of so many ranks, at a place along them: row-major, the last one
    /// fastest. Of axes that share a dimension, each cuts what those before it leave.
    pub fn over(shape: &[u64], placement: &[Placement], sizes: &[usize], place: usize) -> Layout {
        let shape: Vec<usize> = shape.iter().map(|n| *n as usize).collect();
        let part = |of: Range<usize>, parts: usize, i: usize| {
            let each = of.len().div_ceil(parts.max(1));
            let at = |i: usize| (of.start + i * each).min(of.end);
            at(i)..at(i + 1)
        };
        let mut layout = Layout { shape, cuts: Vec::new() };
        for (axis, placement) in placement.iter().enumerate() {
            let ranks = sizes.get(axis).copied().unwrap_or(1);
            let behind: usize = sizes.iter().skip(axis + 1).product();
            let rank = place / behind.max(1) % ranks.max(1);
            let Some(dim) = placement.cut().filter(|dim| *dim < layout.shape.len()) else {
                continue;
            };
            let whole = layout.range(dim);
            let parts = match placement {
                Placement::Zigzag(_) => {
                    let [first, second] = [rank, (2 * ranks).saturating_sub(rank + 1)];
                    [first, second].map(|i| part(whole.clone(), 2 * ranks, i))
                }
                _ => [part(whole.clone(), ranks, rank), whole.end..whole.end],
            };
            layout.cuts.retain(|(cut, _)| *cut != dim);
            layout.cuts.push((dim, parts));
        }
        layout
    }

    /// The rank's part of a sharded dimension.
    fn cut(&self, dim: usize) -> Option<&[Range<usize>; 2]> {
        self.cuts.iter().find(|(cut, _)| *cut == dim).map(|(_, parts)| parts)
    }

    /// The local shape.
    pub fn shape(&self) -> Vec<u64> {
        (0..self.shape.len()).map(|d| self.places(d).count() as u64).collect()
    }

    /// The part of dimension `dim` that the rank holds; of a dimension in zigzag the first one.
    pub fn range(&self, dim: usize) -> Range<usize> {
        match self.cut(dim) {
            Some([first, _]) => first.clone(),
            None => 0..self.shape.get(dim).copied().unwrap_or(1),
        }
    }

    /// The parts of dimension `dim` that the rank holds, in order; the second is empty but in zigzag.
    pub fn parts(&self, dim: usize) -> [Range<usize>; 2] {
        match self.cut(dim) {
            Some(parts) => parts.clone(),
            None => [self.range(dim), 0..0],
        }
    }

    /// The indices of dimension `dim` that the rank holds, in the order in which they lie there.
    pub fn places(&self, dim: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let second = self.cut(dim).map_or(0..0, |[_, second]| second.clone());
        self.range(dim).chain(second)
    }

    /// Local elements.
    pub fn elements(&self) -> usize {
        (0..self.shape.len()).map(|d| self.places(d).count()).product()
    }

    /// Global rows (extent of dimension 0) that the rank holds.
    pub fn rows(&self) -> Range<usize> {
        self.range(0)
    }

    /// For each element of a local row, in order, its place in the global row. A row is everything below dimension 0.
    pub fn columns(&self) -> Vec<usize> {
        let mut columns = vec![0];
        for dim in 1..self.shape.len() {
            let extent = self.shape[dim];
            let places = self.places(dim);
            columns = columns
                .iter()
                .flat_map(|at| places.clone().map(move |i| at * extent + i))
                .collect();
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(shape: &[u64], placement: Placement, ranks: usize) -> Vec<Vec<u64>> {
        (0..ranks).map(|r| Layout::new(shape, placement, ranks, r).shape()).collect()
    }

    #[test]
    fn the_last_ranks_own_less_or_nothing() {
        assert_eq!(shapes(&[5, 2], Placement::Shard(0), 4), [[2, 2], [2, 2], [1, 2], [0, 2]]);
        assert_eq!(shapes(&[2, 5], Placement::Shard(1), 3), [[2, 2], [2, 2], [2, 1]]);
        assert_eq!(shapes(&[2, 5], Placement::Partial, 2), [[2, 5], [2, 5]]);
        assert_eq!(shapes(&[1], Placement::Shard(0), 3), [[1], [0], [0]]);
        assert_eq!(shapes(&[1, 11], Placement::Zigzag(1), 3), [[1, 3], [1, 4], [1, 4]]);
    }

    #[test]
    fn two_axes_cut_two_dimensions() {
        let placement = [Placement::Shard(1), Placement::Shard(0)];
        let part = |place| Layout::over(&[5, 4], &placement, &[2, 3], place);
        assert_eq!((part(1).rows(), part(1).columns()), (2..4, vec![0, 1]));
        assert_eq!((part(5).rows(), part(5).columns()), (4..5, vec![2, 3]));
    }

    #[test]
    fn two_axes_cut_one_dimension() {
        let placement = [Placement::Shard(0), Placement::Shard(0)];
        let rows = |n, place| Layout::over(&[n, 4], &placement, &[2, 3], place).rows();
        let of = |n| (0..6).map(|place| rows(n, place)).collect::<Vec<_>>();
        assert_eq!(of(12), [0..2, 2..4, 4..6, 6..8, 8..10, 10..12]);
        // As `torch.chunk` of a chunk.
        assert_eq!(of(9), [0..2, 2..4, 4..5, 5..7, 7..9, 9..9]);
    }

    #[test]
    fn columns_of_every_rank_make_the_row() {
        let part = |dim, rank| Layout::new(&[7, 2, 3], Placement::Shard(dim), 2, rank);
        assert_eq!(part(2, 0).columns(), [0, 1, 3, 4]);
        assert_eq!(part(2, 1).columns(), [2, 5]);
        assert_eq!(part(1, 1).columns(), [3, 4, 5]);
        let zigzag = |rank| Layout::new(&[1, 10], Placement::Zigzag(1), 2, rank).columns();
        assert_eq!((zigzag(0), zigzag(1)), (vec![0, 1, 2, 9], vec![3, 4, 5, 6, 7, 8]));
        assert_eq!((part(0, 1).rows(), part(0, 1).columns().len()), (4..7, 6));
    }
}
