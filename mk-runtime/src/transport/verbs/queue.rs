//! The queue of a queue pair: what is in its send queue, which of it is signalled, what a completion says, and credits.
//!
//! Completions are selective: a write is signalled if no other signalled one is on its way, or if the last was `EVERY`
//! writes before. A completion stands for everything before it. What is left behind the last signalled one is reported
//! by a flush, a write of nothing that is signalled ([`QueueState::wants_flush`]).

use std::collections::VecDeque;

/// Most writes between signalled ones.
const EVERY: u32 = 8;
/// Entries of the send queue that writes leave to flushes and credits.
pub(super) const RESERVED: u32 = 4;

/// What an entry of the send queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A write of the caller, and its token.
    Write(u64),
    /// Nothing, to hear of what is before it.
    Flush,
    /// A message that gives receives back.
    Credits,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u64,
    item: Item,
    /// Work requests.
    requests: u32,
    signalled: bool,
}

/// How an accepted item is to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub number: u64,
    pub signalled: bool,
}

#[derive(Debug)]
pub(super) struct QueueState {
    /// Capacity of the send queue, in work requests.
    capacity: u32,
    used: u32,
    next: u64,
    entries: VecDeque<Entry>,
    signalled: u32,
    since_signalled: u32,
    /// Immediates that the peer has receives for.
    pub credits: u32,
    /// Receives that it gave when all were free.
    window: u32,
    /// Receives of the own side that were consumed, posted again, and not given back.
    pub uncredited: u32,
}

impl QueueState {
    /// Of a queue pair with this capacity, in work requests.
    pub fn new(capacity: u32) -> QueueState {
        QueueState {
            capacity,
            used: 0,
            next: 0,
            entries: VecDeque::new(),
            signalled: 0,
            since_signalled: 0,
            credits: 0,
            window: 0,
            uncredited: 0,
        }
    }

    /// The peer has receives for so many immediates.
    pub fn open(&mut self, window: u32) {
        (self.credits, self.window) = (window, window);
    }

    /// Whether a write of so many work requests fits.
    pub fn has_capacity(&self, requests: u32) -> bool {
        self.used + requests + RESERVED <= self.capacity
    }

    /// Whether something that is not a write fits.
    pub fn has_reserve(&self) -> bool {
        self.used < self.capacity
    }

    /// Enters an item of so many work requests, which fit.
    pub fn enter(&mut self, item: Item, requests: u32) -> Place {
        let signalled = match item {
            Item::Write(_) => self.signalled == 0 || self.since_signalled + 1 >= EVERY,
            Item::Flush => true,
            Item::Credits => false,
        };
        let number = self.next;
        self.next += 1;
        self.used += requests;
        self.signalled += u32::from(signalled);
        self.since_signalled = if signalled { 0 } else { self.since_signalled + 1 };
        self.entries.push_back(Entry { number, item, requests, signalled });
        Place { number, signalled }
    }

    /// Takes the last item back: the device did not accept it.
    pub fn withdraw(&mut self) {
        if let Some(entry) = self.entries.pop_back() {
            self.used -= entry.requests;
            self.signalled -= u32::from(entry.signalled);
            self.next = entry.number;
        }
    }

    /// Everything up to an item has ended, in order.
    pub fn ended(&mut self, number: u64) -> impl Iterator<Item = Item> + use<> {
        let n = self.entries.iter().take_while(|e| e.number <= number).count();
        self.remove(n)
    }

    /// Everything before an item has ended, in order; the item itself has failed, with all behind it.
    pub fn before(&mut self, number: u64) -> impl Iterator<Item = Item> + use<> {
        let n = self.entries.iter().take_while(|e| e.number < number).count();
        self.remove(n)
    }

    /// Everything that has not ended.
    pub fn rest(&mut self) -> impl Iterator<Item = Item> + use<> {
        self.remove(self.entries.len())
    }

    fn remove(&mut self, n: usize) -> std::vec::IntoIter<Item> {
        let gone: Vec<Entry> = self.entries.drain(..n).collect();
        for entry in &gone {
            self.used -= entry.requests;
            self.signalled -= u32::from(entry.signalled);
        }
        gone.into_iter().map(|e| e.item).collect::<Vec<_>>().into_iter()
    }

    /// Whether there are items of which no completion will tell.
    pub fn wants_flush(&self) -> bool {
        self.signalled == 0 && !self.entries.is_empty()
    }

    /// Whether nothing is on its way.
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// The peer gives receives back: whether it had consumed as many.
    #[must_use]
    pub fn credited(&mut self, n: u32) -> bool {
        let credits = self.credits.saturating_add(n);
        let right = credits <= self.window;
        self.credits = credits.min(self.window);
        right
    }

    /// Receives to give back now, of a window of the own side: half of it at once, so that at most two such messages,
    /// and two receives for them, are on their way.
    pub fn due(&self, window: u32) -> Option<u32> {
        (self.uncredited >= (window / 2).max(1)).then_some(self.uncredited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(items: impl Iterator<Item = Item>) -> Vec<u64> {
        items.filter_map(|i| if let Item::Write(token) = i { Some(token) } else { None }).collect()
    }

    #[test]
    fn completions_are_selective_and_stand_for_what_is_before() {
        let mut b = QueueState::new(100);
        let places: Vec<Place> = (0..20).map(|t| b.enter(Item::Write(t), 2)).collect();
        let signalled: Vec<u64> = places.iter().filter(|p| p.signalled).map(|p| p.number).collect();
        assert_eq!(signalled, [0, 8, 16]);
        assert_eq!(tokens(b.ended(8)), (0..=8).collect::<Vec<_>>());
        assert!(!b.wants_flush());
        assert_eq!(tokens(b.ended(16)), (9..=16).collect::<Vec<_>>());
        assert!(b.wants_flush(), "of 17 to 19 nothing tells");
        let flush = b.enter(Item::Flush, 1);
        assert!(flush.signalled && !b.wants_flush());
        assert_eq!(tokens(b.ended(flush.number)), [17, 18, 19]);
        assert!(b.is_idle() && b.has_capacity(96) && !b.has_capacity(97));
    }

    #[test]
    fn a_failure_tells_apart_what_was_before() {
        let mut b = QueueState::new(100);
        for token in 0..6 {
            b.enter(Item::Write(token), 1);
        }
        assert_eq!(tokens(b.before(3)), [0, 1, 2]);
        assert_eq!(tokens(b.rest()), [3, 4, 5]);
        assert!(b.is_idle());
        // What is said twice is not counted twice.
        assert_eq!(tokens(b.ended(5)), [0; 0]);
    }

    #[test]
    fn room_is_that_of_the_queue() {
        let mut b = QueueState::new(10);
        let mut taken = 0;
        while b.has_capacity(2) {
            b.enter(Item::Write(taken), 2);
            taken += 1;
        }
        assert_eq!(taken, 3);
        for _ in 0..RESERVED {
            assert!(b.has_reserve());
            b.enter(Item::Credits, 1);
        }
        assert!(!b.has_reserve());
        b.withdraw();
        assert!(b.has_reserve());
    }

    #[test]
    fn credits_are_those_of_the_window() {
        let mut b = QueueState::new(10);
        b.open(4);
        b.credits -= 3;
        assert!(b.credited(3));
        assert!(!b.credited(1), "it had not consumed one");
        assert_eq!(b.credits, 4);
        (1..=5).for_each(|n| {
            b.uncredited = n;
            assert_eq!(b.due(8), (n >= 4).then_some(n));
        });
    }
}
