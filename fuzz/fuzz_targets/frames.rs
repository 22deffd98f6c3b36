//! Any bytes as the message in which a process sends its ranks' cards: what is read makes up the message, and nothing
//! is read twice.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mk_runtime::proxy::connect;

fuzz_target!(|bytes: &[u8]| {
    let mut cards = Vec::new();
    if connect::read(bytes, &mut cards).is_ok() {
        let parts = cards.iter().flat_map(|card| {
            let head = [card.from, card.to, card.bytes.len() as u32];
            head.into_iter().flat_map(u32::to_le_bytes).chain(card.bytes.iter().copied())
        });
        assert!(parts.eq(bytes.iter().copied()));
    }
});
