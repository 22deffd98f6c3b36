//! Sets and maps of small numbers, of which there are many.

use super::number::mix;
use std::hash::{BuildHasherDefault, Hasher};

pub(super) type Set<T> = std::collections::HashSet<T, BuildHasherDefault<NumberHasher>>;
pub(super) type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// A hash of numbers, which come from plans and not from an adversary's tables.
#[derive(Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        mix(self.0)
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    fn write_u32(&mut self, x: u32) {
        self.write_u64(u64::from(x));
    }
    fn write_i32(&mut self, x: i32) {
        self.write_u64(x as u64);
    }
    fn write_i64(&mut self, x: i64) {
        self.write_u64(x as u64);
    }
    fn write_usize(&mut self, x: usize) {
        self.write_u64(x as u64);
    }
    fn write_u64(&mut self, x: u64) {
        self.0 = (self.0.rotate_left(23) ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
