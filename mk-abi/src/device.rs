//! Structs that the host writes and the kernel reads, or the other way round.
//!
//! The kernel's parameter block is, in this order and with no padding between:
//! `TensorMap maps[n_maps]` (128 bytes each), [`LaunchHeader`], `u64 tensors[n_tensors]`.

use std::mem::{offset_of, size_of};

/// Ranks that a kernel can address.
pub const MAX_RANKS: usize = 64;
/// CTAs that own an epoch word.
pub const MAX_CTAS: usize = 512;
/// Dimensions whose value comes with each launch.
pub const MAX_RUNTIME_DIMS: usize = 4;
/// Bytes of an encoded tensor map.
pub const TENSOR_MAP_BYTES: usize = 128;

macro_rules! device_struct {
    ($(#[$meta:meta])* $name:ident, $size:literal { $($(#[$fmeta:meta])* $field:ident : $ty:tt $([$n:expr])? @ $offset:literal,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(#[$fmeta])* pub $field: device_struct!(@rust $ty $([$n])?),)* }
        const _: () = {
            $(assert!(offset_of!($name, $field) == $offset);)*
            assert!(size_of::<$name>() == $size);
        };
        impl $name {
            /// The same declaration in CUDA, with its offsets asserted (`__INTADDR__`: NVRTC has no `offsetof`).
            pub fn cuda() -> String {
                let mut out = format!("struct {} {{\n", stringify!($name));
                $(out.push_str(&format!("  {} {}{};\n", stringify!($ty), stringify!($field), device_struct!(@dims $([$n])?)));)*
                out.push_str("};\n");
                $(out.push_str(&format!("static_assert(__INTADDR__(&(({0}*)0)->{1}) == {2}, \"host and device \
                    disagree on {0}::{1}\");\n", stringify!($name), stringify!($field), $offset));)*
                out.push_str(&format!("static_assert(sizeof({0}) == {1}, \"host and device disagree on {0}\");\n", stringify!($name), $size));
                out
            }
        }
    };
    (@rust $ty:tt) => { $ty };
    (@rust $ty:tt [$n:expr]) => { [$ty; $n] };
    (@dims) => { String::new() };
    (@dims [$n:expr]) => { format!("[{}]", $n) };
}

/// Numbers that the device writes or reads, and what reads them back.
macro_rules! codes {
    ($(#[$meta:meta])* $name:ident, $reads:literal { $($(#[$vmeta:meta])* $code:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name { $($(#[$vmeta])* $code = $value,)* }

        impl $name {
            #[doc = $reads]
            pub fn from_u32(code: u32) -> Option<$name> {
                match code { $($value => Some($name::$code),)* _ => None }
            }
        }
    };
}

device_struct! {
    /// What every launch is told. Constant across launches of an instance, so that a captured graph can replay it; but
    /// for `gated`, which is so for all captured ones.
    #[derive(Default)]
    LaunchHeader, 128 {
        /// Where rank 0's symmetric memory is mapped on this GPU; rank p's is at `sym_base + p * sym_stride_bytes`.
        sym_base: u64 @ 0,
        /// Distance between two ranks' symmetric memories, in bytes.
        sym_stride_bytes: u64 @ 8,
        /// This rank's scratch memory.
        scratch: u64 @ 16,
        /// This rank's [`ControlBlock`], in device memory.
        control: u64 @ 24,
        /// This rank's [`FaultRecord`], in pinned host memory mapped on the device.
        fault: u64 @ 32,
        /// This rank's trace buffer, in device memory, or 0; see [`TraceHead`].
        trace: u64 @ 40,
        /// Bound on a wait, in nanoseconds.
        wait_limit_ns: u64 @ 48,
        /// Bound on the wait for a peer to enter the launch, in nanoseconds.
        entry_limit_ns: u64 @ 56,
        /// This rank.
        rank: u32 @ 64,
        /// Number of ranks.
        world: u32 @ 68,
        /// Hash of plan and per-launch values, compared with every peer's on entry.
        launch_hash: u32 @ 72,
        /// Test hook: when not 0, agents sleep a pseudo-random time below `chaos_max_ns` before each task.
        chaos_seed: u32 @ 76,
        /// Upper bound of the injected delay, in nanoseconds.
        chaos_max_ns: u32 @ 80,
        /// Values of [`KernelSource::runtime_dims`](crate::KernelSource::runtime_dims) in this launch, in their order.
        dims: u32[4] @ 84,
        /// 1 if a gate comes before the kernel, which has announced the launch then.
        gated: u32 @ 100,
        /// This instance's number on the network between nodes.
        instance: u32 @ 104,
        /// Rows of this rank's tensors that have its own number of them.
        own_rows: u32 @ 108,
        /// This rank's range of the net arena, or 0; see [`NetLayout`](crate::NetLayout).
        net: u64 @ 112,
        /// This rank's [`NetFifo`], or 0.
        fifo: u64 @ 120,
    }
}

device_struct! {
    /// Head of each rank's symmetric memory; peers write here.
    SymHeader, 1024 {
        /// 0, or 1 + the rank that raised the abort. Written by kernels; a host writes [`FaultRecord::abort`].
        abort: u32 @ 0,
        /// Unused, 0.
        reserved: u32[63] @ 4,
        /// `launch_hash` of each peer, by parity of the epoch: word `parity * MAX_RANKS + peer`.
        launch_hash: u32[128] @ 256,
        /// Unused, 0.
        reserved2: u32[64] @ 768,
    }
}

device_struct! {
    /// Local device memory of an instance.
    ControlBlock, 4096 {
        /// CTAs inside the kernel; more than the grid means that the instance runs twice at once.
        active: u32 @ 0,
        /// The launch that copy engines work for, if any do: what they raise words to.
        launch: u32 @ 4,
        /// 1 when copy engines may begin that no gate has let begin; their stream, which waits for that, takes it back
        /// to 0.
        engines: u32 @ 8,
        /// Commands that the kernel has put into its fifo, modulo 2^32.
        issued: u32 @ 12,
        /// When a waiting lane last looked at what the host says.
        looked: u32 @ 16,
        /// Unused, 0.
        reserved: u32[507] @ 20,
        /// Launches that each CTA has completed.
        epoch: u32[512] @ 2048,
    }
}

device_struct! {
    /// The first fault of a rank, in memory of the host. Written once, by one lane, `state` last; `abort` is the
    /// host's.
    FaultRecord, 128 {
        /// 0 none, 1 being written, 2 complete.
        state: u32 @ 0,
        /// A [`FaultKind`].
        kind: u32 @ 4,
        /// Rank that wrote the record.
        rank: u32 @ 8,
        /// CTA.
        cta: u32 @ 12,
        /// Edge of the plan, see [`KernelSource::edges`](crate::KernelSource::edges).
        edge: u32 @ 16,
        /// Epoch of the launch.
        epoch: u32 @ 20,
        /// What the wait needed to see.
        expected: u32 @ 24,
        /// What it last saw.
        seen: u32 @ 28,
        /// Linear index of the task in its role.
        tile: u32 @ 32,
        /// The other rank (that did not enter, or differs, or aborted), or `u32::MAX`.
        peer: u32 @ 36,
        /// How long the wait lasted, in nanoseconds.
        waited_ns: u64 @ 40,
        /// Index of the signal word, in words from the start of this rank's symmetric memory.
        word: u32 @ 48,
        /// What a host tells the rank's kernels: 0, or 1 + the rank for which they are to give up.
        abort: u32 @ 52,
        /// Unused, 0.
        reserved: u32[18] @ 56,
    }
}

/// Agents of a CTA that have a part of a trace buffer: see [`TraceHead`].
pub const TRACE_AGENTS: usize = 6;

device_struct! {
    /// Head of one agent's part of a trace buffer. A buffer is `grid * TRACE_AGENTS` parts, CTA by CTA, in each the
    /// agents by warp: loader, storer, `enter`, frame, and the two warpgroups that compute. A part is this head and a
    /// ring of [`TraceRecord`]s; one agent appends to each, and it starts anew with every launch.
    TraceHead, 32 {
        /// Records that the agent made. The ring holds the last of them.
        count: u32 @ 0,
        /// Epoch of the launch; 0 before the first.
        epoch: u32 @ 4,
        /// CTA.
        cta: u32 @ 8,
        /// Place in the CTA, below [`TRACE_AGENTS`].
        agent: u32 @ 12,
        /// Records that the ring holds.
        capacity: u32 @ 16,
        /// The SM that ran the CTA.
        sm: u32 @ 20,
        /// Unused, 0.
        reserved: u32[2] @ 24,
    }
}

device_struct! {
    /// One thing that an agent did.
    TraceRecord, 32 {
        /// `%globaltimer` at its end, in nanoseconds.
        at_ns: u64 @ 0,
        /// Low half of the SM's cycle counter at its begin.
        begin: u32 @ 8,
        /// The same at its end.
        end: u32 @ 12,
        /// A [`TraceKind`] in bits 0 to 7, the family in 8 to 19, the edge in 20 to 31.
        what: u32 @ 16,
        /// Linear index of the task in its role.
        task: u32 @ 20,
        /// Of a task: cycles that the agent stood at its internal edges, `drained` in the second word and all others in
        /// the first. Of a wait or a post: byte offset of the signal word from `sym_base`, low half first.
        detail: u32[2] @ 24,
    }
}

device_struct! {
    /// Head of a GPU's fifo of [`NetCommand`]s, in pinned memory of the host. The commands follow.
    NetFifo, 64 {
        /// Commands that the host has taken, modulo 2^32. Written by the host alone.
        taken: u32 @ 0,
        /// Unused, 0.
        reserved: u32[15] @ 4,
    }
}

device_struct! {
    /// What a kernel tells its rank's proxy to send. Offsets count from the begin of the instance's range of the net
    /// arena, the same on every rank; words are numbered from its begin.
    NetCommand, 64 {
        /// First byte of the own range.
        from: u64 @ 0,
        /// First byte of the peer's range.
        to: u64 @ 8,
        /// How many; of 0 only words are raised.
        bytes: u32 @ 16,
        /// The receiver.
        peer: u32 @ 20,
        /// Lane to it, of an ordered network.
        lane: u32 @ 24,
        /// The instance.
        instance: u32 @ 28,
        /// The launch.
        epoch: u32 @ 32,
        /// Word of the peer that gets `epoch` behind the data, or [`NO_WORD`].
        remote_word: u32 @ 36,
        /// Word of this rank that gets `epoch` when the data is in the peer's memory, or [`NO_WORD`].
        local_word: u32 @ 40,
        /// [`LaunchHeader::launch_hash`].
        launch_hash: u32 @ 44,
        /// A [`NetCommandKind`].
        kind: u32 @ 48,
        /// Edge of the plan, for messages.
        edge: u32 @ 52,
        /// Unused, 0.
        reserved: u32 @ 56,
        /// Number of the command, counted from 1, modulo 2^32. Stored last, with release: a command whose place has
        /// another number is not there yet.
        seq: u32 @ 60,
    }
}

/// In place of a word: none is raised.
pub const NO_WORD: u32 = u32::MAX;

codes! {
    /// Kinds of [`NetCommand`].
    NetCommandKind, "Reads [`NetCommand::kind`]." {
        /// A message.
        Send = 1,
        /// A node's entry into a launch: the proxy lets the launch's hash go before the word.
        Enter = 2,
    }
}

impl NetCommand {
    /// As it lies in the fifo.
    pub fn to_words(self) -> [u32; 16] {
        // SAFETY: both are 64 bytes of integers, without padding.
        unsafe { std::mem::transmute(self) }
    }

    /// Reads what [`NetCommand::to_words`] gives. Any words are a command; the proxy checks what it asks for.
    pub fn from_words(words: [u32; 16]) -> NetCommand {
        // SAFETY: both are 64 bytes of integers, without padding.
        unsafe { std::mem::transmute(words) }
    }
}

codes! {
    /// What a [`TraceRecord`] tells of.
    TraceKind, "Reads bits 0 to 7 of [`TraceRecord::what`]." {
        /// A task, as one agent saw it.
        Task = 1,
        /// A wait for a signal word of this launch.
        Wait = 2,
        /// A wait for a signal word of the launch before.
        WaitBefore = 3,
        /// A post; it began before the word was raised.
        Post = 4,
        /// The posts by which a rank announces itself to every rank.
        Enter = 5,
        /// Nothing but a reading of both clocks.
        Mark = 6,
        /// The CTA's whole time in the kernel.
        Cta = 7,
    }
}

/// The CUDA declarations that a traced kernel has beside [`cuda_declarations`].
pub fn cuda_trace_declarations() -> String {
    format!(
        "constexpr u32 kTraceAgents = {TRACE_AGENTS};\n{}{}",
        TraceHead::cuda(),
        TraceRecord::cuda()
    )
}

codes! {
    /// Why a kernel gave up; the values of [`FaultRecord::kind`].
    FaultKind, "Reads the value that a kernel wrote." {
        /// A wait outlived `wait_limit_ns`.
        WaitTimeout = 1,
        /// A peer did not enter the launch within `entry_limit_ns`.
        EntryTimeout = 2,
        /// A peer entered with another plan or other per-launch values.
        PlanMismatch = 3,
        /// A peer set the abort flag.
        PeerAborted = 4,
        /// The instance was launched while it was still running.
        ConcurrentUse = 5,
        /// The proxy took no command within `wait_limit_ns`, and the fifo is full.
        FifoFull = 6,
        /// A group has fewer than no rows: `tile` says which, `seen` how many.
        NegativeRows = 7,
        /// Rows take more blocks than a table has: `seen` or more, of `expected`.
        Capacity = 8,
        /// A token names no expert of the layer, and not -1. `tile`: the token, counted over all ranks; `waited_ns`:
        /// the id, an i64; `seen`: its low word; `expected`: the number of experts.
        ExpertOutside = 9,
        /// A token names an expert twice: `tile` says which token of the world, `seen` the expert.
        ExpertTwice = 10,
        /// Documents of packed sequences begin where they cannot: entry `tile` is `seen`, and may be `expected` to
        /// `waited_ns`.
        Documents = 11,
    }
}

const _: () =
    assert!(offset_of!(SymHeader, launch_hash) + 2 * MAX_RANKS * 4 <= size_of::<SymHeader>());
const _: () = assert!(offset_of!(ControlBlock, epoch) + MAX_CTAS * 4 <= size_of::<ControlBlock>());

/// The CUDA declarations of every struct above, for the head of a generated kernel.
pub fn cuda_declarations() -> String {
    let mut out =
        format!("constexpr u32 MAX_RANKS = {MAX_RANKS};\nconstexpr u32 kNoWord = {NO_WORD:#x}u;\n");
    for decl in [
        LaunchHeader::cuda(),
        SymHeader::cuda(),
        ControlBlock::cuda(),
        FaultRecord::cuda(),
        NetFifo::cuda(),
        NetCommand::cuda(),
    ] {
        out.push_str(&decl);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_the_words_of_their_struct() {
        let words: [u32; 16] = std::array::from_fn(|i| 0x0101_0101 * (i as u32 + 1));
        let command = NetCommand::from_words(words);
        assert_eq!(command.to_words(), words);
        // SAFETY: both are 64 bytes of plain data.
        let bytes: [u32; 16] = unsafe { std::mem::transmute(command) };
        assert_eq!(bytes, words);
    }

    #[test]
    fn cuda_text_follows_the_rust_declaration() {
        let text = cuda_declarations();
        assert!(text.contains("  u32 launch_hash[128];\n"));
        assert!(text.contains("__INTADDR__(&((FaultRecord*)0)->waited_ns) == 40"));
    }
}
