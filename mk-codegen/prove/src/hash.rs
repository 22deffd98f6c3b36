//! Maps of the proof: keyed by few small numbers, millions of times. The order of their entries is never looked at.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
};

pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;
pub(crate) type FastSet<K> = HashSet<K, BuildHasherDefault<Mixer>>;

/// Multiplies and rotates: quick, and good enough for keys that nobody gains by making collide, since work is bounded
/// anyway.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mixer(u64);

impl Mixer {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(26) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        // Tables look at the lowest and the highest bits.
        self.0 ^ (self.0 >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, n: u8) {
        self.add(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.add(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.add(n);
    }
    fn write_usize(&mut self, n: usize) {
        self.add(n as u64);
    }
    fn write_i64(&mut self, n: i64) {
        self.add(n as u64);
    }
}
