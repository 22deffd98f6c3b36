//! Names of ranks, words and elements under a rotation of the ranks (`symmetry.rs`).

/// Names of words and ranks under rotation. Not folded, nothing turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    /// Ranks that rank 0 stands for.
    ranks: u32,
    /// Words of one rank; not folded, of all.
    words: u32,
}

impl Rotation {
    pub fn none(words: usize) -> Rotation {
        Rotation { ranks: 1, words: (words as u32).max(1) }
    }

    /// All ranks, each of which has so many words.
    pub fn of(ranks: usize, words: usize) -> Rotation {
        Rotation { ranks: ranks as u32, words: (words as u32).max(1) }
    }

    pub fn is_folded(&self) -> bool {
        self.ranks > 1
    }

    /// Ranks that one stands for.
    pub fn fold(&self) -> u64 {
        u64::from(self.ranks)
    }

    /// A rank, turned.
    pub fn rank(&self, rank: u32, turn: u32) -> u32 {
        if turn == 0 { rank } else { (rank + turn) % self.ranks }
    }

    /// The turn that undoes one.
    pub fn back(&self, turn: u32) -> u32 {
        if turn == 0 { 0 } else { self.ranks - turn }
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
        if self.ranks == 1 { word } else { word % self.words }
    }

    /// The turn from there to the word.
    pub fn turn_of(&self, word: u32) -> u32 {
        if self.ranks == 1 { 0 } else { word / self.words }
    }

    /// The rank whose kernel stands for a rank's, and the turn from there.
    pub fn kernel(&self, rank: u32) -> (u32, u32) {
        if self.ranks == 1 { (rank, 0) } else { (0, rank) }
    }
}

/// The dimensions that a rotation turns by blocks, of buffers and of signals.
pub(super) struct Turned {
    pub buffers: Vec<Vec<bool>>,
    pub signals: Vec<Vec<bool>>,
}

/// Where a stretch of a dimension of a rank's memory lies as rank 0 has it; `None` if the map does not keep it in one
/// piece.
pub(super) fn turned_back(
    extent: i64,
    (base, len): (i64, i64),
    rank: usize,
    ranks: usize,
) -> Option<i64> {
    if len == extent {
        return Some(base);
    }
    let block = extent / ranks as i64;
    let (first, last) = (base / block, (base + len - 1) / block);
    let turned = (first - rank as i64).rem_euclid(ranks as i64);
    (first == last).then_some(turned * block + base % block)
}
