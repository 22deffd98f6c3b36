//! Tables that follow from a routing: which experts each token of the world goes to.
//!
//! Tokens and experts are numbered over the world, and each rank has its share of both, one after the other; where they
//! do not go round, the last rank that has some has fewer. An expert's rows are its tokens in their order, in blocks of
//! its own, and blocks are packed. Everything is a function of the ids of all ranks, so that ranks that have those need
//! not ask each other where a row is.

mod crossing;

pub use crossing::{route_coming, route_crossing, route_leaving, wanted_share};

use super::{
    blocks::{BlocksError, needed},
    documents::DocumentsError,
    names::RoutePart,
};
use thiserror::Error;

/// The id of a slot that goes to no expert: padding, whose weight is ignored.
pub const NO_EXPERT: i32 = -1;

/// Why no launch has a routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RouteError {
    /// There is no such expert.
    #[error(
        "token {token} goes to expert {expert}, and there are {experts}: name one of 0 to {}, or -1 for none",
        experts - 1
    )]
    Expert {
        /// The token, of the world.
        token: usize,
        /// The expert.
        expert: i32,
        /// Experts of the world.
        experts: i32,
    },
    /// A token has several rows in an expert.
    #[error("token {token} goes to expert {expert} twice: name each expert once")]
    Twice {
        /// The token, of the world.
        token: usize,
        /// The expert.
        expert: i32,
    },
    /// They take more blocks than there is room for.
    #[error(transparent)]
    Blocks(BlocksError),
    /// Documents are not where they could be.
    #[error(transparent)]
    Documents(DocumentsError),
}

/// A routing of all tokens of the world.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// The experts of each token, one token after the other; [`NO_EXPERT`] in a slot that goes nowhere.
    pub ids: &'a [i32],
    /// Experts of a token.
    pub slots: usize,
    /// Experts of the world. Each rank has as many as the first one, as long as there are some.
    pub experts: i32,
    /// Ranks. Each has as many tokens as the first one, as long as there are some.
    pub ranks: usize,
    /// Rows of a block.
    pub rows: i32,
    /// Rows of an expert that are kept, the first ones; 0: all of them.
    pub keep: i32,
    /// Ranks of a node, of whose experts places are, of the tokens of a rank's rails; 0: all are one.
    pub local: usize,
}

impl Routing<'_> {
    fn tokens(&self) -> usize {
        self.ids.len() / self.slots.max(1)
    }

    /// Experts of a rank.
    fn own(&self) -> usize {
        own_experts(self.experts.max(0) as usize, self.ranks)
    }

    /// Whether a launch can have it, if a rank has room for so many blocks.
    ///
    /// # Errors
    /// [`RouteError`]: where a kernel ends with a fault.
    pub fn check(&self, blocks: usize) -> Result<(), RouteError> {
        for (token, experts) in self.ids.chunks_exact(self.slots.max(1)).enumerate() {
            check_token(experts, token, self.experts)?;
        }
        for of_rank in self.counts().chunks(self.own()) {
            let needed = needed(of_rank, self.rows);
            if needed > i64::try_from(blocks).unwrap_or(i64::MAX) {
                return Err(RouteError::Blocks(BlocksError::Capacity { needed, blocks }));
            }
        }
        Ok(())
    }

    /// Rows that tokens have at each expert of the world, and at none that there is not.
    fn named(&self) -> Vec<i32> {
        let mut counts = vec![0; self.own() * self.ranks];
        for id in self.ids {
            if let Some(n) = usize::try_from(*id).ok().and_then(|id| counts.get_mut(id)) {
                *n += 1;
            }
        }
        counts
    }

    /// Rows of each expert of the world that are kept.
    fn counts(&self) -> Vec<i32> {
        let mut counts = self.named();
        counts.iter_mut().for_each(|n| *n = kept(*n, self.keep));
        counts
    }

    /// How many rows of each expert of the world are dropped: those behind the first [`Routing::keep`] of them.
    pub fn dropped(&self) -> Vec<i32> {
        let experts = self.experts.max(0) as usize;
        self.named().iter().take(experts).map(|n| n - kept(*n, self.keep)).collect()
    }

    /// How many rows of a rank's tokens are dropped, if each has so many ids.
    fn dropped_of(&self, rank: usize, ids: usize) -> i32 {
        let mut seen = vec![0; self.own() * self.ranks];
        let mut dropped = 0;
        for (i, id) in self.ids.iter().enumerate() {
            let expert = usize::try_from(*id).ok().and_then(|id| seen.get_mut(id));
            let Some(n) = expert else { continue };
            *n += 1;
            dropped += i32::from(*n > kept(*n, self.keep) && i / ids.max(1) == rank);
        }
        dropped
    }

    /// The first packed row of each expert on its rank.
    fn first(&self) -> Vec<i32> {
        let rows = self.rows.max(1);
        let mut first = Vec::new();
        for of_rank in self.counts().chunks(self.own()) {
            let mut at = 0i32;
            for n in of_rank {
                first.push(at);
                at += (n + rows - 1) / rows * rows;
            }
        }
        first
    }

    /// A table of a rank, of so many entries, of a routing that [`Routing::check`] accepts; what it does not fill is 0.
    pub fn table(&self, part: RoutePart, rank: usize, entries: usize) -> Vec<i32> {
        if part == RoutePart::Lists {
            return Vec::new();
        }
        if part == RoutePart::Counts {
            let mut counts = self.counts().split_off(rank * self.own());
            counts.resize(entries, 0);
            return counts;
        }
        let own = self.own();
        let mine = self.tokens().div_ceil(self.ranks.max(1));
        if part == RoutePart::Dropped {
            let mut out = vec![0; entries];
            set(&mut out, 0, self.dropped_of(rank, mine * self.slots));
            return out;
        }
        if part == RoutePart::Wanted {
            // As much room for the tokens of each rank.
            let mut out = vec![0; entries];
            let room = entries / self.ranks.max(1);
            for (t, experts) in self.ids.chunks_exact(self.slots.max(1)).enumerate() {
                let at = t / mine.max(1) * room + t % mine.max(1);
                let wanted = route_wanted(experts, self.slots, own, rank, 1);
                set(&mut out, at, wanted.first().copied().unwrap_or(0));
            }
            return out;
        }
        if matches!(part, RoutePart::Crossing | RoutePart::Leaving | RoutePart::Coming) {
            return self.between(part, rank, entries);
        }
        let first = self.first();
        let mut next = first.clone();
        let mut out = vec![0; entries];
        // Tokens of a rank of each node, one node after the other.
        let (local, node) = (self.local, NodeRanks::of(rank, self.local));
        let nodes = if local == 0 { 1 } else { self.ranks / local.max(1) };
        let width = if part == RoutePart::Places { 2 } else { 1 };
        let room = entries / (nodes * self.slots * width).max(1);
        if part == RoutePart::Places {
            out.chunks_exact_mut(2).for_each(|place| place[0] = node.first as i32);
        }
        for (i, id) in self.ids.iter().enumerate() {
            let token = i / self.slots.max(1);
            let Ok(expert) = usize::try_from(*id) else { continue };
            let Some(row) = next.get_mut(expert) else { continue };
            let (home, at) = (expert / own, *row);
            *row += 1;
            let (begin, of) = (first[expert], token / mine.max(1));
            let near = node.has(home);
            let at_home = match local {
                0 => (of == rank).then_some(0),
                _ => (of % local == rank % local).then_some(of / local),
            };
            let mine_at =
                at_home.map(|n| (n * room + token % mine.max(1)) * self.slots + i % self.slots);
            let dropped = self.keep > 0 && at - begin >= self.keep;
            match part {
                RoutePart::Sources if home == rank && !dropped => {
                    if let Some(entry) = out.get_mut(at as usize) {
                        *entry = token as i32;
                    }
                }
                RoutePart::Places if near => {
                    let at = if dropped { begin } else { at };
                    let entry = mine_at.and_then(|i| out.get_mut(2 * i..2 * i + 2));
                    if let Some(entry) = entry {
                        entry.copy_from_slice(&[home as i32, at]);
                    }
                }
                RoutePart::Slots if home == rank && !dropped => {
                    set(&mut out, at as usize, (i % self.slots.max(1)) as i32);
                }
                RoutePart::Kept if near => {
                    mine_at.into_iter().for_each(|i| set(&mut out, i, i32::from(!dropped)));
                }
                _ => {}
            }
        }
        out
    }
}

impl Routing<'_> {
    /// A table of what crosses between nodes.
    fn between(&self, part: RoutePart, rank: usize, entries: usize) -> Vec<i32> {
        let mine = self.tokens().div_ceil(self.ranks.max(1));
        let (chunks, local) = (mine.div_ceil(LIST_TOKENS).max(1), self.local.max(1));
        let (own, nodes) = (self.own() * local, self.ranks / local);
        let rows = if part == RoutePart::Leaving { chunks } else { self.ranks * chunks };
        let width = entries / rows.max(1);
        let of_row = |row: usize| {
            let place = if part == RoutePart::Leaving { rank } else { row / chunks };
            let end = ((place + 1) * mine).min(self.tokens());
            let first = (place * mine + row % chunks * LIST_TOKENS).min(end);
            let ids = &self.ids[first * self.slots..(first + LIST_TOKENS).min(end) * self.slots];
            match part {
                RoutePart::Crossing => route_crossing(ids, self.slots, own, nodes),
                RoutePart::Leaving => {
                    route_leaving(ids, self.slots, own, nodes, width / nodes.max(1))
                }
                _ => route_coming(ids, self.slots, own, rank / local, width),
            }
        };
        let mut out: Vec<i32> = (0..rows).flat_map(of_row).collect();
        out.resize(entries, 0);
        out
    }
}

/// The ranks of a rank's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRanks {
    /// The first one.
    pub first: usize,
    /// How many there are; 0: all ranks are one node.
    pub count: usize,
}

impl NodeRanks {
    /// Those of a rank, of so many in each node; 0: all ranks are one.
    pub fn of(rank: usize, local: usize) -> NodeRanks {
        NodeRanks { first: rank.checked_div(local).map_or(0, |node| node * local), count: local }
    }

    /// Whether a rank is one of them.
    pub fn has(self, rank: usize) -> bool {
        self.count == 0 || (self.first..self.first + self.count).contains(&rank)
    }
}

/// Rows of so many that are kept, if `keep` says how many at most.
pub fn kept(rows: i32, keep: i32) -> i32 {
    if keep > 0 { rows.min(keep) } else { rows }
}

/// The most experts of a rank.
pub fn own_experts(experts: usize, ranks: usize) -> usize {
    experts.div_ceil(ranks.max(1)).max(1)
}

/// The most tokens of a chunk, and those that an entry of its list has a bit for: as many bits as any executor's
/// numbers hold.
pub const LIST_TOKENS: usize = 256;
const ENTRY_TOKENS: usize = 16;
const LIST_ENTRIES: usize = LIST_TOKENS / ENTRY_TOKENS;

/// Entries of a chunk's list: for each expert a bit for each token that goes to it, in [`LIST_TOKENS`] / 16 entries;
/// how many those are for each expert; and the chunk's first token. Lists begin at whole vectors of four.
pub fn list_width(experts: usize) -> usize {
    ((LIST_ENTRIES + 1) * experts + 1).next_multiple_of(4)
}

/// How many tokens of a chunk go to an expert, by its list.
pub fn listed(list: &[i32], experts: usize, e: usize) -> i32 {
    list.get(LIST_ENTRIES * experts + e).copied().unwrap_or(0)
}

/// The tokens of a chunk that go to an expert, numbered in the chunk.
fn tokens_of(list: &[i32], e: usize) -> impl Iterator<Item = usize> {
    let entries = list.iter().skip(e * LIST_ENTRIES).take(LIST_ENTRIES).enumerate();
    let bits = |(i, entry): (usize, &i32)| {
        let entry = *entry;
        let set = (0..ENTRY_TOKENS).filter(move |bit| entry >> bit & 1 == 1);
        set.map(move |bit| i * ENTRY_TOKENS + bit)
    };
    entries.flat_map(bits)
}

/// The list of a chunk of tokens, of which `first` is the first one in the world; what it does not fill is 0.
///
/// # Errors
/// [`RouteError::Expert`], [`RouteError::Twice`].
pub fn route_list(
    ids: &[i32],
    slots: usize,
    experts: i32,
    first: usize,
    width: usize,
) -> Result<Vec<i32>, RouteError> {
    let n = experts.max(0) as usize;
    let mut out = vec![0; width];
    for (i, of) in ids.chunks_exact(slots.max(1)).enumerate() {
        check_token(of, first + i, experts)?;
        for e in of.iter().filter_map(|e| usize::try_from(*e).ok()) {
            let entry = out.get_mut(e * LIST_ENTRIES + i / ENTRY_TOKENS);
            entry.into_iter().for_each(|entry| *entry |= 1 << (i % ENTRY_TOKENS));
            let count = out.get_mut(n * LIST_ENTRIES + e);
            count.into_iter().for_each(|count| *count += 1);
        }
    }
    set(&mut out, (LIST_ENTRIES + 1) * n, first as i32);
    Ok(out)
}

fn set(out: &mut [i32], i: usize, value: i32) {
    if let Some(x) = out.get_mut(i) {
        *x = value;
    }
}

/// Where each chunk's rows of each expert begin on the expert's rank, `[chunks + 1, experts]`, by the lists of all
/// chunks. The last row has where each expert begins behind all experts of the world before it.
///
/// # Errors
/// [`RouteError::Blocks`] for a rank without room.
pub fn route_bases(
    lists: &[i32],
    width: usize,
    experts: usize,
    ranks: usize,
    (rows, keep): (i32, i32),
    blocks: usize,
) -> Result<Vec<i32>, RouteError> {
    let lists: Vec<&[i32]> = lists.chunks_exact(width.max(1)).collect();
    let own = own_experts(experts, ranks);
    let mut out = vec![0; (lists.len() + 1) * experts];
    let (mut behind, mut first) = (0i32, 0i32);
    for e in 0..experts {
        if e % own == 0 {
            first = behind;
        }
        set(&mut out, lists.len() * experts + e, behind);
        let begin = behind - first;
        let mut at = begin;
        for (c, list) in lists.iter().enumerate() {
            set(&mut out, c * experts + e, at);
            at += listed(list, experts, e);
        }
        behind += (kept(at - begin, keep) + rows - 1) / rows.max(1) * rows;
        let needed = i64::from(behind - first) / i64::from(rows.max(1));
        let last = e % own == own - 1 || e + 1 == experts;
        if last && needed > blocks as i64 {
            return Err(RouteError::Blocks(BlocksError::Capacity { needed, blocks }));
        }
    }
    Ok(out)
}

/// The tokens in the rows of some blocks of a rank, whose first expert is `own`: by group and rows of each, the lists,
/// and where their rows begin.
pub fn route_sources(
    blocks: &[i32],
    (first, rows): (usize, usize),
    own: usize,
    experts: usize,
    lists: &[i32],
    width: usize,
    bases: &[i32],
) -> Vec<i32> {
    let mut out = vec![0; blocks.len() / 2 * rows];
    for (b, entry) in blocks.chunks_exact(2).enumerate() {
        let e = own + usize::try_from(entry[0]).unwrap_or(0);
        let begin = ((first + b) * rows) as i32;
        for (list, base) in lists.chunks_exact(width.max(1)).zip(bases.chunks_exact(experts.max(1)))
        {
            let chunk = list.get((LIST_ENTRIES + 1) * experts).copied().unwrap_or(0);
            let base = base.get(e).copied().unwrap_or(0);
            for (row, token) in (base..).zip(tokens_of(list, e)) {
                if (begin..begin + entry[1]).contains(&row) {
                    set(&mut out, b * rows + (row - begin) as usize, chunk + token as i32);
                }
            }
        }
    }
    out
}

/// How many rows of a rank's tokens are dropped, by the lists of all chunks, of which each rank has as many, and where
/// their rows begin.
pub fn route_dropped(
    lists: &[i32],
    width: usize,
    (experts, ranks, keep): (usize, usize, i32),
    rank: usize,
    bases: &[i32],
) -> i32 {
    let own = own_experts(experts, ranks);
    let (lists, bases) = (lists.chunks_exact(width.max(1)), bases.chunks_exact(experts.max(1)));
    let each = lists.len() / ranks.max(1);
    let begins = bases.clone().last().unwrap_or_default();
    let first = |e: usize| begins.get(e).copied().unwrap_or(0);
    let of_chunk = |(list, bases): (&[i32], &[i32])| -> i32 {
        let of = |(e, base): (usize, &i32)| {
            let n = listed(list, experts, e);
            (base + n - (first(e) - first(e / own * own)) - keep).clamp(0, n)
        };
        bases.iter().enumerate().map(of).sum()
    };
    lists.zip(bases).skip(rank * each).take(each).map(of_chunk).sum()
}

/// Rank and packed row of each of a chunk's ids, by its list, and where its rows begin; and whether it is kept: not
/// where it is no expert of the node, whose row is the first one there. `begins` is the last row of where rows begin,
/// and needed where rows may be dropped.
pub fn route_places(
    ids: &[i32],
    slots: usize,
    (experts, ranks, keep): (usize, usize, i32),
    node: NodeRanks,
    list: &[i32],
    bases: &[i32],
    begins: &[i32],
) -> (Vec<i32>, Vec<i32>) {
    let own = own_experts(experts, ranks);
    let place = |(i, id): (usize, &i32)| {
        let e = usize::try_from(*id).ok().filter(|e| node.has(e / own));
        let Some(e) = e else { return ([node.first as i32, 0], 0) };
        let at = tokens_of(list, e).take_while(|t| *t < i / slots.max(1)).count() as i32;
        let of = |e: usize| begins.get(e).copied().unwrap_or(0);
        let (row, begin) = (bases.get(e).copied().unwrap_or(0) + at, of(e) - of(e / own * own));
        let dropped = keep > 0 && row - begin >= keep;
        ([(e / own) as i32, if dropped { begin } else { row }], i32::from(!dropped))
    };
    let (places, kept): (Vec<_>, Vec<_>) = ids.iter().enumerate().map(place).unzip();
    (places.concat(), kept)
}

/// Which slot of its token each row of some blocks of a rank is, whose first expert is `own`: by the experts of all
/// tokens, group and rows of each block, and the token in each row.
pub fn route_slots(
    ids: &[i32],
    slots: usize,
    blocks: &[i32],
    (rows, own): (usize, usize),
    sources: &[i32],
) -> Vec<i32> {
    let mut out = vec![0; blocks.len() / 2 * rows];
    let of_blocks = out.chunks_mut(rows.max(1)).zip(sources.chunks(rows.max(1)));
    for ((out, tokens), entry) in of_blocks.zip(blocks.chunks_exact(2)) {
        let expert = i64::from(entry[0]) + own as i64;
        for (slot, token) in out.iter_mut().zip(tokens).take(usize::try_from(entry[1]).unwrap_or(0))
        {
            let of_token = ids.chunks_exact(slots.max(1)).nth(usize::try_from(*token).unwrap_or(0));
            let at = of_token.and_then(|ids| ids.iter().position(|id| i64::from(*id) == expert));
            *slot = at.unwrap_or(0) as i32;
        }
    }
    out
}

/// For each token of a chunk whether a rank with so many experts has one of its; 0 for those that it has fewer than
/// `entries`.
pub fn route_wanted(ids: &[i32], slots: usize, own: usize, rank: usize, size: usize) -> Vec<i32> {
    let mut out: Vec<i32> = crossing::wanted(ids, slots, own, rank).map(i32::from).collect();
    out.resize(size, 0);
    out
}

/// That experts of a token are there, and differ, but for those that are none.
fn check_token(experts: &[i32], token: usize, count: i32) -> Result<(), RouteError> {
    for (i, &expert) in experts.iter().enumerate() {
        if expert == NO_EXPERT {
            continue;
        }
        if !(0..count).contains(&expert) {
            return Err(RouteError::Expert { token, expert, experts: count });
        }
        if experts[..i].contains(&expert) {
            return Err(RouteError::Twice { token, expert });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks with three and two tokens, two experts each, blocks of 2 rows.
    fn routing(ids: &[i32]) -> Routing<'_> {
        Routing { ids, slots: 2, experts: 4, ranks: 2, rows: 2, keep: 0, local: 0 }
    }

    #[test]
    fn rows_are_by_token_and_blocks_are_packed() {
        let r = routing(&[3, 1, 0, 1, 2, 1, 1, 3, 2, 0]);
        assert_eq!(r.check(3), Ok(()));
        assert_eq!(r.table(RoutePart::Counts, 0, 2), [2, 4]);
        assert_eq!(r.table(RoutePart::Counts, 1, 2), [2, 2]);
        assert_eq!(r.table(RoutePart::Sources, 0, 6), [1, 4, 0, 1, 2, 3]);
        assert_eq!(r.table(RoutePart::Sources, 1, 6), [2, 4, 0, 3, 0, 0]);
        assert_eq!(r.table(RoutePart::Wanted, 0, 8), [1, 1, 1, 0, 1, 1, 0, 0]);
        assert_eq!(r.table(RoutePart::Wanted, 1, 8), [1, 0, 1, 0, 1, 1, 0, 0]);
        assert_eq!(r.table(RoutePart::Places, 0, 12), [1, 2, 0, 2, 0, 0, 0, 3, 1, 0, 0, 4]);
        // The second rank has a token less.
        assert_eq!(r.table(RoutePart::Places, 1, 12), [0, 5, 1, 3, 1, 1, 0, 1, 0, 0, 0, 0]);
    }

    /// Expert 1 has four tokens, and room for the first two of them.
    #[test]
    fn the_first_rows_of_an_expert_are_kept() {
        let r = Routing { keep: 2, ..routing(&[3, 1, 0, 1, 2, 1, 1, 3, 2, 0]) };
        assert_eq!(r.check(2), Ok(()));
        assert_eq!(r.dropped(), [0, 2, 0, 0]);
        assert_eq!(Routing { keep: 0, ..r }.dropped(), [0; 4]);
        assert_eq!([0, 1].map(|rank| r.table(RoutePart::Dropped, rank, 1)), [[1], [1]]);
        assert_eq!(r.table(RoutePart::Counts, 0, 2), [2, 2]);
        assert_eq!(r.table(RoutePart::Sources, 0, 4), [1, 4, 0, 1]);
        assert_eq!(r.table(RoutePart::Places, 0, 12), [1, 2, 0, 2, 0, 0, 0, 3, 1, 0, 0, 2]);
        assert_eq!(r.table(RoutePart::Kept, 0, 6), [1, 1, 1, 1, 1, 0]);
        assert_eq!(r.table(RoutePart::Kept, 1, 6), [0, 1, 1, 1, 0, 0]);
        assert_eq!(r.table(RoutePart::Places, 1, 12)[..2], [0, 2]);
    }

    /// The first three tokens are the first rank's; each rank is a node.
    #[test]
    fn places_of_a_node_are_of_its_experts() {
        let r = Routing { local: 1, ..routing(&[3, 1, 0, 1, 2, 1, 1, 3, 2, 0]) };
        let whole = Routing { local: 0, ..r };
        for rank in 0..2 {
            let (near, kept) =
                (r.table(RoutePart::Places, rank, 24), r.table(RoutePart::Kept, rank, 12));
            for node in 0..2 {
                let all = whole.table(RoutePart::Places, node, 12);
                for (slot, place) in all.chunks_exact(2).enumerate() {
                    let at = node * 6 + slot;
                    let here = place[0] == rank as i32 && 3 * node + slot / 2 < 5;
                    let wanted = if here { [rank as i32, place[1]] } else { [rank as i32, 0] };
                    assert_eq!(near[2 * at..2 * at + 2], wanted, "{rank} {at}");
                    assert_eq!(kept[at], i32::from(here), "{rank} {at}");
                }
            }
        }
    }

    #[test]
    fn what_no_launch_can_have() {
        let says =
            |ids: &[i32], blocks| routing(ids).check(blocks).expect_err("no routing").to_string();
        assert_eq!(
            says(&[0, 1, 4, 0], 9),
            "token 1 goes to expert 4, and there are 4: name one of 0 to 3, or -1 for none"
        );
        assert!(says(&[0, -2], 9).contains("goes to expert -2"));
        assert!(says(&[0, 1, 2, 2], 9).contains("token 1 goes to expert 2 twice"));
        assert!(says(&[0, 1, 0, 1, 0, 1], 3).contains("take 4 blocks, and there is room for 3"));
    }
}
