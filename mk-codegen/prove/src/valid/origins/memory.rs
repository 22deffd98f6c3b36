//! What rows of integers have, piece by piece.

use mk_plan::{BufId, Region, TabId};
use std::collections::{BTreeMap, HashMap};

/// What a row of integers has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The experts of a token.
    Experts(Ids),
    /// The list of a chunk of tokens.
    List(Chunk),
    /// Where the rows of a chunk begin, and behind all chunks those of experts, of a partition.
    Bases(usize),
    /// A row of a table of a rank.
    Table(TabId, usize),
    /// Something else.
    Other,
}

/// The input that has the experts of tokens, and the first of the ranks that share them.
pub(super) type Ids = (BufId, usize);

/// Tokens that are listed together; if there are none, they are of no input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub ids: Option<Ids>,
    pub experts: u32,
    pub first: i64,
    pub tokens: i64,
}

/// Rows that have rows of one thing, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The first row in memory, and the one behind the last.
    pub begin: i64,
    pub end: i64,
    pub what: What,
    /// The row of the thing that the first one has.
    pub at: i64,
}

/// A buffer on a rank, of one version.
pub(super) type Slab = (BufId, usize, i64);

/// The rows of a region: those of its first dimension.
pub(super) fn rows(region: &Region) -> (i64, i64) {
    region.dims.first().map_or((0, 1), |(base, n)| (*base, base + n))
}

pub(super) fn slab(region: &Region) -> Slab {
    (region.buffer, region.rank, region.version)
}

/// All memory of integers.
#[derive(Default)]
pub(super) struct Memory {
    /// Pieces by their first rows.
    slabs: HashMap<Slab, BTreeMap<i64, Piece>>,
}

impl Memory {
    /// Rows of a region have something from now on; of rows that had something already nothing is known.
    pub fn put(&mut self, slab: Slab, (begin, end): (i64, i64), what: What, at: i64) {
        let pieces = self.slabs.entry(slab).or_default();
        let mut piece = Piece { begin, end, what, at };
        let met: Vec<i64> = pieces
            .range(..end)
            .rev()
            .take_while(|(_, p)| p.end > begin)
            .map(|(from, _)| *from)
            .collect();
        for from in met {
            if let Some(p) = pieces.remove(&from) {
                let (begin, end) = (piece.begin.min(p.begin), piece.end.max(p.end));
                piece = Piece { begin, end, what: What::Other, at: 0 };
            }
        }
        pieces.insert(piece.begin, piece);
    }

    /// What rows have, one after the other; none if nobody has written one of them.
    pub fn get(&self, slab: Slab, (begin, end): (i64, i64)) -> Option<Vec<Piece>> {
        let mut out: Vec<Piece> = Vec::new();
        if begin >= end {
            return Some(out);
        }
        let pieces = self.slabs.get(&slab)?;
        let first = pieces.range(..=begin).next_back()?.0;
        let mut next = begin;
        for (_, p) in pieces.range(*first..end) {
            if p.begin > next || p.end <= next {
                break;
            }
            let (to, at) = (p.end.min(end), p.at + next - p.begin);
            match out.last_mut() {
                Some(last) if last.what == p.what && last.at + next - last.begin == at => {
                    last.end = to;
                }
                _ => out.push(Piece { begin: next, end: to, what: p.what.clone(), at }),
            }
            next = to;
        }
        (next >= end).then_some(out)
    }

    /// All pieces of a buffer, with their ranks.
    pub fn of(&self, buffer: BufId) -> impl Iterator<Item = (usize, &Piece)> {
        let slabs = self.slabs.iter().filter(move |(slab, _)| slab.0 == buffer);
        slabs.flat_map(|(slab, pieces)| pieces.values().map(|p| (slab.1, p)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_plan::Entity;

    #[test]
    fn pieces_meet_where_they_go_on() {
        let (mut memory, ids) = (Memory::default(), (BufId::new(1), 0));
        let slab = (BufId::new(0), 0, 0);
        let experts = || What::Experts(ids);
        memory.put(slab, (0, 20), experts(), 0);
        memory.put(slab, (20, 40), experts(), 20);
        memory.put(slab, (40, 60), experts(), 41);
        let piece = |begin, end, at| Piece { begin, end, what: experts(), at };
        assert_eq!(memory.get(slab, (5, 30)), Some(vec![piece(5, 30, 5)]));
        assert_eq!(memory.get(slab, (39, 42)), Some(vec![piece(39, 40, 39), piece(40, 42, 41)]));
        assert_eq!(memory.get(slab, (59, 61)), None);
        memory.put(slab, (10, 11), experts(), 10);
        let other = Piece { begin: 0, end: 20, what: What::Other, at: 0 };
        assert_eq!(memory.get(slab, (0, 20)), Some(vec![other]));
    }
}
