//! The settings of one plan.

use super::values::{AllReduce, Block, Gather, LastWave, Multicast, Reduction, Returns};
use mk_plan::target::{self, Target};
use mk_plan::{
    Consumers, NicOrdering, Schedule, mma_consumers, mma_exchange_bytes, mma_shifted_stage_bytes,
    mma_stage_bytes, mma_staging_bytes,
};

/// Everything that decides a plan, apart from the pipeline and its sizes: the world, the GPU, and the settings of
/// [`SETTINGS`](super::SETTINGS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of ranks.
    pub ranks: u32,
    /// The axes that ranks form, and their extents; rank is row-major over them, the last one fastest. None: all are
    /// along the axis of the pipeline. Along axes that the pipeline does not name, ranks do the same.
    pub mesh: Vec<(String, u32)>,
    /// Nodes, which have as many ranks each: rank `r` is number `r % (ranks / nodes)` of its node. Between nodes only
    /// network cards carry data.
    pub nodes: u32,
    /// The order in which they do.
    pub net: NicOrdering,
    /// Target GPU, see [`mk_plan::target`].
    pub target: String,
    /// M, N and K of a GEMM's tile.
    pub block: Block,
    /// Shared-memory stages of a GEMM; as many as fit, six at most, where it is not set.
    pub stages: Option<u32>,
    /// How the two consumer warpgroups share a CTA's tiles. Ping-pong is for tiles of 128 rows and at most 160 columns,
    /// of which each warpgroup has room for one.
    pub consumers: Consumers,
    /// Rasterisation: row blocks that are walked together before the next columns' tiles, so that both operands stay in
    /// L2; as many as hold 1024 rows, where it is not set.
    pub group_m: Option<u32>,
    /// Whether tiles, sums and copies through registers are dealt out before the launch, or taken by the next free CTA
    /// (an atomic tile scheduler).
    pub tile_scheduler: Schedule,
    /// Smaller tiles for the last rows.
    pub last_wave: Option<LastWave>,
    /// Parts of K that are multiplied side by side, at most, for GEMMs whose tiles are fewer than
    /// SMs and which end in a `reduce_scatter` or `all_reduce` without an elementwise operation between.
    pub split_k: u32,
    /// CTAs of a cluster that share each tile of a GEMM alone, at most eight: each multiplies a part of the inner
    /// dimension, and they add their sums through shared memory, in order. For GEMMs whose tiles are fewer than SMs.
    pub cluster: u32,
    /// CTAs of a cluster that load operands of a GEMM alone together.
    pub multicast: Option<Multicast>,
    /// Which agents push gathered rows.
    pub gather: Gather,
    /// Slices of K in which gathered rows travel, at most, so that a GEMM begins with the first
    /// slice. Each slice has whole steps of a GEMM and rows that fit a copy's stage; where there is no such number,
    /// where the rows are a result themselves, or where a launch decides a dimension, rows travel whole.
    pub k_slices: u32,
    /// Bytes that one communication task moves to each peer, at most (at least eight rows, or as many as there are).
    pub chunk_bytes: u32,
    /// Shared-memory stages of a bulk copy.
    pub copy_stages: u32,
    /// Where contributions are reduced.
    pub reduction: Reduction,
    /// How an `all_reduce` behind a GEMM moves its contributions.
    pub all_reduce: AllReduce,
    /// What `combine` sends back to the rank of a token.
    pub combine: Returns,
    /// CTAs that multiply; the SMs that no other role has, where it is not set.
    pub compute_sms: Option<u32>,
    /// CTAs that communicate inside the node.
    pub intra_comm_sms: Option<u32>,
    /// SMs that this kernel leaves to others.
    pub reserved_sms: u32,
}

impl Default for Config {
    /// One rank on `sm_90a`.
    fn default() -> Config {
        Config {
            ranks: 1,
            mesh: Vec::new(),
            nodes: 1,
            net: NicOrdering::InOrder,
            target: target::SM_90A.name.to_string(),
            block: [128, 256, 64],
            stages: None,
            consumers: Consumers::Cooperative,
            group_m: None,
            tile_scheduler: Schedule::Static,
            last_wave: None,
            split_k: 1,
            cluster: 1,
            multicast: None,
            gather: Gather::Sms,
            k_slices: 1,
            chunk_bytes: 512 * 1024,
            copy_stages: 12,
            reduction: Reduction::DedicatedSms,
            all_reduce: AllReduce::TwoShot,
            combine: Returns::Rows,
            compute_sms: None,
            intra_comm_sms: None,
            reserved_sms: 0,
        }
    }
}

/// Rows that are walked together unasked. CTAs that share a row block drift apart along k, the more so the fewer
/// columns' tiles a wave has: from 4096 rows on, 256 x 128 tiles of a depth of 32768 take 1.8 times as long
/// (docs/decisions/tile-order.md).
const RASTER_ROWS: u32 = 1024;

/// Most stages that a GEMM gets unasked. A load from memory takes as long as some ten steps of few rows; or, of 64
/// columns, some more.
const MOST_STAGES: u32 = 10;
const MOST_NARROW_STAGES: u32 = 16;

impl Config {
    /// Rows of the result that a task of a GEMM makes.
    pub(crate) fn rows_of_task(&self) -> i32 {
        let rows = self.block[0].saturating_mul(self.multicast.map_or(1, |m| m.below));
        i32::try_from(rows).unwrap_or(i32::MAX)
    }

    /// Row blocks that are walked together.
    pub fn group_blocks(&self) -> u32 {
        self.group_m.unwrap_or_else(|| (RASTER_ROWS / (self.rows_of_task() as u32).max(1)).max(1))
    }

    /// CTAs that share a task of a product.
    pub(crate) fn ctas_of_task(&self) -> u32 {
        let tiles = self.multicast.map_or(1, |m| m.below.saturating_mul(m.beside));
        self.cluster.saturating_mul(tiles)
    }

    /// Shared-memory stages of a GEMM on `target`, whose operand B may be `shifted`.
    pub fn stages_on(&self, target: &Target, shifted: bool) -> u32 {
        self.stages.unwrap_or_else(|| {
            let [m, n, _] = self.block;
            let most = if mma_consumers([m, n]) == 1 { MOST_NARROW_STAGES } else { MOST_STAGES };
            stages_that_fit(self.block, self.cluster, shifted, target).clamp(2, most)
        })
    }
}

/// Stages of a tile that fit shared memory beside the staging of its results, or beside what the others of a cluster
/// send.
pub(super) fn stages_that_fit(
    [m, n, k]: Block,
    cluster: u32,
    shifted: bool,
    target: &Target,
) -> u32 {
    let stage = match shifted {
        true => mma_shifted_stage_bytes([m, n, k]),
        false => mma_stage_bytes([m, n, k]),
    };
    let room = target.smem_bytes.saturating_sub(target.smem_reserved_bytes);
    let beside =
        |stages| mma_staging_bytes([m, n], stages).max(mma_exchange_bytes([m, n], cluster));
    // More stages never ask for more staging.
    let most = room.saturating_sub(beside(u32::MAX)) / stage.max(1);
    room.saturating_sub(beside(most)) / stage.max(1)
}
