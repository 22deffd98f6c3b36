//! A rank's host: its fifo, and the commands that the network has taken from it.

use super::program::{Pending, Ready};
use mk_plan::{Region, TableSet, Task};
use std::{
    collections::{HashMap, VecDeque},
    rc::Rc,
};

/// A rank's host.
#[derive(Default)]
pub(super) struct Host {
    /// Commands that the sending thread has not taken.
    pub fifo: VecDeque<Command>,
    /// Waits of the first command, once it has been looked at.
    pub waits: Option<Vec<Pending>>,
    /// Whether the sending thread is awake.
    pub awake: bool,
    /// Commands under way to each rank, by lane, oldest first, on an ordered network.
    pub queues: HashMap<(usize, usize), VecDeque<u64>>,
}

/// A task whose data the network is to carry.
pub(super) struct Command {
    pub task: Task,
    pub tables: Rc<TableSet>,
}

/// A command that the network has taken.
pub(super) struct NicOp {
    /// Whose command it is.
    pub task: Task,
    pub from: usize,
    pub to: usize,
    pub lane: usize,
    pub sources: Vec<Region>,
    pub destinations: Vec<Region>,
    /// What was read, between delivery and flush.
    pub data: Option<Vec<f32>>,
    /// Written into the receiver's memory behind the data, by an ordered network.
    pub flags: Vec<Ready>,
    /// Of the sending and of the receiving host, when each has learned of the delivery.
    pub host_posts: [HostPosts; 2],
    /// Steps that have not happened.
    pub left: u32,
}

/// Posts of one host for one command.
#[derive(Default)]
pub(super) struct HostPosts {
    pub posts: Vec<Ready>,
    /// Whether the host has learned of the delivery.
    pub told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NicStep {
    /// The data is read and reaches the other node.
    Deliver,
    /// Flags behind the data become visible there.
    Flags,
    /// It becomes visible to the GPU there.
    Flush,
    /// The sending host learns of the delivery.
    Sender,
    /// The receiving host learns of it.
    Receiver,
}
