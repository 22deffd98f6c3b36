//! Any words as commands of a kernel: a proxy posts nothing outside the instance's range, and no write that its
//! transport would refuse.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mk_abi::{NetLayout, device::NetCommand};
use mk_runtime::{
    TransportError,
    proxy::{Arena, Attached, Engine, Fifo, Lease},
    transport::{Caps, Event, HostMemory, NetMemory, Notify, Ordering, Posted, Transport, Write},
};
use std::{sync::Arc, time::Duration};

const ARENA: u64 = 1 << 16;

/// A network that takes everything, and looks at it.
struct Judge {
    caps: Caps,
    lease: Lease,
    layout: NetLayout,
    delivered: Vec<u64>,
}

impl Judge {
    fn inside(&self, at: u64, bytes: u64) -> bool {
        let end = at.checked_add(bytes).is_some_and(|end| end <= self.lease.base + self.layout.bytes);
        bytes == 0 || at >= self.lease.base && end
    }
}

impl Transport for Judge {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn register(&mut self, _: Arc<dyn NetMemory>) -> Result<(), TransportError> {
        Ok(())
    }

    fn card(&mut self, _: u32) -> Result<Vec<u8>, TransportError> {
        Ok(Vec::new())
    }

    fn connect(&mut self, _: u32, _: &[u8]) -> Result<(), TransportError> {
        Ok(())
    }

    fn check(&self, write: &Write) -> Result<(), TransportError> {
        assert!(write.peer == 2 || write.peer == 3, "{write:?}");
        assert!(self.inside(write.from, write.bytes) && self.inside(write.to, write.bytes), "{write:?}");
        // Data is in the buffers; an entry's hash is the one thing that is not.
        let buffers = self.lease.base + self.layout.buffers;
        assert!(write.bytes <= 4 || write.from >= buffers && write.to >= buffers, "{write:?}");
        if let Notify::Word { at, .. } = write.notify {
            let word = at.checked_sub(self.lease.base);
            assert!(word.is_some_and(|at| at % 4 == 0 && at < 4 * u64::from(self.layout.words)), "{write:?}");
        }
        if write.lane >= self.caps.lanes {
            return Err(TransportError::Write { token: write.token, what: "a lane".into() });
        }
        Ok(())
    }

    fn post(&mut self, write: &Write) -> Result<Posted, TransportError> {
        self.check(write)?;
        self.delivered.push(write.token);
        Ok(Posted::Taken)
    }

    fn raise(&mut self, words: &[(u64, u32)]) -> Result<(), TransportError> {
        assert!(words.iter().all(|(at, _)| self.inside(*at, 4)));
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        events.extend(self.delivered.drain(..).map(|token| Event::Delivered { token }));
        Ok(())
    }

    fn wait(&mut self, _: Duration) {}

    fn shutdown(&mut self, _: Duration, _: &mut Vec<Event>) -> Result<(), TransportError> {
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let in_order = first & 1 == 0;
    let layout = NetLayout {
        local: 2,
        in_order,
        fifo: 8,
        lanes: 4,
        words: 16,
        hashes: 128,
        buffers: 1024,
        bytes: 1 << 14,
        message_bytes: 1 << 12,
    };
    let mut arena = Arena::new(ARENA);
    arena.lease(u64::from(*first) << 6).expect("room");
    let lease = arena.lease(layout.bytes).expect("room");
    let ordering = if in_order { Ordering::InOrder } else { Ordering::Unordered };
    let max_bytes = if first & 2 == 0 || !in_order { 1 << 20 } else { 100 };
    let caps = Caps { name: "judge".into(), ordering, lanes: 4, depth: 8, max_bytes, gpu_memory: false };
    let judge = Judge { caps, lease, layout: layout.clone(), delivered: Vec::new() };
    let memory = Arc::new(HostMemory::new(ARENA as usize).expect("memory"));
    let mut engine = Engine::new(0, 4, Box::new(judge), memory);
    let fifo = Fifo::on_host(8).expect("a fifo");
    let mut writer = fifo.writer();
    engine.attach(Attached { lease, layout, fifo, watch: None }).expect("an instance");
    for command in rest.chunks(64) {
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(command.chunks(4)) {
            let mut four = [0; 4];
            four[..bytes.len()].copy_from_slice(bytes);
            *word = u32::from_le_bytes(four);
        }
        writer.push(NetCommand::from_words(words));
        engine.step();
        engine.step();
        if engine.fault().is_some() {
            break;
        }
    }
});
