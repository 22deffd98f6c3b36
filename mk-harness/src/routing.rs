//! How many rows experts have, in each launch.

use super::{Case, Layout, inputs::placement};
use mk_runtime::reference::random_value;
use mk_syntax::{Def, Op, Placement, Program, RAGGED_BLOCK, Tensor, ValueId};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// The forms of routings.
pub const FORMS: &str = "uniform, skew:N, one, empty or random";

/// Which experts rows go to. Every launch, and every rank that has experts of its own, has another routing of the form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// All experts have about as many.
    #[default]
    Uniform,
    /// Every eighth expert has about so many times as many as the others.
    Skew(u32),
    /// All rows have the same expert: as many as there is room for.
    One,
    /// Every other expert has none, the first one among them.
    Empty,
    /// Some have none, others any number.
    Random,
}

impl FromStr for Routing {
    type Err = String;

    fn from_str(text: &str) -> Result<Routing, String> {
        match text {
            "uniform" => Ok(Routing::Uniform),
            "one" => Ok(Routing::One),
            "empty" => Ok(Routing::Empty),
            "random" => Ok(Routing::Random),
            _ => {
                let factor = text.strip_prefix("skew:").and_then(|n| n.parse().ok());
                let factor = factor.filter(|n| (1..=1024).contains(n));
                factor.map(Routing::Skew).ok_or_else(|| {
                    format!("`{text}` is no routing: use {FORMS}, with N of 1 to 1024")
                })
            }
        }
    }
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Routing::Uniform => f.write_str("uniform"),
            Routing::Skew(n) => write!(f, "skew:{n}"),
            Routing::One => f.write_str("one"),
            Routing::Empty => f.write_str("empty"),
            Routing::Random => f.write_str("random"),
        }
    }
}

impl Routing {
    /// The experts of so many tokens, of so many each, all different. No token has more experts than there are. `empty` leaves as many experts
    /// out as the others allow, at most every other one; with `one`, all tokens have the same ones.
    pub fn ids(self, [tokens, slots]: [usize; 2], experts: usize, seed: u64) -> Vec<i32> {
        let chance = |i: usize| f64::from(random_value(seed, i as u64, 0.5)) + 0.5;
        let first = (chance(0) * experts as f64) as usize;
        let one = |i: usize| (i + experts - first.min(experts)) % experts.max(1) < slots;
        let weight = |i: usize| match self {
            Routing::Uniform => 1.0,
            Routing::Skew(n) if i.is_multiple_of(8) => f64::from(n),
            Routing::Skew(_) => 1.0,
            Routing::One => f64::from(u8::from(one(i))),
            Routing::Empty if i.is_multiple_of(2) && experts > 1 => 0.0,
            Routing::Empty => 1.0,
            Routing::Random if chance(i + 1) < 0.3 => 0.0,
            Routing::Random => chance(i + 1),
        };
        let mut weights: Vec<f64> = (0..experts).map(weight).collect();
        // As many as tokens need.
        let open = weights.iter().filter(|w| **w > 0.0).count();
        let closed = weights.iter_mut().filter(|w| **w == 0.0);
        closed.take(slots.saturating_sub(open)).for_each(|w| *w = 0.5);
        let mut out = Vec::with_capacity(tokens * slots);
        for token in 0..tokens {
            let mut left = weights.clone();
            for slot in 0..slots.min(experts) {
                let sum: f64 = left.iter().sum();
                let mut at = chance(experts + 1 + token * slots + slot) * sum;
                let open = (0..experts).filter(|e| left[*e] > 0.0);
                let mut chosen = 0;
                for e in open {
                    chosen = e;
                    at -= left[e];
                    if at < 0.0 {
                        break;
                    }
                }
                left[chosen] = 0.0;
                out.push(chosen as i32);
            }
        }
        out
    }

    /// Rows of each of so many experts, which fit so many blocks.
    pub fn counts(self, experts: usize, blocks: u64, seed: u64) -> Vec<i32> {
        // In [0, 1).
        let chance = |i: usize| f64::from(random_value(seed, i as u64, 0.5)) + 0.5;
        let chosen = (chance(0) * experts as f64) as usize;
        let weight = |i: usize| {
            let near = 0.75 + 0.5 * chance(i + 1);
            match self {
                Routing::Uniform => near,
                Routing::Skew(n) if i.is_multiple_of(8) => f64::from(n) * near,
                Routing::Skew(_) => near,
                Routing::One => f64::from(u8::from(i == chosen)),
                Routing::Empty if i.is_multiple_of(2) && experts > 1 => 0.0,
                Routing::Empty => near,
                Routing::Random if near < 0.9 => 0.0,
                Routing::Random => near * near,
            }
        };
        let weights: Vec<f64> = (0..experts).map(weight).collect();
        let sum = weights.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let rows = (blocks * RAGGED_BLOCK) as f64;
        // Blocks that are not full take room, too.
        let used = match self {
            Routing::One => rows,
            _ => (rows - experts as f64 * RAGGED_BLOCK as f64 / 2.0).max(rows / 2.0),
        };
        let mut left = blocks;
        let fit = |w: &f64| {
            let wanted = (used * w / sum).round() as u64;
            let n = wanted.min(left * RAGGED_BLOCK);
            left -= n.div_ceil(RAGGED_BLOCK);
            n as i32
        };
        weights.iter().map(fit).collect()
    }
}

/// The counts that say whose rows a value has; `None` for one that is not ragged.
pub(crate) fn counts_of(program: &Program, value: ValueId) -> Option<ValueId> {
    let mut at = value;
    loop {
        let Some(Def::Node(node)) = program.def(at) else { return None };
        match node.op {
            Op::GroupedGemm => return node.inputs.get(2).copied(),
            op if op.is_elementwise() || op == Op::Swiglu => at = *node.inputs.first()?,
            _ => return None,
        }
    }
}

/// Blocks of rows that a rank has room for, where a tensor has rows of experts.
pub(crate) fn blocks(case: Case<'_>, counts: &Tensor, rank: usize) -> u64 {
    let of = |node: &&mk_syntax::Node| {
        node.op == Op::GroupedGemm && node.inputs.get(2) == Some(&counts.id)
    };
    let node = case.program.nodes().iter().find(of);
    let rows = node.and_then(|node| {
        let shape = case.bound.shape(node.result)?;
        let placement = placement(&node.ty.placement).ok()?;
        Layout::new(shape, placement, case.ranks, rank).shape().first().copied()
    });
    rows.unwrap_or(0) / RAGGED_BLOCK
}

/// How many experts there are for tokens to name: those that a product has matrices of.
pub(crate) fn all_experts(case: Case<'_>, ids: &Tensor) -> usize {
    let of =
        |node: &&mk_syntax::Node| node.op == Op::GroupedGemm && node.inputs.get(2) == Some(&ids.id);
    let matrices = case.program.nodes().iter().find(of).map(|node| node.inputs[1]);
    let experts = matrices.and_then(|w| case.bound.shape(w)?.first().copied());
    experts.unwrap_or(0) as usize
}

/// How many tokens name each expert.
pub(crate) fn rows(ids: &[i32], experts: usize) -> Vec<i32> {
    let mut out = vec![0; experts];
    for id in ids {
        let rows = usize::try_from(*id).ok().and_then(|e| out.get_mut(e));
        rows.into_iter().for_each(|n| *n += 1);
    }
    out
}

/// The token of each row that an expert has.
pub(crate) fn tokens(ids: &[i32], slots: usize) -> BTreeMap<usize, usize> {
    let mut of: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (entry, id) in ids.iter().enumerate() {
        of.entry(*id).or_default().push(entry / slots.max(1));
    }
    let mut first = 0;
    let mut out = BTreeMap::new();
    for tokens in of.into_values() {
        let rows = tokens.len();
        out.extend((first..).zip(tokens));
        first += rows.next_multiple_of(RAGGED_BLOCK as usize);
    }
    out
}

/// The expert of each row of a value on all ranks, where it has one, by the counts of each rank.
pub(crate) fn experts(rows: usize, of_ranks: &[Vec<i32>]) -> Vec<Option<usize>> {
    let mut all = vec![None; rows];
    let each = rows / of_ranks.len().max(1);
    for (rank, counts) in of_ranks.iter().enumerate() {
        let mut at = rank * each;
        for (e, n) in counts.iter().enumerate() {
            let n = (*n).max(0) as usize;
            let (from, to) = (at.min(rows), (at + n).min(rows));
            all[from..to].fill(Some(rank * counts.len() + e));
            at += n.next_multiple_of(RAGGED_BLOCK as usize);
        }
    }
    all
}

/// Ranks whose counts differ: one where all have the same.
pub(crate) fn parts(case: Case<'_>, counts: &Tensor) -> usize {
    match placement(&counts.ty.placement) {
        Ok(Placement::Replicate) | Err(_) => 1,
        Ok(_) => case.ranks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_fit_their_blocks() {
        for text in ["uniform", "skew:8", "one", "empty", "random"] {
            let routing: Routing = text.parse().expect("a routing");
            assert_eq!(routing.to_string(), text);
            for (experts, blocks, seed) in [(1, 1, 0), (16, 64, 1), (128, 64, 2), (64, 1024, 3)] {
                let counts = routing.counts(experts, blocks, seed);
                let used: u64 = counts.iter().map(|n| (*n as u64).div_ceil(128)).sum();
                assert!(counts.len() == experts && used <= blocks, "{text}: {counts:?}");
                let none = routing == Routing::Random && experts == 1;
                assert!(used > 0 || none, "{text}: {counts:?}");
                let filled = counts.iter().filter(|n| **n > 0).count();
                assert!(routing != Routing::One || filled == 1, "{counts:?}");
                let half = (experts / 2).max(1);
                assert!(routing != Routing::Empty || (1..=half).contains(&filled), "{counts:?}");
            }
        }
        for (experts, tokens, slots) in [(1, 5, 1), (3, 40, 3), (16, 90, 2), (9, 33, 8)] {
            for text in ["uniform", "skew:8", "one", "empty", "random"] {
                let routing: Routing = text.parse().expect("a routing");
                let ids = routing.ids([tokens, slots], experts, 7);
                assert_eq!(ids.len(), tokens * slots, "{text}");
                for mine in ids.chunks(slots) {
                    let apart = mine.iter().enumerate().all(|(i, e)| !mine[..i].contains(e));
                    let there = mine.iter().all(|e| (0..experts as i32).contains(e));
                    assert!(apart && there, "{text}: {mine:?}");
                }
                let named = rows(&ids, experts).iter().filter(|n| **n > 0).count();
                assert!(routing != Routing::One || named == slots, "{text}: {named}");
                assert!(routing != Routing::Empty || named <= slots.max(experts / 2), "{named}");
            }
        }
        assert!("skew:0".parse::<Routing>().is_err_and(|e| e.contains("use uniform, skew:N")));
    }
}
