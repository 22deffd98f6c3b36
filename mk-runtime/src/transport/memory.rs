//! Memory that a network reads and writes.

use super::TransportError;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Alignment of host arenas: a page, which is the unit of registration.
const PAGE: usize = 4096;

/// Memory of a rank that is registered with a network. Cards, other threads and GPUs access it at any time; plans order
/// what matters, by words.
///
/// # Safety
/// `bytes` bytes from `base` on stay readable and writable, at that address, as long as the value lives. `base` is
/// aligned to 8 bytes.
pub unsafe trait NetMemory: Send + Sync + std::fmt::Debug {
    /// Address of the first byte, on the host.
    fn base(&self) -> *mut u8;

    /// Length.
    fn bytes(&self) -> u64;

    /// The GPU that the memory is on. `base` is an address of that GPU then, and no load or store of the host may reach
    /// it.
    fn gpu(&self) -> Option<Gpu> {
        None
    }

    /// What moves its bytes and sets its words, where no load or store of the host may reach it.
    fn copy_engine(&self) -> Option<&dyn CopyEngine> {
        None
    }

    /// Makes visible to the memory's GPU what cards have written: [`Flush::Driver`](super::Flush::Driver).
    ///
    /// # Errors
    /// Of the driver.
    fn flush(&self) -> Result<(), String> {
        Ok(())
    }

    /// A dmabuf of the memory.
    ///
    /// # Errors
    /// Why there is none.
    fn dmabuf(&self) -> Result<Dmabuf, String> {
        Err("it is memory of the host".into())
    }
}

/// Copy engines of a GPU, for memory of its own. They go on while a kernel fills the GPU, but for copies inside it.
pub trait CopyEngine: Send + Sync {
    /// Whether this GPU writes to another's memory.
    fn reaches(&self, other: &Gpu) -> bool;

    /// Copies pieces, in any order, and sets words behind them; returns when all of it is there.
    ///
    /// # Errors
    /// Of the driver.
    ///
    /// # Safety
    /// What pieces come from stays readable, and what they go to, and the words, writable: memory of this GPU, of
    /// another one, or of the host. Words are in memory of this GPU, or of one that it reaches.
    unsafe fn copy(&self, pieces: &[Piece], words: &[(*mut u8, u32)]) -> Result<(), String>;

    /// Sets words, soon, behind those that were set before.
    ///
    /// # Errors
    /// Of the driver.
    ///
    /// # Safety
    /// Words are in memory of this GPU, aligned, and stay there until [`CopyEngine::settle`].
    unsafe fn set(&self, words: &[(*mut u8, u32)]) -> Result<(), String>;

    /// Returns when all words are set.
    ///
    /// # Errors
    /// Of the driver.
    fn settle(&self) -> Result<(), String>;
}

/// Bytes to copy.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The first one.
    pub from: *const u8,
    /// Where it goes.
    pub to: *mut u8,
    /// How many.
    pub bytes: u64,
}

impl Piece {
    /// Whether another one begins where this one ends, on both sides.
    pub fn goes_on(&self, next: &Piece) -> bool {
        let bytes = self.bytes as usize;
        self.from.wrapping_add(bytes) == next.from && self.to.wrapping_add(bytes) == next.to
    }
}

/// A GPU, as a network sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number in this process, as CUDA counts.
    pub ordinal: i32,
}

/// What another device's driver can map.
#[derive(Debug)]
pub struct Dmabuf {
    /// Closed behind the registration, which holds the memory itself.
    pub fd: OwnedFd,
    /// The arena's first byte in it.
    pub offset: u64,
}

/// Ordinary memory of the host: an arena of CPU ranks. Every access is atomic, byte by byte at least, so that reading
/// it while a card writes gives old or new bytes and nothing worse.
#[derive(Debug)]
pub struct HostMemory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: accessed by atomics only.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

// SAFETY: allocated in `new`, freed in `drop`, aligned to a page.
unsafe impl NetMemory for HostMemory {
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }
}

impl HostMemory {
    /// Zeroed memory of at least so many bytes, in whole pages.
    ///
    /// # Errors
    /// [`TransportError::Memory`] for none, and for more than there is.
    pub fn new(bytes: usize) -> Result<HostMemory, TransportError> {
        let refused =
            |what: &str| TransportError::Memory { what: format!("{bytes} bytes: {what}") };
        let whole = bytes.checked_next_multiple_of(PAGE).filter(|n| *n > 0);
        let whole = whole.ok_or_else(|| refused("not an amount of memory"))?;
        let layout = Layout::from_size_align(whole, PAGE).map_err(|e| refused(&e.to_string()))?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        Ok(HostMemory {
            base: base.ok_or_else(|| refused("the system has not that much"))?,
            layout,
        })
    }

    /// A word of 32 bits.
    ///
    /// # Panics
    /// When it is not inside, or not aligned.
    pub fn word(&self, at: u64) -> &AtomicU32 {
        self.check(at, 4);
        assert!(at.is_multiple_of(4), "a word at byte {at}");
        // SAFETY: inside, aligned, and accessed by atomics only.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at as usize).cast()) }
    }

    /// Writes bytes.
    ///
    /// # Panics
    /// When they are not inside.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.check(at, bytes.len() as u64);
        let (mut at, mut rest) = (at as usize, bytes);
        while let Some((first, behind)) = rest.split_first() {
            match rest.split_first_chunk::<8>().filter(|_| at.is_multiple_of(8)) {
                Some((eight, behind)) => {
                    self.eight(at).store(u64::from_ne_bytes(*eight), Ordering::Relaxed);
                    (rest, at) = (behind, at + 8);
                }
                None => {
                    self.byte(at).store(*first, Ordering::Relaxed);
                    (rest, at) = (behind, at + 1);
                }
            }
        }
    }

    /// Reads bytes.
    ///
    /// # Panics
    /// When they are not inside.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        self.check(at, out.len() as u64);
        let (mut at, mut rest) = (at as usize, out);
        while !rest.is_empty() {
            let n = match at.is_multiple_of(8) && rest.len() >= 8 {
                true => {
                    rest[..8]
                        .copy_from_slice(&self.eight(at).load(Ordering::Relaxed).to_ne_bytes());
                    8
                }
                false => {
                    rest[0] = self.byte(at).load(Ordering::Relaxed);
                    1
                }
            };
            (rest, at) = (&mut rest[n..], at + n);
        }
    }

    fn check(&self, at: u64, bytes: u64) {
        let end = at.checked_add(bytes).filter(|end| *end <= self.bytes());
        assert!(end.is_some(), "{bytes} bytes at {at} of {}", self.bytes());
    }

    /// The caller has checked that it is inside.
    fn eight(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside, aligned, and accessed by atomics only.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(at)) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// Sets words of an arena behind everything that this thread has seen: what [`raise`](super::Transport::raise) does.
/// They are set when this returns.
pub(super) fn raise(memory: &dyn NetMemory, words: &[(u64, u32)]) -> Result<(), TransportError> {
    raise_soon(memory, words)?;
    settle(memory)
}

/// Returns when words of an arena are set.
pub(super) fn settle(memory: &dyn NetMemory) -> Result<(), TransportError> {
    let settled = memory.copy_engine().map_or(Ok(()), CopyEngine::settle);
    settled.map_err(|what| TransportError::Memory { what })
}

/// [`raise`], where that takes a GPU's copy engine soon after this returns.
pub(super) fn raise_soon(
    memory: &dyn NetMemory,
    words: &[(u64, u32)],
) -> Result<(), TransportError> {
    let outside =
        |at: u64| !at.is_multiple_of(4) || at.checked_add(4).is_none_or(|end| end > memory.bytes());
    if let Some((at, _)) = words.iter().find(|(at, _)| outside(*at)) {
        let what = format!("a word at byte {at} of an arena of {}", memory.bytes());
        return Err(TransportError::Memory { what });
    }
    let words = words.iter().map(|(at, value)| (memory.base().wrapping_add(*at as usize), *value));
    if let Some(engine) = memory.copy_engine() {
        // SAFETY: inside and aligned, and owners of arenas settle words before they go.
        let set = unsafe { engine.set(&words.collect::<Vec<_>>()) };
        return set.map_err(|what| TransportError::Memory { what });
    }
    if let Some(Gpu { ordinal }) = memory.gpu() {
        let what = format!("a word of GPU {ordinal}'s memory, which the host does not store to");
        return Err(TransportError::Memory { what });
    }
    for (word, value) in words {
        // SAFETY: inside, aligned, on the host, and a word that hosts and GPUs access as an atomic.
        unsafe { AtomicU32::from_ptr(word.cast()) }.store(value, Ordering::Release);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_at_every_alignment() {
        let memory = HostMemory::new(5000).unwrap();
        assert_eq!(memory.bytes(), 8192);
        for (at, n) in [(0, 1), (3, 30), (7, 8), (8, 8), (4090, 17), (8191, 1), (100, 0)] {
            let bytes: Vec<u8> = (0..n).map(|i| (at + i) as u8 | 1).collect();
            memory.write(at as u64, &bytes);
            let mut back = vec![0; n];
            memory.read(at as u64, &mut back);
            assert_eq!(back, bytes, "{n} bytes at {at}");
        }
        raise(&memory, &[(8188, 7)]).unwrap();
        assert_eq!(memory.word(8188).load(Ordering::Acquire), 7);
        for at in [8190, 8192, u64::MAX - 3, u64::MAX] {
            assert!(raise(&memory, &[(0, 1), (at, 7)]).is_err(), "{at}");
        }
        assert!(HostMemory::new(0).is_err() && HostMemory::new(usize::MAX).is_err());
    }
}
