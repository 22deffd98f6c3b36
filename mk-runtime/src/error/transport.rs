//! What can go wrong on a network.

/// A failure of a transport, of one of its peers, or of one write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The library or the device is not on this machine.
    #[error("transport {transport} is not available: {what}; {help}")]
    Unavailable {
        /// Its name.
        transport: String,
        /// What is missing.
        what: String,
        /// How to get it.
        help: String,
    },
    /// The library or the device is there, and lacks something without which results would be wrong or late.
    #[error("transport {transport} is refused: {what}")]
    Refused {
        /// Its name.
        transport: String,
        /// What it lacks.
        what: String,
    },
    /// A call failed.
    #[error("{call} of {transport} failed: {what} ({code})")]
    Call {
        /// The transport.
        transport: String,
        /// The call.
        call: &'static str,
        /// What the library says.
        what: String,
        /// Its error number.
        code: i32,
    },
    /// Bytes from a peer are no card.
    #[error("what a peer sent is no transport card: {what}")]
    Card {
        /// What is wrong with them.
        what: String,
    },
    /// Memory that cannot be an arena, or an access outside one.
    #[error("net memory: {what}")]
    Memory {
        /// What is wrong.
        what: String,
    },
    /// A write that no transport could make.
    #[error("write {token}: {what}")]
    Write {
        /// Its token.
        token: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A command of a kernel that no proxy carries out.
    #[error("command {seq} of launch {epoch} is refused: {what}")]
    Command {
        /// Its number in the fifo.
        seq: u32,
        /// The launch.
        epoch: u32,
        /// What is wrong with it.
        what: String,
    },
    /// Calls in the wrong order: a card without an arena, a second arena, a peer that is not connected.
    #[error("transport {transport}: {what}")]
    State {
        /// The transport.
        transport: String,
        /// What is wrong.
        what: String,
    },
    /// A peer is gone, refuses writes, or does not take them.
    #[error("the transport to rank {peer} has failed: {what}; build a new world")]
    Peer {
        /// Its rank.
        peer: u32,
        /// How it shows.
        what: String,
    },
    /// This end was closed before the write had ended.
    #[error("this end was closed before the write had ended")]
    Closed,
}
