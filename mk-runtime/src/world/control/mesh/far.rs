//! A process of another host, as the threads of this one see it.

use super::super::wire::{self, Broken, Deadline};
use super::message::Message;
use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Most bytes that wait to be sent to a process, or to be looked at from one: what a peer that does not keep up may
/// cost.
const MOST: usize = 8 << 20;

/// Wakes the thread that has the connections.
#[derive(Debug)]
pub(in crate::world) struct Bell {
    stream: UnixStream,
    rung: AtomicBool,
}

impl Bell {
    /// Rings at the other end of `stream`.
    pub fn new(stream: UnixStream) -> std::io::Result<Bell> {
        stream.set_nonblocking(true)?;
        Ok(Bell { stream, rung: AtomicBool::new(false) })
    }

    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // A full socket wakes it, too; nobody is there when the world ends.
            let _ = (&self.stream).write(&[0]);
        }
    }

    /// Says that nobody will ring any more. Forks have the socket, too: to close it would tell nobody.
    pub fn shut(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// What is said from here on rings again.
    pub fn answered(&self) {
        self.rung.store(false, Ordering::Release);
    }
}

/// See the module.
#[derive(Debug)]
pub(in crate::world) struct Far {
    bell: Arc<Bell>,
    out: Mutex<Queue>,
    calls: Mutex<Calls>,
    came: Condvar,
}

/// Messages, and their bytes in all.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Queue {
    fn put(&mut self, message: Vec<u8>) -> bool {
        let fits = self.bytes + message.len() <= MOST;
        if fits {
            self.bytes += message.len();
            self.messages.push_back(message);
        }
        fits
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len();
        Some(message)
    }
}

#[derive(Debug, Default)]
struct Calls {
    parts: Queue,
    /// Why nothing comes any more.
    ended: Option<Broken>,
}

impl Far {
    pub fn new(bell: Arc<Bell>) -> Far {
        Far { bell, out: Mutex::default(), calls: Mutex::default(), came: Condvar::new() }
    }

    /// Sends a part of a collective call.
    pub fn send(&self, part: &[u8]) -> Result<(), Broken> {
        match self.say(&Message::Call(part.to_vec())) {
            true => Ok(()),
            false => Err(self.calls().ended.clone().unwrap_or(Broken::Late)),
        }
    }

    /// Sends a message, unless nobody is there, or it does not keep up.
    pub fn say(&self, message: &Message) -> bool {
        if self.calls().ended.is_some() {
            return false;
        }
        let taken = lock(&self.out).put(message.to_bytes());
        self.bell.ring();
        taken
    }

    /// The next part of a collective call.
    pub fn receive(&self, deadline: Deadline) -> Result<Vec<u8>, Broken> {
        let mut calls = self.calls();
        loop {
            if let Some(part) = calls.parts.take() {
                return Ok(part);
            }
            if let Some(broken) = &calls.ended {
                return Err(broken.clone());
            }
            if deadline.over() {
                return Err(Broken::Late);
            }
            let look = deadline.left().min(wire::LOOK);
            calls = self.came.wait_timeout(calls, look).unwrap_or_else(|e| e.into_inner()).0;
            wire::check_interrupt()?;
        }
    }

    /// What is to be sent next.
    pub fn next(&self) -> Option<Vec<u8>> {
        lock(&self.out).take()
    }

    /// Whether nothing is to be sent.
    pub fn is_quiet(&self) -> bool {
        lock(&self.out).messages.is_empty()
    }

    /// A part of a call has come. False where more have than anybody looks at.
    pub fn came(&self, part: Vec<u8>) -> bool {
        let taken = self.calls().parts.put(part);
        self.came.notify_all();
        taken
    }

    /// Nothing comes any more.
    pub fn end(&self, broken: Broken) {
        self.calls().ended.get_or_insert(broken);
        self.came.notify_all();
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.calls)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Lists of whole messages are true after any panic.
    of.lock().unwrap_or_else(|e| e.into_inner())
}
