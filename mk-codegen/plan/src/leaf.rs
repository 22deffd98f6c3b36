//! Leaf tasks: the work of a family's tasks, and the sizes that follow from its shape. Their contracts are in `contract.rs`.

use super::{
    epilogue::{EpilogueOp, gated},
    mma::mma_consumers,
    names::{Operand, RoutePart},
};
use serde::{Deserialize, Serialize};

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

/// Memory layout of a matrix product's left operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ALayout {
    /// `[m, k]`, k contiguous.
    Mk,
    /// `[k, m]`, m contiguous.
    Km,
}

/// Memory layout of a matrix product's right operand.
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
    /// ([`Positions`](super::Positions)).
    Causal,
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

/// Which table a task fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tabulation {
    /// The rows of groups, cut into blocks ([`TableSource::Blocks`](super::TableSource::Blocks)): `src` has the rows of each group,
    /// `dst` group and rows of each block. Negative rows, and more blocks than `dst` has room for, end the launch.
    Blocks {
        /// Rows of a block.
        rows: u32,
    },
    /// What follows from a routing ([`Routing`](super::Routing)), chunk by chunk of tokens. Experts that there are not, or that a token names
    /// twice, and more blocks on a rank than there are, end the launch.
    ///
    /// | part | `src` | `dst` |
    /// | --- | --- | --- |
    /// | lists | experts of a chunk, `[tokens, slots]` | its list |
    /// | wanted | experts of a chunk, `[tokens, slots]` | for each of its tokens 1 if the rank has one of them, else 0; 0 behind them |
    /// | counts | all lists, `[chunks, width]` | rows of the rank's experts; where rows of each chunk begin, `[chunks + 1, experts]`; group and rows of each block |
    /// | sources | group and rows of some blocks; all lists; where their rows begin | the token in each row of these blocks |
    /// | places | experts of a chunk; its list; where its rows begin, `[1, experts]` | rank and row of each, `[tokens, slots, 2]` |
    /// | places, some dropped | the same; the last row of where rows begin, `[1, experts]` | the same, of dropped ones that of the expert's first row; 1 for each that is kept, `[tokens, slots]` |
    Route {
        /// What `dst` has.
        part: RoutePart,
        /// Experts of the world.
        experts: u32,
        /// Ranks that share them, and the tokens.
        ranks: u32,
        /// Rows of a block.
        rows: u32,
        /// Blocks that a rank has room for.
        blocks: u32,
        /// Rows of an expert that are kept, the first ones; 0: all of them.
        keep: u32,
    },
}

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

/// Bytes of one stage of a bulk copy.
pub const COPY_STAGE_BYTES: u32 = 16 * 1024;

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

    /// Columns of `c` in one tile of a matrix product; 0 for other leaves.
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
