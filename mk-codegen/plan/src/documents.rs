//! Documents of packed sequences: which rows of the other side each query, or each key, meets.

use super::{leaf::Mask, names::Side};
use thiserror::Error;

/// Why numbers say of no documents where they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DocumentsError {
    /// The first document begins with the sequence.
    #[error("the first document begins at {begin}: let it begin at 0")]
    First {
        /// Where it begins.
        begin: i32,
    },
    /// A document ends before it begins.
    #[error("entry {entry} is {is}, and the one before it {before}: let them ascend")]
    Descends {
        /// Which number.
        entry: usize,
        /// It.
        is: i32,
        /// The one before it.
        before: i32,
    },
    /// Documents have more tokens than there are.
    #[error(
        "documents end at {end}, and the sequence has {rows} tokens: let them end there or before"
    )]
    Beyond {
        /// The last number.
        end: i32,
        /// Tokens of the sequence.
        rows: i32,
    },
}

/// Whether documents may begin at these places, and the last one end at the last of them.
///
/// # Errors
/// [`DocumentsError`] where a kernel ends with a fault.
pub fn check_documents(begins: &[i32], rows: i32) -> Result<(), DocumentsError> {
    if let Some(begin) = begins.first().copied().filter(|begin| *begin != 0) {
        return Err(DocumentsError::First { begin });
    }
    for (i, pair) in begins.windows(2).enumerate() {
        if pair[1] < pair[0] {
            return Err(DocumentsError::Descends { entry: i + 1, is: pair[1], before: pair[0] });
        }
    }
    match begins.last() {
        Some(end) if *end > rows => Err(DocumentsError::Beyond { end: *end, rows }),
        _ => Ok(()),
    }
}

/// The first row of the other side that a row meets, and the one behind the last: of documents that begin where these
/// numbers say. Rows of no document meet none, and are taken to lie behind all; so both ascend from row to row.
pub fn document_bounds(begins: &[i32], row: i32, side: Side, mask: Mask) -> [i32; 2] {
    let next = begins.partition_point(|begin| *begin <= row);
    let (Some(begin), Some(end)) =
        (next.checked_sub(1).and_then(|n| begins.get(n)), begins.get(next))
    else {
        return [begins.last().copied().unwrap_or(0); 2];
    };
    let within = |x: i32| x.clamp(*begin, *end);
    match (side, mask) {
        (_, Mask::Full | Mask::Bounds) => [*begin, *end],
        (Side::Queries, Mask::Causal) => [*begin, row + 1],
        (Side::Keys, Mask::Causal) => [row, *end],
        (Side::Queries, Mask::Window(keys)) => {
            [within((row + 1).saturating_sub_unsigned(keys)), row + 1]
        }
        (Side::Keys, Mask::Window(keys)) => [row, within(row.saturating_add_unsigned(keys))],
    }
}

/// The bounds of so many rows from the first on, row by row.
///
/// # Errors
/// As [`check_documents`], of all rows that there are.
pub fn bounds_table(
    begins: &[i32],
    (first, n): (i32, usize),
    rows: i32,
    (side, mask): (Side, Mask),
) -> Result<Vec<i32>, DocumentsError> {
    check_documents(begins, rows)?;
    Ok((first..).take(n).flat_map(|row| document_bounds(begins, row, side, mask)).collect())
}

/// A sequence in parts of `rows` rows, the last ones of which may have fewer, or none. Each place has part `p` of its
/// number or, where there are twice as many parts as places, part `p` from either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Rows of the sequence.
    pub tokens: i32,
    /// Rows of a part.
    pub rows: i32,
    /// How many there are.
    pub count: i32,
    /// Places that have them.
    pub places: i32,
}

impl Parts {
    /// Of no sequence.
    pub(crate) const NONE: Parts = Parts { tokens: 0, rows: 0, count: 0, places: 0 };

    /// The rows of a part: the first one, and the one behind the last.
    pub fn part(self, part: i32) -> [i32; 2] {
        [part, part.saturating_add(1)].map(|n| n.saturating_mul(self.rows).clamp(0, self.tokens))
    }

    /// Parts of a place.
    fn per_place(self) -> usize {
        if self.count > self.places { 2 } else { 1 }
    }

    /// The place that has a part.
    pub fn place(self, part: i32) -> i32 {
        if part < self.places { part } else { self.count - 1 - part }
    }
}

/// Whether some row of each place meets some row of each part, `[places, parts]`, 0 or 1: of documents that begin where
/// these numbers say, rows of a side, and a mask. Bounds ascend, and those of neighbours leave nothing out: what the
/// rows of a part meet is from the first one's lower bound to the last one's upper one.
pub fn meets_table(begins: &[i32], parts: Parts, side: Side, mask: Mask) -> Vec<i32> {
    let span = |part: i32| match parts.part(part) {
        [first, end] if first < end => {
            let [from, _] = document_bounds(begins, first, side, mask);
            let [_, to] = document_bounds(begins, end - 1, side, mask);
            [from, to]
        }
        _ => [0, 0],
    };
    let spans: Vec<[i32; 2]> = (0..parts.count).map(span).collect();
    let meet = |a: [i32; 2], b: [i32; 2]| a[0].max(b[0]) < a[1].min(b[1]);
    let own = |place: i32| [place, parts.count - 1 - place].into_iter().take(parts.per_place());
    let entry = |place: i32, other: i32| {
        let mut own = own(place).filter_map(|part| spans.get(usize::try_from(part).ok()?));
        own.any(|span| meet(*span, parts.part(other)))
    };
    let each = |place| (0..parts.count).map(move |other| (place, other));
    (0..parts.places).flat_map(each).map(|(place, other)| i32::from(entry(place, other))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry is 1 where some row of the place meets some row of the part, and nowhere else.
    #[test]
    fn parts_meet_where_their_rows_do() {
        for begins in [&[0, 3, 3, 4, 9][..], &[0, 12], &[0, 0, 5, 5, 5, 12], &[0, 1, 2, 3], &[0]] {
            for (mask, side) in [Mask::Full, Mask::Causal, Mask::Window(1), Mask::Window(3)]
                .into_iter()
                .flat_map(|mask| [Side::Queries, Side::Keys].map(|side| (mask, side)))
            {
                for (rows, count, places) in [(3, 4, 4), (3, 4, 2), (5, 3, 3), (2, 6, 3), (5, 4, 2)]
                {
                    let parts = Parts { tokens: 12, rows, count, places };
                    let all = meets_table(begins, parts, side, mask);
                    assert_eq!(all.len() as i32, places * count);
                    for (i, entry) in (0..).zip(all) {
                        let (place, other) = (i / count, i % count);
                        let own = (0..12).filter(|row| parts.place(row / rows) == place);
                        let sees = |row: i32| {
                            let [from, to] = document_bounds(begins, row, side, mask);
                            (from..to).any(|x| x / rows == other)
                        };
                        let want = own.into_iter().any(sees);
                        assert_eq!(
                            entry == 1,
                            want,
                            "{begins:?} {mask} {side} {parts:?} {place} {other}"
                        );
                    }
                }
            }
        }
    }

    /// Queries and keys agree on who meets whom, whatever the mask and the documents.
    #[test]
    fn both_sides_see_the_same_pairs() {
        for begins in [&[0, 3, 3, 4, 9][..], &[0, 12], &[0, 0, 5, 5, 5, 12], &[0, 1, 2, 3]] {
            for mask in [Mask::Full, Mask::Causal, Mask::Window(1), Mask::Window(3)] {
                let meets = |side, row: i32, other: i32| {
                    let [from, to] = document_bounds(begins, row, side, mask);
                    (from..to).contains(&other)
                };
                let document =
                    |row: i32| begins.windows(2).position(|d| (d[0]..d[1]).contains(&row));
                let pairs = (0..12).flat_map(|q| (0..12).map(move |k| (q, k)));
                for (q, k) in pairs {
                    let same = document(q).is_some() && document(q) == document(k);
                    let masked = match mask {
                        Mask::Causal => k > q,
                        Mask::Window(keys) => k > q || k + keys as i32 <= q,
                        Mask::Full | Mask::Bounds => false,
                    };
                    let want = same && !masked;
                    assert_eq!(meets(Side::Queries, q, k), want, "{begins:?} {mask} {q} {k}");
                    assert_eq!(meets(Side::Keys, k, q), want, "{begins:?} {mask} {q} {k}");
                }
                for side in [Side::Queries, Side::Keys] {
                    let all = bounds_table(begins, (0, 12), 12, (side, mask)).expect("documents");
                    let ascends = all.chunks(2).zip(all.chunks(2).skip(1));
                    assert!(
                        ascends.into_iter().all(|(a, b)| a[0] <= b[0] && a[1] <= b[1]),
                        "{all:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_no_documents_are() {
        let why = |begins: &[i32]| check_documents(begins, 8).map_err(|e| e.to_string());
        assert_eq!(why(&[0, 0, 8, 8]), Ok(()));
        assert!(why(&[1, 8]).is_err_and(|e| e.contains("begins at 1")));
        assert!(why(&[-1, 8]).is_err_and(|e| e.contains("begins at -1")));
        assert!(why(&[0, 5, 4, 8]).is_err_and(|e| e.contains("entry 2 is 4")));
        assert!(why(&[0, 9]).is_err_and(|e| e.contains("end at 9")));
    }
}
