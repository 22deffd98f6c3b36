//! Documents of packed sequences: where they begin in a launch, and which of them a token is in.

use super::{Case, routing::Routing};
use mk_runtime::reference::random_value;
use mk_syntax::ValueId;
use std::ops::Range;

/// Tokens of the sequence whose documents a tensor has; `None` for any other.
pub(crate) fn tokens(case: Case<'_>, id: ValueId) -> Option<u64> {
    let node = case.program.nodes().iter().find(|n| n.documents() == Some(id))?;
    let queries = node.inputs.iter().filter_map(|x| case.bound.shape(*x)).find(|s| s.len() == 4)?;
    queries.get(1).copied()
}

/// The document that a token is in; of none, an empty one.
pub(crate) fn document(begins: &[i32], token: usize) -> Range<usize> {
    let all = begins.windows(2).map(|d| d[0].max(0) as usize..d[1].max(0) as usize);
    all.into_iter().find(|d| d.contains(&token)).unwrap_or(0..0)
}

impl Routing {
    /// Where the documents of so many tokens begin, and the last one ends, in so many numbers: documents are as long as
    /// experts are popular. Of [`Routing::Padded`] some of the last tokens are in none.
    pub fn documents(self, entries: usize, tokens: u64, seed: u64) -> Vec<i32> {
        let chance = |i: usize| f64::from(random_value(seed, i as u64, 0.5)) + 0.5;
        let n = entries.saturating_sub(1);
        let chosen = (chance(0) * n as f64) as usize;
        let length = |i: usize| {
            let near = chance(i + 1);
            match self {
                Routing::Uniform | Routing::Wrong => 0.75 + 0.5 * near,
                Routing::Skew(n) if i.is_multiple_of(8) => f64::from(n) * (0.75 + 0.5 * near),
                Routing::Skew(_) => 0.75 + 0.5 * near,
                Routing::One => f64::from(u8::from(i == chosen)),
                Routing::Empty if i.is_multiple_of(2) && n > 1 => 0.0,
                Routing::Empty => near,
                Routing::Random | Routing::Padded if near < 0.2 => 0.0,
                Routing::Random | Routing::Padded => near.powi(4),
            }
        };
        let lengths: Vec<f64> = (0..n).map(length).collect();
        let sum = lengths.iter().sum::<f64>();
        let left_over = if self == Routing::Padded { chance(n + 1) * 0.25 } else { 0.0 };
        let end = (tokens as f64 * (1.0 - left_over)) as u64;
        let mut behind = 0.0;
        let mut begins = vec![0];
        for (i, length) in lengths.iter().enumerate() {
            behind += length;
            let at = if sum > 0.0 { (end as f64 * behind / sum) as u64 } else { 0 };
            begins.push(if i + 1 == n { end as i32 } else { at.min(end) as i32 });
        }
        begins.truncate(entries);
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_follow_each_other() {
        let forms =
            ["uniform", "skew:9", "one", "empty", "random", "padded"].map(|f| f.parse::<Routing>());
        for form in forms.map(|f| f.expect("a form")) {
            for (entries, tokens) in [(1, 10), (2, 10), (9, 1), (9, 100), (101, 100)] {
                let begins = form.documents(entries, tokens, 7);
                assert_eq!((begins.len(), begins[0]), (entries, 0), "{form}");
                assert!(begins.is_sorted() && begins[entries - 1] <= tokens as i32, "{begins:?}");
                let whole = begins[entries - 1] == tokens as i32;
                assert!(whole || entries == 1 || form == Routing::Padded, "{form} {begins:?}");
            }
        }
        assert_ne!(Routing::Random.documents(9, 100, 1), Routing::Random.documents(9, 100, 2));
        assert_eq!(document(&[0, 3, 3, 7], 3), 3..7);
        assert!(document(&[0, 3, 3, 7], 7).is_empty());
    }
}
