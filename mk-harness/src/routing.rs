//! How many rows experts have, in each launch.

use super::{Case, local::Sizes};
use mk_runtime::reference::random_value;
use mk_syntax::{Def, Op, Placement, Program, RAGGED_BLOCK, Tensor, ValueId};
use std::{fmt, str::FromStr};

/// The forms of routings.
pub const FORMS: &str = "uniform, skew:N, one, empty, random or padded";

/// Which experts rows go to. Every launch, and every rank that has experts of its own, has another routing of the form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// All experts have about as many.
    #[default]
    Uniform,
    /// Every eighth expert has about so many times as many as the others.
    Skew(u32),
    /// All rows have the same expert: as many as the capacity allows.
    One,
    /// Every other expert has none, the first one among them.
    Empty,
    /// Some have none, others any number.
    Random,
    /// The same, of tokens of which some slots, and on some ranks the last tokens, go to no expert: -1.
    Padded,
    /// As uniform, but in launches behind the first a token of the first rank goes to an expert that is not there.
    Wrong,
}

impl FromStr for Routing {
    type Err = String;

    fn from_str(text: &str) -> Result<Routing, String> {
        match text {
            "uniform" => Ok(Routing::Uniform),
            "one" => Ok(Routing::One),
            "empty" => Ok(Routing::Empty),
            "random" => Ok(Routing::Random),
            "padded" => Ok(Routing::Padded),
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
            Routing::Padded => f.write_str("padded"),
            Routing::Wrong => f.write_str("wrong"),
        }
    }
}

impl Routing {
    /// Experts of so many tokens, so many of each. Ranks have tokens of their own (`seed`), and experts that are as
    /// popular on all of them (`launch`).
    pub fn route(
        self,
        tokens: usize,
        slots: usize,
        experts: usize,
        launch: u64,
        seed: u64,
    ) -> Vec<i32> {
        let chance = |seed: u64, i: usize| f64::from(random_value(seed, i as u64, 0.5)) + 0.5;
        let chosen = (chance(launch, 0) * experts as f64) as usize;
        // As many may have none as leave enough for a token.
        let mut spare = experts.saturating_sub(slots);
        let mut none = |wanted: bool| {
            let none = wanted && spare > 0;
            spare -= usize::from(none);
            none
        };
        let weight = |i: usize| match self {
            Routing::Skew(n) if i.is_multiple_of(8) => f64::from(n),
            Routing::Uniform | Routing::Skew(_) | Routing::Wrong => 1.0,
            Routing::One => f64::from(u8::from((i + experts - chosen) % experts.max(1) < slots)),
            Routing::Empty => f64::from(u8::from(!none(i.is_multiple_of(2)))),
            Routing::Random | Routing::Padded => {
                let near = chance(launch, i + 1);
                if none(near < 0.3) { 0.0 } else { 0.05 + near * near }
            }
        };
        let weights: Vec<f64> = (0..experts).map(weight).collect();
        let mut ids = Vec::with_capacity(tokens * slots);
        for token in 0..tokens {
            let mut left = weights.clone();
            for slot in 0..slots {
                let at = chance(seed, token * slots + slot) * left.iter().sum::<f64>();
                let mut behind = 0.0;
                let found = left.iter().position(|w| {
                    behind += w;
                    *w > 0.0 && at < behind
                });
                let last = left.iter().rposition(|w| *w > 0.0);
                let expert = found.or(last).unwrap_or(0);
                left[expert] = 0.0;
                let behind = seed % 2 == 1 && token >= tokens / 2;
                let none = behind || chance(!seed, token * slots + slot) < 0.2;
                let padded = self == Routing::Padded && none;
                ids.push(if padded { -1 } else { expert as i32 });
            }
        }
        ids
    }

    /// Rows of each of so many experts, which fit so many blocks.
    pub fn counts(self, experts: usize, blocks: u64, seed: u64) -> Vec<i32> {
        // In [0, 1).
        let chance = |i: usize| f64::from(random_value(seed, i as u64, 0.5)) + 0.5;
        let chosen = (chance(0) * experts as f64) as usize;
        let weight = |i: usize| {
            let near = 0.75 + 0.5 * chance(i + 1);
            match self {
                Routing::Uniform | Routing::Wrong => near,
                Routing::Skew(n) if i.is_multiple_of(8) => f64::from(n) * near,
                Routing::Skew(_) => near,
                Routing::One => f64::from(u8::from(i == chosen)),
                Routing::Empty if i.is_multiple_of(2) && experts > 1 => 0.0,
                Routing::Empty => near,
                Routing::Random | Routing::Padded if near < 0.9 => 0.0,
                Routing::Random | Routing::Padded => near * near,
            }
        };
        let weights: Vec<f64> = (0..experts).map(weight).collect();
        let sum = weights.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let rows = (blocks * RAGGED_BLOCK) as f64;
        // Blocks that are not full count, too.
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

/// How many experts the tokens of a route go to; `None` for a tensor of counts.
pub(crate) fn experts_of(case: Case<'_>, ids: ValueId) -> Option<usize> {
    if case.bound.shape(ids)?.len() != 2 {
        return None;
    }
    case.bound.dim(case.program.experts_of(ids)?).map(|n| n as usize)
}

/// How many rows are kept of each expert, where others are dropped, by the experts of tokens, which so many ranks
/// share.
pub(crate) fn keep(case: Case<'_>, ids: ValueId, ranks: usize) -> Option<usize> {
    if !case.program.drops(ids) {
        return None;
    }
    // Rows that this pipeline dispatches, or that one before it did.
    let rows = case.program.nodes().iter().find_map(|n| match n.op {
        Op::Dispatch { .. } if n.inputs.get(1) == Some(&ids) => Some(n.result),
        Op::GroupedGemm { .. } | Op::GroupedWgrad if n.inputs.get(2) == Some(&ids) => {
            n.inputs.first().copied()
        }
        _ => None,
    })?;
    let rows = *case.bound.shape(rows)?.first()? as usize;
    let (ranks, block) = (ranks.max(1), RAGGED_BLOCK as usize);
    let own = experts_of(case, ids)?.div_ceil(ranks).max(1);
    Some(rows / ranks / block / own * block)
}

/// Expert and token of each row of all ranks, where it has one, by the experts of all tokens, so many of each. Ranks
/// have equally many rows. `keep` is how many are kept of each expert, if some are dropped.
pub(crate) fn packed(
    ids: &[i32],
    slots: usize,
    experts: usize,
    rows: usize,
    (ranks, keep): (usize, Option<usize>),
) -> Vec<Option<(usize, usize)>> {
    let mut all = vec![None; rows];
    let (each, own) = (rows / ranks.max(1), experts.div_ceil(ranks.max(1)));
    // Tokens of each expert, each once, in their order.
    let mut tokens = vec![Vec::new(); experts];
    for (token, of) in ids.chunks(slots.max(1)).enumerate() {
        for e in of {
            let mine = usize::try_from(*e).ok().and_then(|e| tokens.get_mut(e));
            let new = mine.filter(|mine| mine.last() != Some(&token));
            new.into_iter().for_each(|mine| mine.push(token));
        }
    }
    for rank in 0..ranks {
        let mut at = 0usize;
        for (e, tokens) in tokens.iter().enumerate().skip(rank * own).take(own) {
            let end = at.saturating_add(keep.unwrap_or(each)).min(each);
            for token in tokens.iter().take(end.saturating_sub(at)) {
                all[rank * each + at] = Some((e, *token));
                at += 1;
            }
            at = at.next_multiple_of(RAGGED_BLOCK as usize);
        }
    }
    all
}

/// The counts that say whose rows a value has; `None` for one that is not ragged.
pub(crate) fn counts_of(program: &Program, value: ValueId) -> Option<ValueId> {
    let mut at = value;
    loop {
        let Some(Def::Node(node)) = program.def(at) else { return None };
        match node.op {
            Op::GroupedGemm { .. } => return node.inputs.get(2).copied(),
            Op::Dispatch { .. } | Op::DispatchFactors | Op::Weigh => {
                return node.inputs.get(1).copied();
            }
            Op::Quantize(_) | Op::Dequantize(_) => at = *node.inputs.first()?,
            op if op.is_elementwise() || matches!(op, Op::Swiglu | Op::SwigluGrad) => {
                at = *node.inputs.first()?
            }
            _ => return None,
        }
    }
}

/// The places that share experts, by a tensor of their counts, or of the experts of tokens; one where all have the
/// same.
pub(crate) fn sharing(sizes: Sizes, placement: &[Placement]) -> Vec<usize> {
    match placement.iter().position(|p| *p == Placement::Shard(0)) {
        None => vec![0],
        Some(axis) => {
            let (stride, n) = sizes.axis(axis);
            (0..n).map(|i| i * stride).collect()
        }
    }
}

/// Capacity of a rank in blocks of rows, where a tensor has rows of experts.
pub(crate) fn blocks(case: Case<'_>, sizes: Sizes, counts: &Tensor, rank: usize) -> u64 {
    let of = |node: &&mk_syntax::Node| {
        matches!(node.op, Op::GroupedGemm { .. } | Op::GroupedWgrad)
            && node.inputs.get(2) == Some(&counts.id)
    };
    let node = case.program.nodes().iter().find(of);
    let rows = node.and_then(|node| {
        let shape = case.bound.shape(node.inputs[0])?;
        let placement = &case.program.ty(node.inputs[0])?.placement;
        sizes.layout(shape, placement, rank).ok()?.shape().first().copied()
    });
    rows.unwrap_or(0) / RAGGED_BLOCK
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_to_each_expert_once() {
        for text in ["uniform", "skew:8", "one", "empty", "random"] {
            let routing: Routing = text.parse().expect("a routing");
            for (tokens, slots, experts) in [(1, 1, 1), (40, 2, 8), (33, 8, 8), (64, 8, 64)] {
                let ids = routing.route(tokens, slots, experts, 5, 7);
                assert_eq!(ids.len(), tokens * slots);
                let mut rows = vec![0; experts];
                for of in ids.chunks(slots) {
                    let mut of = of.to_vec();
                    of.sort_unstable();
                    of.dedup();
                    assert_eq!(of.len(), slots, "{text}: {of:?}");
                    of.iter().for_each(|e| rows[*e as usize] += 1);
                }
                let none = rows.iter().filter(|n| **n == 0).count();
                assert!(routing != Routing::One || none == experts - slots, "{rows:?}");
                let empty = (experts / 2).min(experts - slots);
                assert!(routing != Routing::Empty || none >= empty, "{rows:?}");
            }
        }
    }

    #[test]
    fn slots_of_no_expert_are_padding() {
        let ids = Routing::Padded.route(40, 2, 8, 5, 7);
        let none = |of: &[i32]| of.iter().filter(|e| **e == -1).count();
        assert!(ids.iter().all(|e| (-1..8).contains(e)) && none(&ids[40..]) == 40, "{ids:?}");
        assert!((1..40).contains(&none(&ids[..40])), "{ids:?}");
        let even = Routing::Padded.route(40, 2, 8, 5, 8);
        assert!((1..40).contains(&none(&even)), "{even:?}");
    }

    #[test]
    fn counts_fit_their_blocks() {
        for text in ["uniform", "skew:8", "one", "empty", "random", "padded"] {
            let routing: Routing = text.parse().expect("a routing");
            assert_eq!(routing.to_string(), text);
            for (experts, blocks, seed) in [(1, 1, 0), (16, 64, 1), (128, 64, 2), (64, 1024, 3)] {
                let counts = routing.counts(experts, blocks, seed);
                let used: u64 = counts.iter().map(|n| (*n as u64).div_ceil(128)).sum();
                assert!(counts.len() == experts && used <= blocks, "{text}: {counts:?}");
                let none = matches!(routing, Routing::Random | Routing::Padded) && experts == 1;
                assert!(used > 0 || none, "{text}: {counts:?}");
                let filled = counts.iter().filter(|n| **n > 0).count();
                assert!(routing != Routing::One || filled == 1, "{counts:?}");
                let half = (experts / 2).max(1);
                assert!(routing != Routing::Empty || (1..=half).contains(&filled), "{counts:?}");
            }
        }
        assert!("skew:0".parse::<Routing>().is_err_and(|e| e.contains("use uniform, skew:N")));
    }
}
