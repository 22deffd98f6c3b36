//! Memory that instances of a world have in common: each uses it within its own launches, and launches run one after
//! the other.
//!
//! It comes in chunks, the same on every rank. An instance maps as many of them as it needs behind memory of its own;
//! what is still missing is made as one chunk more. A chunk lives until the last instance that maps it is dropped, on
//! each rank by itself: who binds takes those that all ranks still have.

use super::exchange::{CALL, everywhere};
use super::vmm::Physical;
use crate::world::{Deadline, World};
use crate::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The chunks of a world.
#[derive(Debug, Default)]
pub(super) struct Pool {
    chunks: Mutex<Vec<Weak<Chunk>>>,
    /// At least the number of the next chunk. Ranks whose collective calls failed apart may differ in it.
    next: AtomicU64,
}

/// As much memory on every rank.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Counts the chunks of a world: the same on all ranks.
    number: u64,
    pub(super) bytes: u64,
    /// Of the ranks that this process maps.
    pub(super) parts: Vec<(u32, Physical)>,
}

/// What an instance maps.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) chunks: Vec<Arc<Chunk>>,
    /// Bytes of those that others may be using.
    pub(super) old_bytes: u64,
}

impl Taken {
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|c| c.bytes).sum()
    }
}

impl Pool {
    /// Chunks of `bytes` together, or more, whose sizes are multiples of `granularity`. Collective.
    ///
    /// # Errors
    /// As [`super::SymmetricMemory::new`].
    pub(super) fn take(
        world: &World,
        bytes: u64,
        granularity: u64,
        deadline: Deadline,
    ) -> Result<Taken> {
        let pool = Pool::of(world);
        let live: Vec<Arc<Chunk>> = pool.list().iter().filter_map(Weak::upgrade).collect();
        let numbers: Vec<u64> = live.iter().map(|c| c.number).collect();
        let next = pool.next.load(Ordering::Relaxed);
        let (next, shared) = match world.group() {
            None => (next, numbers),
            Some(group) => {
                let mine = [&[next], &numbers[..]].concat();
                let mine: Vec<u8> = mine.iter().flat_map(|n| n.to_le_bytes()).collect();
                common(next, &numbers, &group.all_gather(CALL, &mine, deadline)?)
            }
        };
        // Used up even if the chunk cannot be made: another rank may have made its part.
        pool.next.store(next + 1, Ordering::Relaxed);
        let mut taken = Taken::default();
        for chunk in live.into_iter().filter(|c| shared.contains(&c.number)) {
            if taken.bytes() < bytes {
                taken.chunks.push(chunk);
            }
        }
        taken.old_bytes = taken.bytes();
        let missing = bytes.saturating_sub(taken.old_bytes);
        if missing > 0 {
            let what = || format!("symmetric memory of {missing} bytes cannot be made");
            let size = missing.checked_next_multiple_of(granularity);
            let size = size.ok_or_else(|| Error::Shape { what: what() })?;
            let parts = everywhere(world, size, deadline)?;
            let chunk = Arc::new(Chunk { number: next, bytes: size, parts });
            let mut list = pool.list();
            list.retain(|c| c.strong_count() > 0);
            list.push(Arc::downgrade(&chunk));
            taken.chunks.push(chunk);
        }
        Ok(taken)
    }

    fn of(world: &World) -> &Pool {
        let pool = world.in_common().get_or_init(|| Box::new(Pool::default()));
        pool.downcast_ref().unwrap_or_else(|| unreachable!("nothing else is kept there"))
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Chunk>>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number that no rank has given, and the chunks that every rank has. Each rank says its next number, then those of
/// its chunks.
fn common(next: u64, mine: &[u64], all: &[Vec<u8>]) -> (u64, Vec<u64>) {
    let numbers = |bytes: &[u8]| -> Vec<u64> {
        bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    };
    let all: Vec<Vec<u64>> = all.iter().map(|bytes| numbers(bytes)).collect();
    let next = all.iter().filter_map(|said| said.first()).fold(next, |a, b| a.max(*b));
    let has = |said: &Vec<u64>, n: u64| said.iter().skip(1).any(|other| *other == n);
    (next, mine.iter().copied().filter(|n| all.iter().all(|said| has(said, *n))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(next: u64, numbers: &[u64]) -> Vec<u8> {
        [&[next], numbers].concat().iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    #[test]
    fn chunks_that_a_rank_has_dropped_are_taken_by_none() {
        let all = [said(8, &[0, 2, 3]), said(8, &[2, 3, 7]), said(8, &[3, 2])];
        assert_eq!(common(8, &[0, 2, 3], &all), (8, vec![2, 3]));
        assert_eq!(common(8, &[2, 3, 7], &all), (8, vec![2, 3]));
        assert_eq!(common(2, &[1], &[said(2, &[1]), Vec::new()]), (2, vec![]));
    }

    /// A call that failed on one rank alone leaves it a number behind; the next chunk has one that nobody has given.
    #[test]
    fn ranks_that_counted_apart_agree_on_the_next_number() {
        let all = [said(6, &[4, 5]), said(5, &[4])];
        assert_eq!(common(6, &[4, 5], &all), (6, vec![4]));
        assert_eq!(common(5, &[4], &all), (6, vec![4]));
    }
}
