//! Sets of values of a run-time dimension, and linear functions on them.
//!
//! Values are kept as *runs*, arithmetic progressions `first + step * k`. On a run whose step is a multiple of a
//! divisor `d`, a quotient by `d` of something linear is linear again; so there are as many runs as there are
//! remainders to tell apart.

/// Values `first + step * k`, `k` in `0..n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::valid) struct Run {
    pub first: i64,
    pub step: i64,
    pub n: i64,
}

impl Run {
    pub fn value(&self, k: i64) -> i64 {
        self.first + self.step * k
    }

    /// The places `lo..=hi` of a run, as a run.
    pub fn part(&self, lo: i64, hi: i64) -> Run {
        Run { first: self.value(lo), step: self.step, n: hi - lo + 1 }
    }
}

/// Places `lo..=hi` of a run, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::valid) struct Places {
    pub run: u32,
    pub lo: i64,
    pub hi: i64,
}

/// A non-empty set of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::valid) struct Domain {
    pub runs: Vec<Run>,
}

impl Domain {
    pub fn up_to(max: i64) -> Domain {
        Domain { runs: vec![Run { first: 1, step: 1, n: max }] }
    }

    pub fn len(&self) -> i64 {
        self.runs.iter().map(|r| r.n).sum()
    }

    /// Its greatest value.
    pub fn last(&self) -> i64 {
        self.runs.iter().map(|r| r.value(r.n - 1)).max().unwrap_or(1)
    }

    /// Its least value.
    pub fn first(&self) -> i64 {
        self.runs.iter().map(|r| r.first).min().unwrap_or(1)
    }

    /// The same values in runs whose steps are `factor` times as long; `None` above `most` runs.
    pub fn refined(&self, factor: i64, most: usize) -> Option<Domain> {
        let mut runs = Vec::new();
        for r in &self.runs {
            for i in 0..factor.min(r.n) {
                let n = (r.n - i - 1) / factor + 1;
                runs.push(Run { first: r.value(i), step: r.step * factor, n });
                if runs.len() > most {
                    return None;
                }
            }
        }
        Some(Domain { runs })
    }

    /// Values up to `middle`, and values above it; one of them may be empty.
    pub fn halves(&self, middle: i64) -> [Domain; 2] {
        let mut halves = [Vec::new(), Vec::new()];
        for r in &self.runs {
            let below = ((middle - r.first).div_euclid(r.step) + 1).clamp(0, r.n);
            if below > 0 {
                halves[0].push(r.part(0, below - 1));
            }
            if below < r.n {
                halves[1].push(r.part(below, r.n - 1));
            }
        }
        halves.map(|runs| Domain { runs })
    }
}

/// `at_zero + slope * k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::valid) struct Line {
    pub at_zero: i64,
    pub slope: i64,
}

impl Line {
    pub fn constant(value: i64) -> Line {
        Line { at_zero: value, slope: 0 }
    }

    pub fn at(self, k: i64) -> i64 {
        self.at_zero + self.slope * k
    }

    pub fn plus(self, other: Line) -> Line {
        Line { at_zero: self.at_zero + other.at_zero, slope: self.slope + other.slope }
    }

    pub fn minus(self, other: Line) -> Line {
        Line { at_zero: self.at_zero - other.at_zero, slope: self.slope - other.slope }
    }

    /// `None` beyond 64 bits.
    pub fn times(self, n: i64) -> Option<Line> {
        Some(Line { at_zero: self.at_zero.checked_mul(n)?, slope: self.slope.checked_mul(n)? })
    }

    /// The `k` in `lo..=hi` where the line is above 0: they are next to each other.
    pub fn positive(self, lo: i64, hi: i64) -> Option<(i64, i64)> {
        let (lo, hi) = match self.slope.signum() {
            0 if self.at_zero > 0 => (lo, hi),
            0 => return None,
            1 => (lo.max((-self.at_zero).div_euclid(self.slope) + 1), hi),
            _ => (lo, hi.min((self.at_zero - 1).div_euclid(-self.slope))),
        };
        (lo <= hi).then_some((lo, hi))
    }

    /// The `k` at which the line is 0, if it is an integer; no `k` if it is 0 everywhere.
    pub fn zero(self) -> Option<i64> {
        let found = self.slope != 0 && self.at_zero % self.slope == 0;
        found.then(|| -self.at_zero / self.slope)
    }
}

/// Cuts `lo..=hi` at a part of it that lies at one of its ends, or is all or nothing of it: ranges in order, and
/// whether each is that part.
pub(super) fn cut(lo: i64, hi: i64, part: Option<(i64, i64)>) -> Vec<((i64, i64), bool)> {
    let Some((from, to)) = part else { return vec![((lo, hi), false)] };
    let mut out = Vec::with_capacity(3);
    if lo < from {
        out.push(((lo, from - 1), false));
    }
    out.push(((from, to), true));
    if to < hi {
        out.push(((to + 1, hi), false));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_positive_where_its_values_are() {
        for at_zero in -20..20 {
            for slope in -5..6 {
                let line = Line { at_zero, slope };
                let mut k = (-8..9).filter(|k| line.at(*k) > 0);
                let found = k.next().map(|first| (first, k.next_back().unwrap_or(first)));
                assert_eq!(line.positive(-8, 8), found, "{line:?}");
                let zero = (-40..41).find(|k| line.at(*k) == 0).filter(|_| slope != 0);
                assert_eq!(line.zero(), zero, "{line:?}");
            }
        }
    }

    #[test]
    fn runs_have_the_same_values_refined_and_halved() {
        let values = |d: &Domain| {
            let all = d.runs.iter().flat_map(|r| (0..r.n).map(|k| r.value(k)));
            let mut all: Vec<i64> = all.collect();
            all.sort_unstable();
            all
        };
        let all = Domain::up_to(50);
        for factor in [2, 3, 8, 70] {
            let fine = all.refined(factor, 100).expect("few");
            assert_eq!(values(&fine), values(&all));
            for middle in [1, 7, 25, 49, 50] {
                let [low, high] = fine.halves(middle);
                assert_eq!(values(&low), (1..=middle).collect::<Vec<_>>());
                assert_eq!(values(&high), (middle + 1..=50).collect::<Vec<_>>());
            }
        }
        assert_eq!(all.refined(8, 7), None);
    }
}
