//! A net arena in a GPU's memory.

use crate::{alone, worlds};
use mk_runtime::TransportError;
use mk_runtime::net::GpuArena;
use mk_runtime::transport::{
    Gpu, NetMemory, Ordering, Transport,
    loopback::{LoopbackNetwork, Options},
};
use nix::unistd::{Whence, lseek};
use std::sync::Arc;

#[test]
fn an_arena_has_a_dmabuf() {
    let _alone = alone();
    let Some(world) = worlds().into_iter().next() else { return };
    let arena = GpuArena::new(&world, 0, (1 << 20) + 1).unwrap();
    assert_eq!(arena.bytes(), (1 << 20) + (64 << 10));
    assert_eq!((arena.base() as u64 % (64 << 10), arena.gpu()), (0, Some(Gpu { ordinal: 0 })));
    match arena.dmabuf() {
        Ok(dmabuf) => {
            let end = lseek(&dmabuf.fd, 0, Whence::SeekEnd).unwrap();
            println!("a dmabuf of {end} bytes");
            assert!(dmabuf.offset + arena.bytes() <= end as u64);
        }
        // The kernel or its driver has none: that is an answer, and a transport decides by it.
        Err(why) => println!("no dmabuf: {why}"),
    }
    // A copy between two arenas of a GPU would wait for a kernel that fills it.
    let other = GpuArena::new(&world, 0, 1 << 20).unwrap();
    let mut fabric = LoopbackNetwork::new(Options::new(2, Ordering::InOrder)).unwrap();
    let mut ends = [fabric.end(0).unwrap(), fabric.end(1).unwrap()];
    for (end, arena) in ends.iter_mut().zip([arena, other]) {
        end.register(Arc::new(arena)).unwrap();
    }
    let card = ends[1].card(0).unwrap();
    let refused = ends[0].connect(1, &card).unwrap_err();
    assert!(matches!(refused, TransportError::Refused { .. }), "{refused}");
}
