//! The ring through which a GPU tells its host what to send: one producer, one consumer, no locks.
//!
//! The command of number n (from 0) lies in place n mod size, and its last word, `seq`, is n + 1: stored last, with
//! release, so that a reader that acquires it sees all words before it. The consumer tells by `taken` how many it has
//! read; the producer reuses a place only behind that. A producer that stops leaves no hole: what it did not finish has
//! no number.
//!
//! The device's half is `templates/nic/fifo.cuh`. This file is also run over a model of memory that shows every order
//! which release and acquire allow (`tests/ring.rs`).

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// Words that both sides reach.
pub trait Words {
    /// Reads a word.
    fn load(&self, at: usize, order: Ordering) -> u32;
    /// Writes a word.
    fn store(&self, at: usize, value: u32, order: Ordering);
}

/// Where things are, in words: head and entries have the same size, a cache line where it is real.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Words of an entry, `seq` last.
    pub entry: usize,
    /// Entries, at least 1.
    pub size: u32,
}

/// The word that says how many commands were taken.
const TAKEN: usize = 0;

impl Shape {
    fn place(self, number: u32) -> usize {
        self.entry * (1 + (number % self.size) as usize)
    }

    /// Words of head and entries.
    pub fn words(self) -> usize {
        self.entry * (1 + self.size as usize)
    }
}

/// The end that writes.
#[derive(Debug)]
pub struct Producer {
    shape: Shape,
    /// Number of the next command. Places repeat where numbers wrap only for sizes that are powers of two.
    next: u32,
    /// What was last seen of `taken`.
    taken: u32,
}

impl Producer {
    /// Of a ring whose words are 0.
    pub fn new(shape: Shape) -> Producer {
        Producer { shape, next: 0, taken: 0 }
    }

    /// Puts a command in; all its words but the last, which is its number. False when the ring is full.
    pub fn push(&mut self, words: &impl Words, command: &[u32]) -> bool {
        if self.next.wrapping_sub(self.taken) >= self.shape.size {
            self.taken = words.load(TAKEN, Acquire);
            if self.next.wrapping_sub(self.taken) >= self.shape.size {
                return false;
            }
        }
        let place = self.shape.place(self.next);
        let last = self.shape.entry - 1;
        for (i, word) in command.iter().enumerate().take(last) {
            words.store(place + i, *word, Relaxed);
        }
        self.next = self.next.wrapping_add(1);
        words.store(place + last, self.next, Release);
        true
    }
}

/// The end that reads.
#[derive(Debug)]
pub struct Consumer {
    shape: Shape,
    next: u32,
}

impl Consumer {
    /// Of a ring whose words are 0.
    pub fn new(shape: Shape) -> Consumer {
        Consumer { shape, next: 0 }
    }

    /// The next command, if it is there, into `out`. It stays in its place until [`Consumer::release`].
    pub fn peek(&self, words: &impl Words, out: &mut [u32]) -> bool {
        let place = self.shape.place(self.next);
        let last = self.shape.entry - 1;
        let seq = words.load(place + last, Acquire);
        if seq != self.next.wrapping_add(1) {
            return false;
        }
        for (i, word) in out.iter_mut().enumerate().take(last) {
            *word = words.load(place + i, Relaxed);
        }
        if let Some(word) = out.get_mut(last) {
            *word = seq;
        }
        true
    }

    /// Gives the place of the command that was read back.
    pub fn release(&mut self, words: &impl Words) {
        self.next = self.next.wrapping_add(1);
        words.store(TAKEN, self.next, Release);
    }
}
