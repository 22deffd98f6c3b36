//! Ways to move and to add: one file each, with its buffers, its flows, the order of its tasks and their consumers.
//!
//! Which settings choose a way, and which kernels it fits, is in [`settings`](crate::settings).

pub(in crate::passes) mod by_columns;
pub(in crate::passes) mod deliver;
pub(in crate::passes) mod destination;
pub(in crate::passes) mod factors;
pub(in crate::passes) mod gather;
pub(in crate::passes) mod gathered;
pub(in crate::passes) mod one_shot;
pub(in crate::passes) mod pack;
pub(in crate::passes) mod push_chunks;
mod push_copy_engine;
mod push_sms;
pub(in crate::passes) mod rails;
pub(in crate::passes) mod ring;
pub(in crate::passes) mod split_k;
pub(in crate::passes) mod sum;
pub(in crate::passes) mod two_level;
pub(in crate::passes) mod two_shot;
