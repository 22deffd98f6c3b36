//! Leaf tasks: the work of a family's tasks, and the sizes that follow from its shape. Their contracts are in `contract.rs`.

use super::mma::mma_consumers;
use super::plan::Mode;
pub use super::routes::Tabulation;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vmeta])* $variant,)* }
        impl $name {
            /// Every value.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            /// The name in the text format.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
            /// Reads back what [`Self::name`] gives.
            pub fn from_name(name: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|v| v.name() == name)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

names! {
    /// A thread of control inside a task.
    Agent {
        /// Issues loads into shared memory.
        Loader = "loader",
        /// Does the arithmetic.
        Consumers = "consumers",
        /// Writes results back.
        Storer = "storer",
        /// Loads and stores through registers.
        Copier = "copier",
        /// The one lane of a task that only signals.
        Lead = "lead",
        /// Puts commands into the fifo.
        Issuer = "issuer",
        /// The sending host's proxy thread.
        Sender = "sender",
        /// The receiving host's proxy thread, acting for this task on the rank that it sends to.
        Receiver = "receiver",
        /// The host thread that drives a copy engine.
        Engine = "engine",
    }
}

names! {
    /// What an access is to its leaf.
    Operand {
        /// Left matrix, `[m, k]`.
        A = "a",
        /// Right matrix, `[k, n]` (or `[n, k]`).
        B = "b",
        /// Result, `[m, n]`.
        C = "c",
        /// Operand of the first epilogue operation that has one.
        E0 = "e0",
        /// Operand of the second epilogue operation that has one.
        E1 = "e1",
        /// Operand of the third epilogue operation that has one.
        E2 = "e2",
        /// Operand of the fourth epilogue operation that has one.
        E3 = "e3",
        /// Source of a copy or a reduction.
        Src = "src",
        /// Destination of a copy or a reduction.
        Dst = "dst",
        /// Factor of each source of a reduction: one element for each repetition.
        W = "w",
        /// Queries, `[rows, d]`.
        Q = "q",
        /// Keys, `[cols, d]`.
        K = "k",
        /// Values, `[cols, d]`.
        V = "v",
        /// Attention output, `[rows, d]`.
        O = "o",
        /// Logarithm of the sum of a row's exponentials, `[rows]`.
        Lse = "lse",
        /// Gradients of attention's results, `[rows, d]`.
        Do = "do",
        /// Statistics of queries, f32 `[rows, 4]`: `lse`, the product of result and gradient, and two zeros.
        Stats = "stats",
        /// Gradients of queries, `[rows, d]`.
        Dq = "dq",
        /// Gradients of keys, `[cols, d]`.
        Dk = "dk",
        /// Gradients of values, `[cols, d]`.
        Dv = "dv",
        /// Carried accumulator read, f32 `[rows, d]`; or the sums that a GEMM goes on with, `[m, n]` each.
        AccIn = "acc_in",
        /// Carried accumulator written, f32 `[rows, d]`.
        AccOut = "acc_out",
        /// Carried row maximum and row sum read, f32 `[rows, 2]`.
        StatIn = "stat_in",
        /// Carried row maximum and row sum written, f32 `[rows, 2]`.
        StatOut = "stat_out",
        /// Entries of tables in memory that expressions of the task look up: read by the leaf's first agent behind those of its waits that look
        /// nothing up, and before all others.
        Tab = "tab",
    }
}

/// An elementwise operation on the accumulator of a product, or on a sum, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EpilogueOp {
    /// Adds a row vector `[n]`.
    Bias,
    /// `x * Phi(x)`, by `erf`.
    Gelu,
    /// `x * sigmoid(x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// Multiplies by the matrix `[m, n]`.
    Mul,
    /// Adds the matrix `[m, n]`.
    Add,
    /// `x * Phi(x)`, with the approximation of `Phi` by tanh.
    GeluTanh,
    /// Multiplies by the slope of `gelu` at the matrix `[m, n]`.
    GeluGrad,
    /// Multiplies by the slope of `gelu_tanh` there.
    GeluTanhGrad,
    /// Multiplies by the slope of `silu` there.
    SiluGrad,
    /// Multiplies by `silu` of the matrix `[m, n]`.
    MulSilu,
    /// Multiplies by 1 where the matrix is positive, else by 0.
    ReluGrad,
    /// Multiplies by a number, given by its f32 bits.
    Scale(u32),
    /// Rounds to bf16 and back: what a `cast` inside the chain does.
    RoundBf16,
    /// Rounds to f16 and back.
    RoundF16,
    /// Nothing: a `cast` to f32, the accumulator's own type.
    Widen,
    /// `silu(gate) * up`, `[m, 2, n] -> [m, n]`. Comes first, but for a `Save`: `b` is then `[k, 2, n]`, and a tile of it has
    /// half its columns from each.
    Swiglu,
    /// Nothing; writes what there is to the matrix `[m, n]` (before `Swiglu` to `[m, 2, n]`), rounded to its dtype.
    Save,
    /// Nothing; operations from here to the next `Save` work on a copy of the tile, and those behind that go on with it as it is here.
    Keep,
    /// Adds what has been summed so far, or other ranks' parts of a sum: each `[m, n]` of the result's dtype. Comes last.
    Carry,
}

impl EpilogueOp {
    /// How the operation touches an operand of its own, if it has one.
    pub fn operand(self) -> Option<Mode> {
        match self {
            EpilogueOp::Bias
            | EpilogueOp::Mul
            | EpilogueOp::Add
            | EpilogueOp::GeluGrad
            | EpilogueOp::GeluTanhGrad
            | EpilogueOp::SiluGrad
            | EpilogueOp::MulSilu
            | EpilogueOp::ReluGrad => Some(Mode::Read),
            EpilogueOp::Save => Some(Mode::Write),
            _ => None,
        }
    }
}

/// The gradient of what `swiglu` takes, `[m, n] -> [m, 2, n]`, with gates and ups as the operands of `MulSilu` and `SiluGrad` (gates) and `Mul`
/// (ups): gradients of ups are saved, and those of gates are the result.
pub const SWIGLU_GRAD: [EpilogueOp; 5] = [
    EpilogueOp::Keep,
    EpilogueOp::MulSilu,
    EpilogueOp::Save,
    EpilogueOp::SiluGrad,
    EpilogueOp::Mul,
];

/// Whether the result is `[m, 2, n]`, C being its first half and a save its second.
pub fn halves(epilogue: &[EpilogueOp]) -> bool {
    epilogue.ends_with(&SWIGLU_GRAD)
}

/// Whether each copy of a tile that an epilogue works on ends where it is saved.
pub(super) fn keeps_end(epilogue: &[EpilogueOp]) -> bool {
    let mut kept = false;
    for op in epilogue {
        match op {
            EpilogueOp::Save => kept = false,
            EpilogueOp::Keep | EpilogueOp::Swiglu | EpilogueOp::Carry if kept => return false,
            EpilogueOp::Keep => kept = true,
            _ => {}
        }
    }
    !kept
}

/// Whether columns of a product's operand B come in pairs of gate and up.
pub fn gated(epilogue: &[EpilogueOp]) -> bool {
    matches!(epilogue, [EpilogueOp::Swiglu, ..] | [EpilogueOp::Save, EpilogueOp::Swiglu, ..])
}

/// How a tile is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Store {
    /// Through shared memory and TMA: the pitch is a multiple of 16 bytes.
    Tma,
    /// By ordinary stores: any pitch.
    Direct,
}

/// How a copy moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyVia {
    /// Bulk copies through shared memory; each row's bytes, addresses and pitch are multiples of 16.
    Bulk,
    /// Ordinary loads and stores: any pitch.
    Ldst,
    /// Ordinary loads and stores of rows that are each looked up.
    Gather,
}

/// Memory layout of a GEMM's operand A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ALayout {
    /// `[m, k]`, k contiguous.
    Mk,
    /// `[k, m]`, m contiguous.
    Km,
}

/// Memory layout of a GEMM's operand B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BLayout {
    /// `[k, n]`, n contiguous.
    Kn,
    /// `[n, k]`, k contiguous.
    Nk,
}

/// How the two warpgroups that multiply share a CTA's tiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consumers {
    /// Each has its part of every tile.
    #[default]
    Cooperative,
    /// Tiles of their own, in turn: one multiplies while the other brings its results out.
    PingPong,
}

/// Where attention keeps its accumulator, maximum and sum between ring steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carry {
    /// In registers: the ring is the task's inner loop.
    Registers,
    /// In declared f32 scratch: each step is a task of its own.
    Scratch,
}

fn one() -> u32 {
    1
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

/// No cluster that loads together.
fn alone() -> [u32; 2] {
    [1, 1]
}

fn is_alone(multicast: &[u32; 2]) -> bool {
    *multicast == alone()
}

/// Which keys a query attends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mask {
    /// All of them.
    #[default]
    Full,
    /// Those at its own position of the sequence and before. Positions are the family's
    /// ([`Positions`](super::plan::Positions)).
    Causal,
}

names! {
    /// What follows from a routing.
    RoutePart {
        /// Which tokens of a chunk go to each expert ([`route_list`](super::route_list)).
        Lists = "lists",
        /// Which tokens the rank has an expert of, as many entries for each rank's.
        Wanted = "wanted",
        /// Rows of each of the rank's experts; where rows of each chunk begin; and the blocks.
        Counts = "counts",
        /// The token of the world in each packed row of the rank.
        Sources = "sources",
        /// Rank and packed row of each slot of each of the rank's tokens.
        Places = "places",
        /// For each of those 1 if its row is there, 0 if it was dropped. Made with the places.
        Kept = "kept",
    }
}

/// What gradients of attention are of, which is what a tile of them keeps: the other side comes in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GradOf {
    /// Queries.
    Queries,
    /// Keys and values.
    Keys,
}

impl GradOf {
    /// Operands that a task has from its start on.
    pub const fn held(self) -> &'static [Operand] {
        match self {
            GradOf::Queries => &[Operand::Q, Operand::Do, Operand::Stats],
            GradOf::Keys => &[Operand::K, Operand::V],
        }
    }

    /// Operands that come in blocks.
    pub const fn moving(self) -> &'static [Operand] {
        match self {
            GradOf::Queries => &[Operand::K, Operand::V],
            GradOf::Keys => &[Operand::Q, Operand::Do, Operand::Stats],
        }
    }

    /// Results.
    pub const fn made(self) -> &'static [Operand] {
        match self {
            GradOf::Queries => &[Operand::Dq],
            GradOf::Keys => &[Operand::Dk, Operand::Dv],
        }
    }
}

/// Elements of a query's statistics: 16 bytes, so that bulk copies and TMA take any rows of them.
pub const STATS: u32 = 4;

/// What one task does. Few and generic: a new pipeline adds none unless it needs new arithmetic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leaf {
    /// Only waits and posts.
    Signal,
    /// Announces this launch to the peers: posts, with the launch hash beside each word.
    Enter,
    /// Copies `src` to every `dst`.
    CopyTile {
        /// How.
        via: CopyVia,
        /// Shared-memory stages, for bulk copies.
        stages: u32,
    },
    /// `c = epilogue(a · b)` with f32 accumulation, k in ascending blocks.
    MmaTile {
        /// Rows, columns and depth of the tile.
        block: [u32; 3],
        /// Shared-memory stages.
        stages: u32,
        /// Layout of `a`.
        a_layout: ALayout,
        /// Layout of `b`.
        b_layout: BLayout,
        /// How `c` is written.
        store: Store,
        /// Who multiplies a tile.
        consumers: Consumers,
        /// CTAs of a cluster that share a tile: each multiplies a part of its steps along k, and their f32 sums are added in the order of
        /// k. More than one store `c` by themselves.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        cluster: u32,
        /// Tiles of a cluster's CTAs that lie one below the other and side by side, which make up a task: those below each other load
        /// B together, those side by side A, each CTA a part for all (TMA multicast). `block` is of one CTA.
        #[serde(default = "alone", skip_serializing_if = "is_alone")]
        multicast: [u32; 2],
        /// Elementwise tail.
        epilogue: Vec<EpilogueOp>,
    },
    /// `dst = epilogue(sum of src, each times its w)`, in f32, in the order of `each`, then rounded once. In an inner
    /// loop, a sum at each iteration.
    ReduceTile {
        /// Elementwise tail: nothing that needs a product, or saves.
        epilogue: Vec<EpilogueOp>,
    },
    /// One block of queries against keys and values, with a running maximum and sum. The keys of a step are the rows of its `k`
    /// access; the leaf goes through them in blocks, the last of which may be short. Rows without a key have a result of 0 and a
    /// logarithm of -inf.
    AttendTile {
        /// Queries of a tile, keys of a block, elements of a head.
        block: [u32; 3],
        /// Where the state is between steps.
        carry: Carry,
        /// Factor on q·k, by its f32 bits.
        scale: u32,
        /// Shared-memory stages, of a block of keys and one of values each.
        stages: u32,
        /// Which keys a query attends to.
        mask: Mask,
        /// How `o` is written.
        store: Store,
    },
    /// `dst = [lse, sum of o * do, 0, 0]` of each query of a head.
    StatsTile {
        /// Queries of a tile, elements of a head.
        block: [u32; 2],
    },
    /// Gradients of one block of queries, against keys and values; or of one of keys and values, against queries. What the other side has at a
    /// step is the rows of its accesses; the leaf goes through them in blocks, the last of which may be short. Weights are
    /// `exp(scale * q·k - lse)`, 0 in rows whose `lse` is -inf.
    AttendGradTile {
        /// Gradients of what.
        of: GradOf,
        /// Rows of a tile, rows of a block of the other side, elements of a head.
        block: [u32; 3],
        /// Factor on q·k, by its f32 bits.
        scale: u32,
        /// Shared-memory stages, of a block of the other side each.
        stages: u32,
        /// Which keys a query attends to.
        mask: Mask,
    },
    /// Sends `src` to `dst` on another rank through the network.
    NicSend,
    /// Copies `src` to `dst` by a copy engine.
    HostCopy,
    /// Fills a table: integers from integers.
    Tabulate {
        /// Which one.
        of: Tabulation,
    },
}

/// Whether the first operand of the epilogue takes gates and ups as the product has them.
pub fn saves_gates(epilogue: &[EpilogueOp]) -> bool {
    matches!(epilogue, [EpilogueOp::Save, EpilogueOp::Swiglu, ..])
}

/// Bytes of one stage of a bulk copy.
pub const COPY_STAGE_BYTES: u32 = 16 * 1024;

/// Whether sums that a tile goes on with are added behind its last step: an elementwise operation of its own comes before.
pub fn carry_last(epilogue: &[EpilogueOp]) -> bool {
    let carries = epilogue.contains(&EpilogueOp::Carry);
    carries && epilogue.iter().any(|op| !matches!(op, EpilogueOp::Carry | EpilogueOp::Widen))
}

/// Bytes of a block of queries, and of as many blocks of keys and of values as there are stages.
pub fn attend_smem_bytes([rows, keys, depth]: [u32; 3], stages: u32) -> u32 {
    let blocks = keys.saturating_mul(2).saturating_mul(stages);
    rows.saturating_add(blocks).saturating_mul(depth).saturating_mul(2)
}

/// Bytes of a tile of attention's gradients, and of as many blocks of the other side as there are stages; and of the queries' statistics.
pub fn attend_grad_smem_bytes(of: GradOf, [rows, others, depth]: [u32; 3], stages: u32) -> u32 {
    let moved = others.saturating_mul(stages);
    let queries = if of == GradOf::Queries { rows } else { moved };
    let elements = rows.saturating_add(moved).saturating_mul(2).saturating_mul(depth);
    elements.saturating_mul(2).saturating_add(queries.saturating_mul(STATS * 4))
}

/// Operands of an epilogue, in the order of its operations that have one.
pub const EPILOGUE_OPERANDS: [Operand; 4] = [Operand::E0, Operand::E1, Operand::E2, Operand::E3];

impl Leaf {
    /// The name in the text format.
    pub fn name(&self) -> &'static str {
        match self {
            Leaf::Signal => "signal",
            Leaf::Enter => "enter",
            Leaf::CopyTile { .. } => "copy_tile",
            Leaf::MmaTile { .. } => "mma_tile",
            Leaf::ReduceTile { .. } => "reduce_tile",
            Leaf::AttendTile { .. } => "attend_tile",
            Leaf::StatsTile { .. } => "stats_tile",
            Leaf::AttendGradTile { of: GradOf::Queries, .. } => "attend_dq_tile",
            Leaf::AttendGradTile { of: GradOf::Keys, .. } => "attend_dkv_tile",
            Leaf::NicSend => "nic_send",
            Leaf::HostCopy => "host_copy",
            Leaf::Tabulate { of: Tabulation::Blocks { .. } } => "tabulate_blocks",
            Leaf::Tabulate { of: Tabulation::Route { .. } } => "tabulate_route",
        }
    }

    /// Whether two leaves of one role run on the same barriers and stages: products differ in layouts, arithmetic, or the
    /// way of storing only, or in columns, in whole panels of 64.
    pub fn shares_ring(&self, other: &Leaf) -> bool {
        match (self, other) {
            (
                Leaf::MmaTile { block: [m, n, k], stages, consumers, cluster, multicast, .. },
                Leaf::MmaTile {
                    block: [m2, n2, k2],
                    stages: stages2,
                    consumers: consumers2,
                    cluster: cluster2,
                    multicast: multicast2,
                    ..
                },
            ) => {
                (m, k, stages, consumers, cluster) == (m2, k2, stages2, consumers2, cluster2)
                    && multicast == multicast2
                    && (n == n2 || n.is_multiple_of(64) && n2.is_multiple_of(64))
                    && mma_consumers([*m, *n]) == mma_consumers([*m2, *n2])
            }
            _ => self == other,
        }
    }

    /// CTAs that share a task.
    pub fn cluster(&self) -> u32 {
        match self {
            Leaf::MmaTile { cluster, multicast: [below, beside], .. } => {
                cluster.saturating_mul(*below).saturating_mul(*beside).max(1)
            }
            _ => 1,
        }
    }

    /// Tiles below each other and side by side that make up a task.
    pub fn multicast(&self) -> [u32; 2] {
        match self {
            Leaf::MmaTile { multicast, .. } => *multicast,
            _ => alone(),
        }
    }

    /// CTAs that share the steps of a tile along k.
    pub fn shares_depth(&self) -> u32 {
        match self {
            Leaf::MmaTile { cluster, .. } => (*cluster).max(1),
            _ => 1,
        }
    }

    /// Whether tasks can be for whoever is free: one agent begins with them, and tells the others.
    pub fn has_dynamic_schedule(&self) -> bool {
        match self {
            Leaf::MmaTile { .. } => self.cluster() == 1,
            Leaf::ReduceTile { .. } | Leaf::AttendTile { .. } | Leaf::AttendGradTile { .. } => true,
            Leaf::CopyTile { via, .. } => *via != CopyVia::Bulk,
            _ => false,
        }
    }

    /// Columns of `c` in one tile of a GEMM; 0 for other leaves.
    pub fn out_columns(&self) -> u32 {
        match self {
            Leaf::MmaTile { block, epilogue, .. } => block[1] / if gated(epilogue) { 2 } else { 1 },
            _ => 0,
        }
    }

    /// What is done to each element of its results before they are rounded.
    pub fn epilogue(&self) -> &[EpilogueOp] {
        match self {
            Leaf::MmaTile { epilogue, .. } | Leaf::ReduceTile { epilogue } => epilogue,
            _ => &[],
        }
    }
}
