//! "Did you mean": the candidate nearest to a misspelt word.

/// Words longer than this are never corrected, which bounds the work.
const MAX_LEN: usize = 32;

/// The candidate with the fewest edits, if that is at most a third of the word's length.
pub(crate) fn nearest<'a>(word: &str, all: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let n_chars = word.chars().count();
    if n_chars > MAX_LEN {
        return None;
    }
    let limit = n_chars / 3;
    all.into_iter()
        .filter(|c| c.len() <= MAX_LEN && !word.is_empty())
        .map(|c| (distance(&word.to_ascii_lowercase(), &c.to_ascii_lowercase()), c))
        .filter(|&(d, _)| d <= limit)
        .min_by_key(|&(d, _)| d)
        .map(|(_, c)| c)
}

/// Levenshtein distance, a swap of neighbours counted as one edit (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(rows[i - 2][j - 2] + 1);
            }
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let ops = ["gather", "gemm", "gelu", "reduce_scatter"];
        assert_eq!(nearest("gemn", ops), Some("gemm"));
        assert_eq!(nearest("gahter", ops), Some("gather"));
        assert_eq!(nearest("reducescatter", ops), Some("reduce_scatter"));
        assert_eq!(nearest("GEMM", ops), Some("gemm"));
        assert_eq!(nearest("softmax", ops), None);
        assert_eq!(nearest("", ops), None);
        assert_eq!(nearest("q", ["u"]), None);
        assert_eq!(nearest("m", ["M"]), Some("M"));
    }
}
