//! Any bytes from a process of another host: frames are those of the stream, however it is cut, and a message that is
//! read writes itself back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mk_runtime::world::mesh::{Frames, Message};

const MOST: usize = 4096;
const HEAD: usize = 4 + 32;

fuzz_target!(|bytes: &[u8]| {
    let Some((step, stream)) = bytes.split_first() else { return };
    if let Some(message) = Message::read(stream) {
        assert_eq!(message.to_bytes(), stream);
    }
    let (mut frames, mut at) = (Frames::new(MOST), 0);
    for piece in stream.chunks(usize::from(*step).max(1)) {
        frames.take(piece);
        loop {
            match frames.frame() {
                Ok(Some(frame)) => {
                    assert!(frame.content.len() <= MOST);
                    assert_eq!(frame.head, &stream[at..at + HEAD]);
                    at += HEAD;
                    assert_eq!(frame.content, &stream[at..at + frame.content.len()]);
                    at += frame.content.len();
                    if let Some(message) = Message::read(frame.content) {
                        assert_eq!(message.to_bytes(), frame.content);
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    let length = stream[at..].first_chunk::<4>().map(|b| u32::from_le_bytes(*b));
                    assert!(length.is_some_and(|n| n as usize > MOST));
                    return;
                }
            }
        }
    }
});
