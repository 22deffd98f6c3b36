//! What a process of a world tells the others in shared memory, of which it needs no call and they no answer: that it
//! leaves, and which launches it has made.

use crate::Result;
use crate::world::shared::SharedPages;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Launches that a page remembers: the last ones.
const REMEMBERED: u64 = 256;

/// Words of a page: the farewell, where the count was lost, and the launches.
const WORDS: usize = 2 + REMEMBERED as usize;

/// A process's page, as it or another one maps it. All words are 0 at first.
#[derive(Debug)]
pub(super) struct Page(SharedPages);

impl Page {
    /// Launches that it remembers.
    pub(super) const MOST: u64 = REMEMBERED;

    pub(super) fn create() -> Result<(Page, OwnedFd)> {
        let (pages, fd) = SharedPages::create(WORDS * size_of::<u64>())?;
        Ok((Page(pages), fd))
    }

    /// What a process of another host has told.
    pub(super) fn told() -> Result<Page> {
        Page::create().map(|(page, _)| page)
    }

    /// Maps that of another process.
    pub(super) fn open(fd: &OwnedFd) -> Result<Page> {
        Ok(Page(SharedPages::open(fd, WORDS * size_of::<u64>())?))
    }

    /// Says that the process leaves of its own will, after so many launches.
    pub(super) fn leave(&self, made: u64) {
        self.word(0).store(made.saturating_add(1), Ordering::Release);
    }

    /// The launches that the process made before it left, if it has.
    pub(super) fn left(&self) -> Option<u64> {
        self.word(0).load(Ordering::Acquire).checked_sub(1)
    }

    /// Says that launches of the process behind `n` need not be those of others with the same number. Whether nobody
    /// had said so: once is for good.
    pub(super) fn lose_count(&self, n: u64) -> bool {
        let lost = n.saturating_add(1);
        self.word(1).compare_exchange(0, lost, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether launch `n` of the process is that of others with this number.
    pub(super) fn counts(&self, n: u64) -> bool {
        let lost = self.word(1).load(Ordering::Acquire);
        lost == 0 || n < lost
    }

    /// Says that launch `n`, counted from 1, is of that instance. Who says so and then asks, and another who does,
    /// cannot both miss the other's word.
    pub(super) fn note(&self, n: u64, instance: u32) {
        self.launch(n).store(n << 32 | u64::from(instance), Ordering::SeqCst);
    }

    /// The instance of launch `n`, if the process has made it and still remembers.
    pub(super) fn noted(&self, n: u64) -> Option<u32> {
        let word = self.launch(n).load(Ordering::SeqCst);
        (word >> 32 == n & 0xffff_ffff && n > 0).then_some(word as u32)
    }

    /// The launches of an instance that are remembered; their numbers modulo 2^32.
    pub(super) fn launches_of(&self, instance: u32) -> impl Iterator<Item = u64> {
        let words = (0..REMEMBERED).map(|n| self.launch(n).load(Ordering::SeqCst));
        words.filter(move |word| word >> 32 > 0 && *word as u32 == instance).map(|word| word >> 32)
    }

    fn launch(&self, n: u64) -> &AtomicU64 {
        self.word(2 + (n % REMEMBERED) as usize)
    }

    fn word(&self, i: usize) -> &AtomicU64 {
        debug_assert!(i < WORDS);
        // SAFETY: mapped for as long as the page lives and that long, aligned, and used as an atomic by every process.
        unsafe { AtomicU64::from_ptr(self.0.start().cast::<u64>().add(i)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_launches_are_remembered() {
        let (mine, fd) = Page::create().unwrap();
        let theirs = Page::open(&fd).unwrap();
        assert_eq!((theirs.noted(0), theirs.noted(1)), (None, None));
        for n in 1..=1000 {
            mine.note(n, n as u32 / 300);
        }
        assert!((745..=1000).all(|n| theirs.noted(n) == Some(n as u32 / 300)));
        assert_eq!((theirs.noted(744), theirs.noted(1001)), (None, None));
        let mut third: Vec<_> = theirs.launches_of(3).collect();
        third.sort();
        assert_eq!(third, (900..=1000).collect::<Vec<_>>());
        assert_eq!(theirs.launches_of(0).count(), 0);
        assert_eq!((theirs.left(), theirs.counts(1000)), (None, true));
        mine.leave(0);
        mine.lose_count(1000);
        mine.lose_count(2000);
        assert_eq!(theirs.left(), Some(0));
        assert_eq!([1000, 1001].map(|n| theirs.counts(n)), [true, false]);
    }
}
