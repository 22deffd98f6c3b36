//! Signal words of all ranks, and who sleeps until one of them counts far enough.

use super::{
    error::Result,
    memory::{elements, within},
    schedule::Actor,
};
use mk_plan::{Entity, Plan, Points, SigId};
use std::collections::HashMap;

/// One word, by rank, signal and offset in its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Word {
    pub rank: usize,
    pub signal: SigId,
    pub at: usize,
}

pub(super) struct Signals {
    ranks: Vec<Vec<Array>>,
    sleepers: HashMap<Word, Vec<(i64, Actor)>>,
}

struct Array {
    shape: Vec<i64>,
    words: Vec<i64>,
}

impl Signals {
    /// All words at 0: they count over all launches of a run.
    pub fn new(plan: &Plan, points: &Points<'_>) -> Result<Signals> {
        let mut total = 0u64;
        let mut ranks = Vec::new();
        for rank in 0..plan.mesh.size() as usize {
            let mut arrays = Vec::new();
            for (id, signal) in plan.signals.iter() {
                let shape = points.signal_shape(id, rank)?;
                let len = elements(&shape, || format!("{id} {:?}", signal.name))?;
                total = total.saturating_add(len);
                within("words of all signals", total)?;
                arrays.push(Array { shape, words: vec![0; len as usize] });
            }
            ranks.push(arrays);
        }
        Ok(Signals { ranks, sleepers: HashMap::new() })
    }

    pub fn shape(&self, rank: usize, signal: SigId) -> &[i64] {
        &self.ranks[rank][signal.index()].shape
    }

    /// The word of an index, if it exists.
    pub fn word(&self, rank: usize, signal: SigId, index: &[i64]) -> Option<Word> {
        let shape = self.shape(rank, signal);
        let inside =
            shape.len() == index.len() && index.iter().zip(shape).all(|(i, n)| (0..*n).contains(i));
        if !inside {
            return None;
        }
        let at = index.iter().zip(shape).fold(0, |at, (i, n)| at * n + i);
        Some(Word { rank, signal, at: at as usize })
    }

    pub fn seen(&self, word: Word) -> i64 {
        self.ranks[word.rank][word.signal.index()].words[word.at]
    }

    /// Wakes the actor when the word reaches `expected`.
    pub fn sleep(&mut self, word: Word, expected: i64, actor: Actor) {
        self.sleepers.entry(word).or_default().push((expected, actor));
    }

    /// Counts a word up, and returns who wakes.
    pub fn add(&mut self, word: Word, n: i64) -> Vec<Actor> {
        let count = &mut self.ranks[word.rank][word.signal.index()].words[word.at];
        *count = count.saturating_add(n);
        let seen = *count;
        let Some(sleepers) = self.sleepers.get_mut(&word) else {
            return Vec::new();
        };
        let mut woken = Vec::new();
        sleepers.retain(|(expected, actor)| {
            if seen >= *expected {
                woken.push(*actor);
            }
            seen < *expected
        });
        woken
    }

    /// Removes the waiters that can go on, of words that the network counts.
    pub fn woken(&mut self, seen: impl Fn(Word) -> Option<i64>) -> Vec<Actor> {
        let mut woken = Vec::new();
        for (word, sleepers) in &mut self.sleepers {
            let Some(seen) = seen(*word).filter(|_| !sleepers.is_empty()) else { continue };
            sleepers.retain(|(expected, actor)| {
                if seen >= *expected {
                    woken.push(*actor);
                }
                seen < *expected
            });
        }
        woken.sort_unstable();
        woken
    }
}
