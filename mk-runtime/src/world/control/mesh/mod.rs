//! Processes of a world on different hosts, after they have met: a TCP connection between each two of them.
//!
//! One thread of each process (`watch/`) reads and writes all of its connections and blocks on none; whoever has
//! something to say puts it into an outbox. A connection carries parts of collective calls, and what processes of one
//! host read of each other in shared memory: launches, farewells, who gave up. Both ends show that they know the
//! world's secret first, and every frame has a length within bounds and a tag of the connection's own key
//! (`tcp/link.rs`). A connection that is closed, silent, or brings what it should not ends its peer, and nothing else.

mod far;
mod gate;
mod message;
mod stream;

pub(in crate::world) use far::{Bell, Far};
pub(in crate::world) use gate::{MeshListener, meet};
pub use message::Message;
pub use stream::{Frame, Frames};
pub(in crate::world) use stream::{Keeping, Stream};

#[cfg(test)]
mod tests;
