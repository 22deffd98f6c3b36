//! Blocks of elements.

/// A block of elements, row-major. Of a region, `cols` is the last extent and `rows` the product of the others.
#[derive(Clone, Debug)]
pub(super) struct Tile<E> {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<E>,
}

impl<E: Copy> Tile<E> {
    pub fn filled(rows: usize, cols: usize, with: E) -> Tile<E> {
        Tile { rows, cols, data: vec![with; rows * cols] }
    }

    pub fn row(&self, i: usize) -> &[E] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    pub fn transposed(&self) -> Tile<E> {
        let at = |i: usize| (0..self.rows).map(move |r| self.data[r * self.cols + i]);
        Tile { rows: self.cols, cols: self.rows, data: (0..self.cols).flat_map(at).collect() }
    }
}
