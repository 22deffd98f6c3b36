//! A fifo of commands in memory that GPU and host reach, or two threads.

use super::ring::{Consumer, Producer, Shape, Words};
use crate::error::TransportError;
use crate::transport::{HostMemory, NetMemory};
use mk_abi::device::{NetCommand, NetFifo};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most commands of a fifo.
pub const MAX_FIFO: u32 = 1 << 16;

const WORDS: usize = size_of::<NetCommand>() / 4;
const _: () = assert!(size_of::<NetFifo>() == size_of::<NetCommand>());

/// Memory of a fifo: [`NetFifo`], and `size` commands behind it. Zero at first.
#[derive(Clone, Debug)]
pub struct Fifo {
    memory: Arc<dyn NetMemory>,
    shape: Shape,
}

struct In<'a>(&'a dyn NetMemory);

impl In<'_> {
    fn word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(4 * (at as u64 + 1) <= self.0.bytes());
        // SAFETY: inside (the fifo's size was checked when it was made), aligned, and accessed by atomics only.
        unsafe { AtomicU32::from_ptr(self.0.base().cast::<u32>().add(at)) }
    }
}

impl Words for In<'_> {
    fn load(&self, at: usize, order: Ordering) -> u32 {
        self.word(at).load(order)
    }

    fn store(&self, at: usize, value: u32, order: Ordering) {
        self.word(at).store(value, order);
    }
}

impl Fifo {
    /// Bytes of a fifo.
    pub fn bytes(size: u32) -> u64 {
        64 * (1 + u64::from(size))
    }

    /// A fifo of `size` commands in memory that is 0.
    ///
    /// # Errors
    /// [`TransportError::Memory`] for a size of 0 or past [`MAX_FIFO`], one that is no power of two, and for less
    /// memory.
    pub fn new(memory: Arc<dyn NetMemory>, size: u32) -> Result<Fifo, TransportError> {
        let wrong = |what: String| Err(TransportError::Memory { what });
        if !size.is_power_of_two() || size > MAX_FIFO {
            return wrong(format!(
                "a fifo of {size} commands: the size is a power of two, {MAX_FIFO} at most"
            ));
        }
        if memory.bytes() < Fifo::bytes(size) {
            let bytes = memory.bytes();
            return wrong(format!("a fifo of {size} commands does not fit into {bytes} bytes"));
        }
        Ok(Fifo { memory, shape: Shape { entry: WORDS, size } })
    }

    /// A fifo of ranks on the CPU.
    ///
    /// # Errors
    /// As [`Fifo::new`].
    pub fn on_host(size: u32) -> Result<Fifo, TransportError> {
        let bytes = Fifo::bytes(size.min(MAX_FIFO)) as usize;
        Fifo::new(Arc::new(HostMemory::new(bytes)?), size)
    }

    /// The writing end, for a rank on the CPU. A fifo has one.
    pub fn writer(&self) -> Writer {
        Writer { fifo: self.clone(), producer: Producer::new(self.shape) }
    }

    /// The reading end. A fifo has one.
    pub(super) fn reader(&self) -> Reader {
        Reader { fifo: self.clone(), consumer: Consumer::new(self.shape) }
    }
}

/// The end of a rank on the CPU.
#[derive(Debug)]
pub struct Writer {
    fifo: Fifo,
    producer: Producer,
}

impl Writer {
    /// Puts a command in; its `seq` is set here. False when the fifo is full.
    pub fn push(&mut self, command: NetCommand) -> bool {
        self.producer.push(&In(&*self.fifo.memory), &command.to_words())
    }
}

/// The proxy's end.
#[derive(Debug)]
pub(super) struct Reader {
    fifo: Fifo,
    consumer: Consumer,
}

impl Reader {
    /// The next command, which stays until [`Reader::release`].
    pub fn peek(&self) -> Option<NetCommand> {
        let mut words = [0; WORDS];
        let there = self.consumer.peek(&In(&*self.fifo.memory), &mut words);
        there.then(|| NetCommand::from_words(words))
    }

    pub fn release(&mut self) {
        self.consumer.release(&In(&*self.fifo.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(n: u32) -> NetCommand {
        NetCommand::from_words(std::array::from_fn(|i| n.wrapping_mul(17).wrapping_add(i as u32)))
    }

    #[test]
    fn a_full_fifo_refuses_and_goes_on() {
        let fifo = Fifo::on_host(4).unwrap();
        let (mut writer, mut reader) = (fifo.writer(), fifo.reader());
        for round in 0..5 {
            for n in 0..4 {
                assert!(writer.push(command(4 * round + n)));
            }
            assert!(!writer.push(command(99)), "a fifth command of four");
            for n in 0..4 {
                let seen = reader.peek().expect("a command");
                let seq = 4 * round + n + 1;
                let expected = NetCommand { seq, ..command(4 * round + n) };
                assert_eq!(seen.to_words(), expected.to_words());
                reader.release();
            }
            assert!(reader.peek().is_none());
        }
    }

    #[test]
    fn no_command_is_torn_between_threads() {
        const COMMANDS: u32 = 20_000;
        let fifo = Fifo::on_host(64).unwrap();
        let (mut writer, mut reader) = (fifo.writer(), fifo.reader());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..COMMANDS {
                    while !writer.push(command(n)) {
                        std::thread::yield_now();
                    }
                }
            });
            for n in 0..COMMANDS {
                let seen = loop {
                    match reader.peek() {
                        Some(seen) => break seen,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(seen.to_words(), NetCommand { seq: n + 1, ..command(n) }.to_words());
                reader.release();
            }
        });
    }

    #[test]
    fn sizes_that_wrap_wrongly_are_refused() {
        for size in [0, 3, MAX_FIFO * 2] {
            assert!(Fifo::on_host(size).is_err(), "{size}");
        }
        let small = Arc::new(HostMemory::new(4096).unwrap());
        assert!(Fifo::new(small, 64).is_err());
    }
}
