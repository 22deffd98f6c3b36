//! The device library: real CUDA headers, concatenated in a fixed order ahead of every generated kernel.

pub use super::arch::SM90_LIBRARY as FILES;

/// What a traced kernel has beside [`FILES`].
pub const TRACE: (&str, &str) = ("sync/trace.cuh", include_str!("../../templates/sync/trace.cuh"));

/// How the line that says the size of a traced kernel's rings begins.
pub(super) const RECORDS: &str = "constexpr u32 kTraceRecords = ";

/// Line that ends the library in a generated kernel.
pub const END: &str = mk_abi::KernelSource::LIBRARY_END;

/// Constants of a plan's nodes, which the library is compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// How many; all else means something only where there are several.
    pub nodes: u32,
    /// Ranks of each.
    pub local: u32,
    /// Entries of the fifo.
    pub fifo: u32,
    /// Lanes to each peer.
    pub lanes: u32,
    /// First of the net words that stand for the nodes' entries.
    pub entered: u32,
    /// Where the hashes of launches lie in net memory.
    pub hashes: u64,
}

impl Nodes {
    /// All ranks map each other's memory.
    pub const ONE: Nodes = Nodes { nodes: 1, local: 1, fifo: 1, lanes: 1, entered: 0, hashes: 0 };

    fn text(self) -> String {
        let Nodes { nodes, local, fifo, lanes, entered, hashes } = self;
        format!(
            "constexpr u32 kNodes = {nodes}, kLocal = {local}, kFifo = {fifo}, kLanes = {lanes}, kEnteredNode = {entered};\n\
             constexpr u64 kNetHashes = {hashes};\n"
        )
    }
}

/// Everything that stands before a kernel's own part: library and host/device structs.
pub fn text() -> String {
    text_with(FILES, None, Nodes::ONE)
}

/// [`text`] of the library of an architecture, with tracing into rings of so many records, over nodes.
pub fn text_with(files: &[(&str, &str)], trace_records: Option<u32>, nodes: Nodes) -> String {
    let mut out = String::new();
    for (path, body) in files {
        // The structs that the host shares use the scalar names, and are used from here on.
        if *path == "sync/context.cuh" {
            out.push_str("// ---- structs shared with the host ----\n");
            out.push_str(&mk_abi::device::cuda_declarations());
            out.push_str(&nodes.text());
            out.push('\n');
        }
        out.push_str(&format!("// ---- {path} ----\n{body}\n"));
    }
    if let Some(records) = trace_records {
        let (path, body) = TRACE;
        let structs = mk_abi::device::cuda_trace_declarations();
        out.push_str(&format!("// ---- {path} ----\n{RECORDS}{records};\n{structs}\n{body}\n"));
    }
    out.push_str(END);
    out
}
