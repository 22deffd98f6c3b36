//! Any bytes as a transport card: what reads writes back, and nothing else does.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mk_runtime::transport::card::{ConnectionCard, Kind};

fuzz_target!(|bytes: &[u8]| {
    for kind in [Kind::Loopback, Kind::Ofi, Kind::Verbs] {
        if let Ok(card) = ConnectionCard::read(kind, bytes) {
            assert_eq!(card.to_bytes().as_deref(), Ok(bytes));
        }
    }
});
