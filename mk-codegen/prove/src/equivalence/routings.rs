//! Routings of the launches that are looked at, in which mistakes show.
//!
//! Experts have even numbers of tokens, all tokens the same experts, or one expert nearly all of them, by turns, and
//! then with other experts. Which tokens those are, and in which order a token names its experts, is random: tokens of
//! a rank go to several ranks, from slots in any order, and where rows are dropped, some tokens keep the row of one
//! slot and not that of another. In every third launch some slots go to no expert, and in every sixth the last tokens
//! of each rank. Whether there is a routing at all is arithmetic.

use super::number::mix;
use mk_plan::NO_EXPERT;

/// What there is to route, and the room for it.
pub(super) struct Room {
    /// Tokens of each rank.
    pub tokens: Vec<usize>,
    /// Experts of a token, and of the world.
    pub slots: usize,
    pub experts: usize,
    /// Rows of a block, and blocks of a rank; `None` where there is always room.
    pub blocks: Option<(usize, usize)>,
    /// Rows of an expert that are kept; 0: all.
    pub keep: usize,
}

impl Room {
    fn all(&self) -> usize {
        self.tokens.iter().sum()
    }

    /// Rows that all tokens take.
    pub fn needed(&self) -> usize {
        self.all() * self.slots
    }

    /// Most rows that ranks have room for, with at most one of each token at an expert.
    pub fn most(&self) -> usize {
        self.fullest().iter().sum()
    }

    /// Experts of a rank.
    fn own(&self) -> usize {
        self.experts.div_ceil(self.tokens.len().max(1)).max(1)
    }

    /// As many rows at each expert as ranks have room for: whole blocks first, since a last block of an expert may be
    /// short.
    fn fullest(&self) -> Vec<usize> {
        let tokens = self.all();
        let Some((rows, blocks)) = self.blocks else { return vec![tokens; self.experts] };
        let mut counts = vec![0; self.experts];
        for of_rank in counts.chunks_mut(self.own()) {
            let mut left = blocks;
            for n in of_rank.iter_mut() {
                let whole = (tokens / rows.max(1)).min(left);
                *n = whole * rows;
                left -= whole;
            }
            for n in of_rank.iter_mut().filter(|_| !tokens.is_multiple_of(rows.max(1))) {
                if left > 0 && tokens - *n < rows {
                    (*n, left) = (tokens, left - 1);
                }
            }
        }
        counts
    }

    /// Rows that each expert should have in a launch: as many as all tokens take, at most one of each token.
    fn wanted(&self, launch: usize) -> Vec<usize> {
        let (tokens, n) = (self.all(), self.experts);
        let (mut left, mut counts) = (self.needed(), vec![0; n]);
        // The form, and how often it has been.
        let (form, turn) = (launch % 3, launch / 3);
        let mut weights: Vec<usize> = match form {
            0 => vec![1; n],
            1 => vec![0; n],
            _ => (0..n).map(|e| 1 + mix((e + n * turn) as u64) as usize % 7).collect(),
        };
        match form {
            0 => {}
            1 => {
                for e in (0..n).rev() {
                    let count = &mut counts[(e + n - turn % n.max(1)) % n.max(1)];
                    *count = tokens.min(left);
                    left -= *count;
                }
            }
            _ => {
                // Some tokens have another one; an expert that drops rows still has more than it keeps.
                let dropped = tokens.checked_sub(self.keep + 1);
                let most = if self.keep == 0 { tokens } else { dropped.map_or(tokens, |n| n / 2) };
                let others = if n > self.slots { most.min(tokens / 8) } else { 0 };
                let popular = (mix(tokens as u64) as usize + turn) % n;
                counts[popular] = tokens - others;
                left -= counts[popular];
                weights[popular] = 0;
            }
        }
        let (share, sum) = (left, weights.iter().sum::<usize>().max(1));
        for (count, weight) in counts.iter_mut().zip(&weights) {
            let more = (share * weight / sum).min(tokens - *count);
            *count += more;
            left -= more;
        }
        fill(&mut counts, left, |_, count| usize::from(count < tokens));
        counts
    }

    /// Rows that each expert has, near what it should have: none if there is room for no routing.
    fn counts(&self, launch: usize) -> Option<Vec<usize>> {
        let mut counts = self.wanted(launch);
        let Some((rows, blocks)) = self.blocks else { return Some(counts) };
        let (tokens, needed) = (self.all(), self.needed());
        let taken = |of_rank: &[usize]| of_rank.iter().map(|n| n.div_ceil(rows)).sum::<usize>();
        for of_rank in counts.chunks_mut(self.own()) {
            // Experts with few rows give up theirs first.
            let mut order: Vec<usize> = (0..of_rank.len()).collect();
            order.sort_by_key(|e| of_rank[*e]);
            for e in order {
                let over = taken(of_rank).saturating_sub(blocks);
                let left = of_rank[e].div_ceil(rows).saturating_sub(over) * rows;
                of_rank[e] = of_rank[e].min(left);
            }
            // Then what blocks have room for.
            for n in of_rank.iter_mut() {
                *n = n.next_multiple_of(rows).min(tokens);
            }
            for e in 0..of_rank.len() {
                let free = blocks.saturating_sub(taken(of_rank));
                of_rank[e] = (of_rank[e] + free * rows).min(tokens);
            }
        }
        if counts.iter().sum::<usize>() < needed {
            counts = self.fullest();
        }
        let mut over = counts.iter().sum::<usize>().checked_sub(needed)?;
        // Down to what should be, as far as may be; then by turns.
        let wanted = self.wanted(launch);
        for (count, want) in counts.iter_mut().zip(wanted) {
            let less = count.saturating_sub(want).min(over);
            *count -= less;
            over -= less;
        }
        for count in &mut counts {
            let less = (*count).min(over);
            *count -= less;
            over -= less;
        }
        Some(counts)
    }

    /// The experts of each rank's tokens in a launch; none if there is room for no routing.
    pub fn routing(&self, launch: usize) -> Option<Vec<Vec<i32>>> {
        if self.needed() > self.most() {
            return None;
        }
        let mut counts = self.counts(launch)?;
        let mut behind = self.all();
        let mut token = (launch as u64) << 32;
        let mut of_rank = |tokens: &usize| {
            let mut ids = Vec::with_capacity(tokens * self.slots);
            for _ in 0..*tokens {
                ids.extend(self.experts_of(token, behind, &mut counts));
                (token, behind) = (token + 1, behind - 1);
            }
            ids
        };
        let mut all: Vec<Vec<i32>> = self.tokens.iter().map(&mut of_rank).collect();
        if launch % 3 == 2 {
            for (rank, ids) in all.iter_mut().enumerate() {
                let behind = if launch % 6 == 5 { ids.len() / 2 } else { ids.len() };
                for (i, id) in ids.iter_mut().enumerate() {
                    let drawn = mix((launch << 40 ^ rank << 32 ^ i) as u64).is_multiple_of(8);
                    *id = if drawn || i >= behind { NO_EXPERT } else { *id };
                }
            }
        }
        Some(all)
    }

    /// Experts of a token: those that all tokens from it on must have, and others, rather those that lack many rows.
    fn experts_of(&self, token: u64, behind: usize, counts: &mut [usize]) -> Vec<i32> {
        let mut best: Vec<(u64, usize)> = Vec::with_capacity(self.slots + 1);
        let base = mix(token);
        for (e, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            let key = match *n >= behind {
                true => u64::MAX,
                false => (mix(base ^ e as u64) >> 40) * *n as u64,
            };
            let at = best.partition_point(|b| b.0 >= key);
            if at < self.slots {
                best.insert(at, (key, e));
                best.truncate(self.slots);
            }
        }
        best.sort_by_key(|(_, e)| mix(base ^ !(*e as u64)));
        best.iter().for_each(|(_, e)| counts[*e] -= 1);
        best.iter().map(|(_, e)| *e as i32).collect()
    }
}

/// Adds up to `left`, one by one, by turns, where there is room.
fn fill(counts: &mut [usize], mut left: usize, room: impl Fn(usize, usize) -> usize) {
    while left > 0 {
        let before = left;
        for (i, count) in counts.iter_mut().enumerate() {
            let more = room(i, *count).min(left);
            *count += more;
            left -= more;
        }
        if left == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(tokens: &[usize], [slots, experts]: [usize; 2], blocks: Option<usize>) -> Room {
        Room { tokens: tokens.to_vec(), slots, experts, blocks: blocks.map(|n| (128, n)), keep: 0 }
    }

    /// What is wrong with a routing, if anything is.
    fn misfit(room: &Room, ids: &[Vec<i32>]) -> Option<String> {
        let all = ids.concat();
        let mut counts = vec![0usize; room.experts];
        for (t, of) in all.chunks(room.slots).enumerate() {
            for (j, e) in of.iter().enumerate().filter(|(_, e)| **e != NO_EXPERT) {
                if of[..j].contains(e) {
                    return Some(format!("token {t} goes to expert {e} twice"));
                }
                counts[*e as usize] += 1;
            }
        }
        if ids.iter().zip(&room.tokens).any(|(ids, n)| ids.len() != n * room.slots) {
            return Some("some token has no experts".into());
        }
        let (rows, blocks) = room.blocks?;
        let taken = |of: &[usize]| of.iter().map(|n| n.div_ceil(rows)).sum::<usize>();
        let over = counts.chunks(room.own()).position(|of| taken(of) > blocks)?;
        Some(format!("rank {over} has no room: {counts:?}"))
    }

    /// Whether some rows at experts fit, by looking at all of them.
    fn any(room: &Room, counts: &mut Vec<usize>, left: usize) -> bool {
        if counts.len() == room.experts {
            let (rows, blocks) = room.blocks.expect("blocks");
            let taken = |of: &[usize]| of.iter().map(|n| n.div_ceil(rows)).sum::<usize>();
            return left == 0 && counts.chunks(room.own()).all(|of| taken(of) <= blocks);
        }
        (0..=room.all().min(left)).any(|n| {
            counts.push(n);
            let found = any(room, counts, left - n);
            counts.pop();
            found
        })
    }

    #[test]
    fn room_is_arithmetic() {
        let mut fits = 0;
        for (ranks, tokens, slots, experts, rows, blocks) in cases() {
            let each = tokens / ranks;
            let tokens: Vec<usize> = (0..ranks).map(|r| each + usize::from(r == 0)).collect();
            let room = Room { tokens, slots, experts, blocks: Some((rows, blocks)), keep: 0 };
            let found = any(&room, &mut Vec::new(), room.needed());
            assert_eq!(room.needed() <= room.most(), found, "{:?}", room.counts(0));
            fits += u32::from(found);
            for launch in 0..7 {
                let ids = room.routing(launch);
                let none = |ids: &Vec<Vec<i32>>| ids.concat().contains(&NO_EXPERT);
                assert!(launch % 3 == 2 || !ids.as_ref().is_some_and(none), "{launch}");
                assert_eq!(ids.is_some(), found, "{:?} {:?}", room.tokens, room.blocks);
                assert_eq!(ids.and_then(|ids| misfit(&room, &ids)), None);
            }
        }
        assert!(fits > 50, "{fits}");
    }

    fn cases() -> impl Iterator<Item = (usize, usize, usize, usize, usize, usize)> {
        (0..400u64).map(|i| {
            let pick = |j: u64, n: u64| (mix(i << 8 | j) % n) as usize;
            let experts = 2 + pick(0, 3);
            (
                1 + pick(1, 2),
                1 + pick(2, 5),
                1 + pick(3, 2),
                experts,
                1 + pick(4, 3),
                1 + pick(5, 4),
            )
        })
    }

    /// Experts {0, 1, 6} of twelve fit into two blocks of each of two ranks.
    #[test]
    fn few_blocks_for_many_experts() {
        let [fits, none] = [2, 1].map(|blocks| room(&[8, 8], [3, 12], Some(blocks)));
        for launch in 0..3 {
            let ids = fits.routing(launch).expect("a routing");
            assert_eq!(misfit(&fits, &ids), None);
        }
        assert!(none.routing(0).is_none() && none.needed() > none.most());
    }

    #[test]
    fn each_slot_source_expert_and_flag_differs_in_some_launch() {
        let room = Room { keep: 128, ..room(&[140, 140], [2, 4], None) };
        let all: Vec<Vec<Vec<i32>>> = (0..3).filter_map(|l| room.routing(l)).collect();
        let mut one_kept = [0, 0];
        for ids in &all {
            let mut seen = [0; 4];
            for of in ids.concat().chunks(2) {
                let kept = [0, 1].map(|j| {
                    // A slot of no expert has no row.
                    let Ok(e) = usize::try_from(of[j]) else { return false };
                    seen[e] += 1;
                    seen[e] <= 128
                });
                one_kept[0] += u32::from(kept == [true, false]);
                one_kept[1] += u32::from(kept == [false, true]);
            }
        }
        assert!(one_kept.iter().all(|n| *n >= 4), "{one_kept:?}");
        // Each slot names each expert, on each rank; and pairs come in both orders.
        for (rank, slot, e) in [(0, 0), (0, 1), (1, 0), (1, 1)]
            .iter()
            .flat_map(|(r, s)| (0..4).map(move |e| (*r, *s, e)))
        {
            let named = |ids: &Vec<Vec<i32>>| ids[rank].chunks(2).any(|of: &[i32]| of[slot] == e);
            assert!(all.iter().any(named), "expert {e} in slot {slot} on rank {rank}");
        }
    }
}
