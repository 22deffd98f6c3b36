//! Ranges of a rank's registered memory, leased to instances.
//!
//! Memory is registered once: a write to a region that is gone would end a queue pair that other instances share. All
//! ranks lease and take back in the same order, so that an instance has the same range and the same number everywhere,
//! and a range is taken back when every rank has said that it sends nothing there any more.

use crate::error::TransportError;
use std::collections::BTreeMap;

/// Alignment of a range: what lies in two of them shares no page of a device.
const ALIGN: u64 = 4096;

/// Who has which part of an arena. Pure bookkeeping.
#[derive(Debug)]
pub struct Arena {
    bytes: u64,
    next: u32,
    /// By first byte: length and instance.
    leased: BTreeMap<u64, (u64, u32)>,
}

/// A range that is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Number of the instance, the same on all ranks.
    pub instance: u32,
    /// First byte in the arena.
    pub base: u64,
    /// Length.
    pub bytes: u64,
}

impl Arena {
    /// Of so many bytes.
    pub fn new(bytes: u64) -> Arena {
        Arena { bytes, next: 0, leased: BTreeMap::new() }
    }

    /// Leases a range: the lowest that is free.
    ///
    /// # Errors
    /// [`TransportError::Memory`] where no free range is as long.
    pub fn lease(&mut self, bytes: u64) -> Result<Lease, TransportError> {
        let full = || TransportError::Memory {
            what: format!(
                "{bytes} bytes are not free in a net arena of {}, {} of which are leased: make it larger \
                 (`MK_NET_MIB`), or drop instances",
                self.bytes,
                self.leased.values().map(|l| l.0).sum::<u64>()
            ),
        };
        let wanted = bytes.max(1).checked_next_multiple_of(ALIGN).ok_or_else(full)?;
        let mut base = 0;
        for (first, (length, _)) in &self.leased {
            if first - base >= wanted {
                break;
            }
            base = first + length;
        }
        if base.checked_add(wanted).is_none_or(|end| end > self.bytes) {
            return Err(full());
        }
        let instance = self.next;
        self.next = self.next.wrapping_add(1);
        self.leased.insert(base, (wanted, instance));
        Ok(Lease { instance, base, bytes: wanted })
    }

    /// Takes a range back. Nothing may be written there any more.
    pub fn take_back(&mut self, lease: &Lease) {
        if self.leased.get(&lease.base) == Some(&(lease.bytes, lease.instance)) {
            self.leased.remove(&lease.base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_come_back() {
        let mut arena = Arena::new(10 * ALIGN);
        let a = arena.lease(1).unwrap();
        let b = arena.lease(3 * ALIGN).unwrap();
        let c = arena.lease(6 * ALIGN).unwrap();
        assert_eq!([a.base, b.base, c.base], [0, ALIGN, 4 * ALIGN]);
        assert_eq!([a.instance, b.instance, c.instance], [0, 1, 2]);
        let full = arena.lease(1).unwrap_err().to_string();
        assert!(full.contains("40960 of which are leased"), "{full}");
        arena.take_back(&b);
        let d = arena.lease(2 * ALIGN).unwrap();
        assert_eq!((d.base, d.instance), (ALIGN, 3));
        // Of a lease that was taken back before: another owner's range stays.
        arena.take_back(&Lease { base: d.base, ..b });
        assert!(arena.lease(2 * ALIGN).is_err());
        assert!(arena.lease(u64::MAX).is_err());
    }
}
