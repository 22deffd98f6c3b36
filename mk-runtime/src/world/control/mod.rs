//! What sets a world up, and what stays between its processes: how they find each other (`bootstrap`, `rendezvous`,
//! `tcp`, `hosts`), the connections that they keep (`mesh`, `group`), collective agreement (`group`), and the deaths
//! that they watch for (`watch`).

mod bootstrap;
mod group;
pub(super) mod hosts;
pub mod mesh;
mod order;
mod pack;
mod page;
mod rendezvous;
mod tcp;
mod watch;
mod wire;

pub use bootstrap::Bootstrap;
pub(super) use group::{Abroad, LocalListener, PeerAddress};
pub(crate) use group::{Group, SharedGroup};
pub use hosts::WorldOptions;
pub(super) use order::Orders;
pub(super) use pack::{Pack, Unpack};
pub use rendezvous::UnixBootstrap;
pub use tcp::{MAX_PART, Meeting, TcpBootstrap, Token};
pub(crate) use watch::Member;
pub(crate) use wire::Deadline;
pub use wire::ask_while_waiting;
