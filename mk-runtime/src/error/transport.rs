//! What can go wrong on a network.

mk_abi::errors! {
    /// A failure of a transport, of one of its peers, or of one write.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    TransportError {
        /// The library or the device is not on this machine.
        Unavailable("transport {transport} is not available: {what}; {help}") {
            transport: String = "Its name",
            what: String = "What is missing",
            help: String = "How to get it",
        },
        /// The library or the device is there, and lacks something without which results would be wrong or late.
        Refused("transport {transport} is refused: {what}") {
            transport: String = "Its name",
            what: String = "What it lacks",
        },
        /// A call failed.
        Call("{call} of {transport} failed: {what} ({code})") {
            transport: String = "The transport",
            call: &'static str = "The call",
            what: String = "What the library says",
            code: i32 = "Its error number",
        },
        /// Bytes from a peer are no card.
        Card("what a peer sent is no transport card: {what}") {
            what: String = "What is wrong with them",
        },
        /// Memory that cannot be an arena, or an access outside one.
        Memory("net memory: {what}") {
            what: String = "What is wrong",
        },
        /// A write that no transport could make.
        Write("write {token}: {what}") {
            token: u64 = "Its token",
            what: String = "What is wrong with it",
        },
        /// A command of a kernel that no proxy carries out.
        Command("command {seq} of launch {epoch} is refused: {what}") {
            seq: u32 = "Its number in the fifo",
            epoch: u32 = "The launch",
            what: String = "What is wrong with it",
        },
        /// Calls in the wrong order: a card without an arena, a second arena, a peer that is not connected.
        State("transport {transport}: {what}") {
            transport: String = "The transport",
            what: String = "What is wrong",
        },
        /// A peer is gone, refuses writes, or does not take them.
        Peer("the transport to rank {peer} has failed: {what}; build a new world") {
            peer: u32 = "Its rank",
            what: String = "How it shows",
        },
        /// This end was closed before the write had ended.
        Closed("this end was closed before the write had ended"),
    }
}
