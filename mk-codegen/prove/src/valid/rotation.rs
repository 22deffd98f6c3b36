//! Names of ranks, words and elements when ranks are turned along the axes of their mesh (`symmetry.rs`).

use mk_plan::Mesh;

/// Most axes that ranks are turned along.
const MAX_AXES: usize = 4;

/// The ranks of a mesh. A *turn* is one of them, too: the rank that rank 0 is taken to, by as many places along each
/// axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Torus {
    sizes: [u32; MAX_AXES],
}

impl Torus {
    /// Those of a mesh, if it has few axes.
    pub fn of(mesh: &Mesh) -> Option<Torus> {
        let mut sizes = [1; MAX_AXES];
        let axes: Vec<u32> = mesh.axes.iter().map(|a| a.1).filter(|n| *n > 1).collect();
        sizes.get_mut(..axes.len())?.copy_from_slice(&axes);
        Some(Torus { sizes })
    }

    fn ranks(self) -> u32 {
        self.sizes.iter().product()
    }

    /// The rank whose place along each axis is this function of those of two ranks, modulo the axis' size.
    fn zip(self, a: u32, b: u32, f: impl Fn(u32, u32, u32) -> u32) -> u32 {
        let (mut a, mut b, mut stride, mut rank) = (a, b, 1, 0);
        for n in self.sizes.iter().rev() {
            rank += f(a % n, b % n, *n) % n * stride;
            (a, b, stride) = (a / n, b / n, stride * n);
        }
        rank
    }

    /// A rank, turned.
    pub fn add(self, rank: u32, turn: u32) -> u32 {
        if turn == 0 { rank } else { self.zip(rank, turn, |a, b, _| a + b) }
    }

    /// The turn from one rank to another.
    pub fn turn_between(self, from: u32, to: u32) -> u32 {
        self.zip(to, from, |a, b, n| a + n - b)
    }

    /// One place along each axis of more than one rank, as a turn.
    pub fn steps(self) -> impl Iterator<Item = u32> {
        let strides = (0..MAX_AXES).map(move |i| self.sizes[i + 1..].iter().product());
        self.sizes.into_iter().zip(strides).filter(|(n, _)| *n > 1).map(|(_, stride)| stride)
    }

    /// Ways in which blocks of a dimension may turn.
    pub fn ways(self) -> Vec<Way> {
        let several = self.sizes.iter().filter(|n| **n > 1).count() > 1;
        let all = several.then_some(Way { torus: self, axis: None });
        let axes = (0..MAX_AXES).filter(|i| self.sizes[*i] > 1);
        axes.map(|i| Way { torus: self, axis: Some(i) }).chain(all).collect()
    }
}

/// How blocks of a dimension turn with ranks: one for each place along an axis, or for each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    torus: Torus,
    axis: Option<usize>,
}

impl Way {
    pub fn blocks(self) -> i64 {
        let Way { torus, axis } = self;
        i64::from(axis.map_or(torus.ranks(), |i| torus.sizes[i]))
    }

    /// A block of a rank's memory as rank 0 has it.
    fn back(self, block: u32, rank: u32) -> u32 {
        let Way { torus, axis } = self;
        let Some(i) = axis else { return torus.turn_between(rank, block) };
        let stride: u32 = torus.sizes[i + 1..].iter().product();
        let n = torus.sizes[i];
        (block + n - rank / stride % n) % n
    }

    /// Where a stretch of a dimension of a rank's memory lies as rank 0 has it; `None` if the map does not keep it in
    /// one piece.
    pub fn turned_back(self, extent: i64, (base, len): (i64, i64), rank: usize) -> Option<i64> {
        if len == extent {
            return Some(base);
        }
        let block = extent / self.blocks();
        // What lies outside the buffer is reported of ranks that are not folded.
        let first = u32::try_from(base / block)
            .ok()
            .filter(|b| base >= 0 && i64::from(*b) < self.blocks())?;
        let last = (base + len - 1) / block;
        let turned = i64::from(self.back(first, rank as u32));
        (i64::from(first) == last).then_some(turned * block + base % block)
    }
}

/// Names of words and ranks when ranks are turned. Not folded, nothing turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    /// Ranks that rank 0 stands for, if they are folded.
    torus: Option<Torus>,
    /// Words of one rank; not folded, of all.
    words: u32,
}

impl Rotation {
    pub fn none(words: usize) -> Rotation {
        Rotation { torus: None, words: (words as u32).max(1) }
    }

    /// All ranks, each of which has so many words.
    pub fn of(torus: Torus, words: usize) -> Rotation {
        Rotation { torus: Some(torus), words: (words as u32).max(1) }
    }

    pub fn is_folded(&self) -> bool {
        self.torus.is_some()
    }

    /// Ranks that one stands for.
    pub fn fold(&self) -> u64 {
        u64::from(self.torus.map_or(1, Torus::ranks))
    }

    /// A rank, turned.
    pub fn rank(&self, rank: u32, turn: u32) -> u32 {
        self.torus.map_or(rank, |torus| torus.add(rank, turn))
    }

    /// The turn that undoes one.
    pub fn back(&self, turn: u32) -> u32 {
        self.turn_between(turn, 0)
    }

    /// The turn from one rank to another; none where they are not folded.
    pub fn turn_between(&self, from: u32, to: u32) -> u32 {
        self.torus.map_or(0, |torus| torus.turn_between(from, to))
    }

    /// A word, turned.
    pub fn word(&self, word: u32, turn: u32) -> u32 {
        if turn == 0 {
            word
        } else {
            self.rank(word / self.words, turn) * self.words + self.own(word)
        }
    }

    /// The word of rank 0 that stands for a word.
    pub fn own(&self, word: u32) -> u32 {
        if self.torus.is_none() { word } else { word % self.words }
    }

    /// The turn from there to the word.
    pub fn turn_of(&self, word: u32) -> u32 {
        if self.torus.is_none() { 0 } else { word / self.words }
    }

    /// The rank whose kernel stands for a rank's, and the turn from there.
    pub fn kernel(&self, rank: u32) -> (u32, u32) {
        if self.torus.is_none() { (rank, 0) } else { (0, rank) }
    }
}

/// How dimensions of buffers and of signals turn by blocks; those that stay do not.
pub(super) struct Turned {
    pub buffers: Vec<Vec<Option<Way>>>,
    pub signals: Vec<Vec<Option<Way>>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_along_two_axes() {
        let mesh = Mesh { axes: vec![("tp".into(), 2), ("dp".into(), 3)] };
        let torus = Torus::of(&mesh).expect("two axes");
        assert_eq!(torus.steps().collect::<Vec<_>>(), [3, 1]);
        for (a, b) in (0..6).flat_map(|a| (0..6).map(move |b| (a, b))) {
            assert_eq!(torus.add(a, torus.turn_between(a, b)), b);
            assert_eq!(torus.add(torus.add(a, b), torus.turn_between(b, 0)), a);
        }
        // Rank 5 is the second along `tp`, and the third along `dp`.
        let ways = torus.ways();
        assert_eq!(ways.iter().map(|w| w.blocks()).collect::<Vec<_>>(), [2, 3, 6]);
        assert_eq!(ways[0].turned_back(20, (10, 5), 5), Some(0));
        assert_eq!(ways[1].turned_back(30, (0, 5), 5), Some(10));
        assert_eq!(ways[2].turned_back(6, (5, 1), 5), Some(0));
        assert_eq!(ways[2].turned_back(6, (0, 1), 5), Some(4));
        assert_eq!(ways[1].turned_back(30, (8, 5), 5), None);
        assert_eq!([-3, 30].map(|base| ways[1].turned_back(30, (base, 1), 5)), [None; 2]);
    }
}
