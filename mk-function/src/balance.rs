//! An order of packed documents by which ranks that share their tokens in zigzag have equal work.

use mk_codegen::plan::{DocumentsError, check_documents};

/// Work that is this much more than the mean is as good as equal.
const EVEN: f64 = 1.005;
/// Work of the search, at most: documents that are looked at.
const MOVES: usize = 1 << 22;
/// Orders that the search begins with.
const BEGINS: usize = 16;

/// An order of documents, and what it makes of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Which document comes first, which behind it, and so on.
    pub order: Vec<usize>,
    /// Pairs of a query and a key that it sees, of each rank.
    pub pairs: Vec<u64>,
}

impl Balance {
    /// The most work of a rank, by the mean.
    pub fn ratio(&self) -> f64 {
        let (most, all) = (self.pairs.iter().max().copied(), self.pairs.iter().sum::<u64>());
        if all == 0 { 1.0 } else { most.unwrap_or(0) as f64 * self.pairs.len() as f64 / all as f64 }
    }
}

/// An order of the documents that begin at these places, and of which the last ends at the last of them, for a causal
/// ring of so many ranks over a sequence in zigzag. The same numbers give the same order, on every rank. Documents that
/// are longer than half a chunk, of which each rank has two, may leave no even order: [`Balance::ratio`] says how even
/// it is.
///
/// # Errors
/// [`DocumentsError`] for numbers that do not ascend from 0.
pub fn balance(cu_seqlens: &[i32], ranks: u32) -> Result<Balance, DocumentsError> {
    check_documents(cu_seqlens, cu_seqlens.last().copied().unwrap_or(0))?;
    let lengths: Vec<u64> = cu_seqlens.windows(2).map(|d| (d[1] - d[0]) as u64).collect();
    let ranks = ranks.max(1) as usize;
    let (n, mut draws) = (lengths.len(), Draws(0x9e37_79b9_7f4a_7c15));
    let order: Vec<usize> = (0..n).collect();
    let mut best = Balance { pairs: pairs(&lengths, &order, ranks), order };
    for begin in 0..BEGINS * usize::from(n > 1 && ranks > 1) {
        if best.ratio() <= EVEN {
            break;
        }
        let mut now = Balance { order: best.order.clone(), pairs: Vec::new() };
        if begin > 0 {
            (1..n).for_each(|i| now.order.swap(i, draws.below(i + 1)));
        }
        now.pairs = pairs(&lengths, &now.order, ranks);
        for _ in 0..MOVES / (n + 2 * ranks) {
            if now.ratio() <= EVEN {
                break;
            }
            let other = moved(&now.order, &mut draws);
            let other = Balance { pairs: pairs(&lengths, &other, ranks), order: other };
            if unevenness(&other.pairs) <= unevenness(&now.pairs) {
                now = other;
            }
        }
        if now.ratio() < best.ratio() {
            best = now;
        }
    }
    Ok(best)
}

/// Two documents in each other's places, or one in another; or some that follow each other begin with another of them.
fn moved(order: &[usize], draws: &mut Draws) -> Vec<usize> {
    let (mut order, n) = (order.to_vec(), order.len());
    let (from, to) = (draws.below(n), draws.below(n));
    match draws.below(3) {
        0 => order.swap(from, to),
        1 => {
            let one = order.remove(from);
            order.insert(to, one);
        }
        _ => {
            let part = &mut order[from.min(to)..=from.max(to)];
            let by = draws.below(part.len());
            part.rotate_left(by);
        }
    }
    order
}

/// Numbers that look like random ones, the same each time.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// As ranks have the same sum in any order, what grows with their distance from the mean.
fn unevenness(pairs: &[u64]) -> u128 {
    pairs.iter().map(|n| u128::from(*n) * u128::from(*n)).sum()
}

/// Pairs of a query and a key that it sees, of each rank.
fn pairs(lengths: &[u64], order: &[usize], ranks: usize) -> Vec<u64> {
    let chunks = 2 * ranks;
    let rows = lengths.iter().sum::<u64>().div_ceil(chunks as u64).max(1);
    let mut of = vec![0; ranks];
    let mut begin = 0;
    for length in order.iter().map(|n| lengths[*n]) {
        // Those of the rows before one, of this document.
        let before = |row: u64| row * (row + 1) / 2;
        let mut row = 0;
        while row < length {
            let chunk = (begin + row) / rows;
            let end = ((chunk + 1) * rows - begin).min(length);
            let chunk = (chunk as usize).min(chunks - 1);
            of[chunk.min(chunks - 1 - chunk)] += before(end) - before(row);
            row = end;
        }
        begin += length;
    }
    of
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Documents of random lengths, of which the logarithm has this mean and deviation, up to a longest, that fill so
    /// many tokens.
    fn drawn(draws: &mut Draws, tokens: i32, (mean, deviation): (f64, f64), most: i32) -> Vec<i32> {
        let mut begins = vec![0];
        while let Some(last) = begins.last().copied().filter(|last| *last < tokens) {
            let uniform = |draws: &mut Draws| draws.below(1 << 20) as f64 / f64::from(1 << 20);
            let normal = (0..12).map(|_| uniform(draws)).sum::<f64>() - 6.0;
            let length = ((mean + deviation * normal).exp() as i32).clamp(1, most);
            begins.push((last + length).min(tokens));
        }
        begins
    }

    /// Text of the web (a median of 600 tokens), dialogues, and code, of up to half a chunk; 64Ki and 128Ki tokens.
    #[test]
    fn real_lengths_are_even() {
        let mut draws = Draws(54);
        for (name, lengths) in
            [("web", (6.4, 1.0)), ("dialogues", (7.0, 0.8)), ("code", (6.9, 1.2))]
        {
            for (tokens, ranks) in
                [1 << 16, 1 << 17].iter().flat_map(|t| [2, 4, 8].map(|r| (*t, r)))
            {
                let longest = tokens / (4 * ranks as i32);
                for _ in 0..4 {
                    let begins = drawn(&mut draws, tokens, lengths, longest);
                    let found = balance(&begins, ranks).expect("documents");
                    let mut all = found.order.clone();
                    all.sort_unstable();
                    assert!(all.into_iter().eq(0..begins.len() - 1), "an order of all");
                    let most = found.ratio();
                    assert!(most <= 1.05, "{name}, {tokens} tokens on {ranks}: {most}, {begins:?}");
                    assert_eq!(balance(&begins, ranks), Ok(found));
                }
            }
        }
    }

    #[test]
    fn pairs_are_those_of_a_mask() {
        let begins = [0, 3, 3, 10, 24];
        let lengths: Vec<u64> = begins.windows(2).map(|d| (d[1] - d[0]) as u64).collect();
        for ranks in [1, 2, 3] {
            let rows = 24_usize.div_ceil(2 * ranks);
            let mut want = vec![0; ranks];
            for row in 0..24 {
                let document = begins.windows(2).find(|d| (d[0]..d[1]).contains(&(row as i32)));
                let chunk = row / rows;
                want[chunk.min(2 * ranks - 1 - chunk)] +=
                    row as u64 + 1 - document.map_or(0, |d| d[0] as u64);
            }
            assert_eq!(pairs(&lengths, &[0, 1, 2, 3], ranks), want);
        }
    }

    #[test]
    fn few_documents_and_none() {
        assert_eq!(balance(&[0, 64], 4).map(|b| b.ratio()), Ok(1.0));
        assert_eq!(balance(&[], 4).map(|b| (b.order, b.pairs)), Ok((vec![], vec![0; 4])));
        assert_eq!(balance(&[0, 0], 2).map(|b| b.ratio()), Ok(1.0));
        assert!(balance(&[0, 5, 3], 2).is_err_and(|e| e.to_string().contains("entry 2 is 3")));
    }
}
