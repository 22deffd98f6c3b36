//! The kernel, as the runtime sees it.

use crate::device::{TRACE_AGENTS, TraceHead, TraceRecord};
use crate::host::HostProgram;
use crate::net::NetLayout;
use mk_dtype::DType;
use serde::{Deserialize, Serialize};

/// Whether a kernel reads or writes a caller's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TensorDirection {
    /// The kernel only reads it.
    In,
    /// The kernel writes every element of it.
    Out,
}

/// One caller tensor: the i-th pointer argument. Contiguous, row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorArg {
    /// Name in the pipeline.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Read or written.
    pub direction: TensorDirection,
    /// The tensor, by index, in whose memory it may lie: a parameter that it replaces, element by element.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<u32>,
    /// Whether each rank has its own number of rows in a launch, those of its shape at most: as many of each such
    /// tensor. [`LaunchHeader::own_rows`](crate::device::LaunchHeader::own_rows) says how many.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_rows: bool,
}

/// Where the memory under a tensor map begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MapBase {
    /// Caller tensor with this index in [`KernelSource::tensors`].
    Tensor(u32),
    /// This rank's symmetric memory, at a byte offset.
    Symmetric(u64),
    /// A peer's symmetric memory (rank, byte offset).
    Peer(u32, u64),
    /// This rank's scratch memory, at a byte offset.
    Scratch(u64),
    /// This rank's range of the net arena, at a byte offset.
    Net(u64),
}

/// Shared-memory swizzle of a tensor map (CUDA driver API, `CUtensorMapSwizzle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Swizzle {
    /// No swizzle.
    None,
    /// 32-byte swizzle.
    B32,
    /// 64-byte swizzle.
    B64,
    /// 128-byte swizzle.
    B128,
}

/// A tiled tensor map (`cuTensorMapEncodeTiled`). Dimensions are innermost first, as the driver wants them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorMapSpec {
    /// Start of the tensor.
    pub base: MapBase,
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension in elements, innermost first. A rank that owns no rows has a 0 here; the runtime
    /// then encodes an extent of 1, and the kernel never issues a copy through this map.
    pub dims: Vec<u64>,
    /// Stride in bytes of each dimension but the innermost; multiples of 16.
    pub strides_bytes: Vec<u64>,
    /// Box in elements, innermost first.
    pub box_dims: Vec<u32>,
    /// Shared-memory swizzle.
    pub swizzle: Swizzle,
}

/// What differs from rank to rank: a ragged shard has its own shape on each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankBinding {
    /// Local shape of each caller tensor, row-major, outermost first; with every run-time dimension at its bound.
    pub tensor_shapes: Vec<Vec<u64>>,
    /// The tensor maps, in the order of the kernel's `maps` array.
    pub maps: Vec<TensorMapSpec>,
}

/// A dimension whose value comes with each launch, the same on all ranks: `min` to `max`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeDim {
    /// Name in the pipeline.
    pub name: String,
    /// The least value: 0 or 1.
    pub min: u32,
    /// Inclusive upper bound, in elements.
    pub max: u32,
    /// The caller's tensors of which it decides a dimension.
    pub tensors: Vec<RuntimeRows>,
}

/// A tensor of which one dimension is a run-time dimension, or a rank's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeRows {
    /// Index into [`KernelSource::tensors`].
    pub tensor: u32,
    /// Which of its dimensions.
    pub dim: u32,
    /// How much of it a rank holds.
    pub share: Share,
}

/// What a rank holds of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Share {
    /// All of it.
    Whole,
    /// Its part: `torch.chunk`'s, so that the last ranks may hold less, or nothing.
    Part,
    /// Of twice as many parts as ranks, that of its number, and that of its number from the end.
    Zigzag,
}

impl Share {
    /// All of them.
    pub const ALL: [Share; 3] = [Share::Whole, Share::Part, Share::Zigzag];

    /// How much a rank of a world holds of so many elements.
    pub fn of(self, value: u64, rank: u32, world_size: u32) -> u64 {
        let (rank, world) = (u64::from(rank), u64::from(world_size.max(1)));
        let part = |n: u64, count: u64| {
            let part = value.div_ceil(count);
            value.saturating_sub(n * part).min(part)
        };
        match self {
            Share::Whole => value,
            Share::Part => part(rank, world),
            Share::Zigzag => part(rank, 2 * world) + part(2 * world - 1 - rank, 2 * world),
        }
    }
}

impl KernelSource {
    /// The line of [`KernelSource::cuda`] that ends the device library.
    pub const LIBRARY_END: &str = "// ==== end of the device library ====\n";

    /// The part of [`KernelSource::cuda`] that is this kernel's own, behind the device library: what a snapshot test
    /// keeps, because another version of the library does not change it.
    pub fn generated(&self) -> &str {
        self.cuda.split_once(Self::LIBRARY_END).map_or(&self.cuda, |(_, generated)| generated)
    }

    /// The dimension of a caller's tensor that a run-time dimension decides, and what a rank holds of it, when these
    /// have such values.
    pub fn runtime_rows(&self, rank: u32, tensor: usize, dims: &[u32]) -> Option<(usize, u64)> {
        self.runtime_dims.iter().zip(dims).find_map(|(dim, value)| {
            let of = dim.tensors.iter().find(|t| t.tensor as usize == tensor)?;
            Some((of.dim as usize, of.share.of(u64::from(*value), rank, self.world_size)))
        })
    }

    /// Local shapes of a rank's tensors in a launch with these values of the run-time dimensions; none for a rank that
    /// there is not.
    pub fn shapes(&self, rank: u32, dims: &[u32]) -> Vec<Vec<u64>> {
        let binding = self.ranks.get(rank as usize);
        let mut shapes = binding.map(|b| b.tensor_shapes.clone()).unwrap_or_default();
        for (t, shape) in shapes.iter_mut().enumerate() {
            let decided = self.runtime_rows(rank, t, dims);
            if let Some((extent, n)) = decided.and_then(|(d, n)| Some((shape.get_mut(d)?, n))) {
                *extent = n;
            }
        }
        shapes
    }
}

/// Memory that the runtime allocates, zeroed once at bind and never again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceLayout {
    /// Bytes of symmetric memory: same size and offsets on every rank, mapped by all peers. Begins with
    /// [`device::SymHeader`](crate::device::SymHeader), then the signal words, then the buffers.
    pub symmetric_bytes: u64,
    /// The part of it, from offset 0, that must start as zero (header and signals).
    pub zeroed_bytes: u64,
    /// Bytes of scratch that only this rank touches.
    pub scratch_bytes: u64,
}

/// A synchronisation edge of the plan, for messages: a fault record carries the id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeInfo {
    /// The number in the plan's `e7` and in the kernel's `kE7`.
    pub id: u32,
    /// The family and agent that wait, and the signal: `fam1 gemm.remote, loader: wait sig1 "arrived"[…] >= 8`.
    pub text: String,
}

/// A contiguous range of CTAs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleInfo {
    /// `compute`, `intra_comm`, …
    pub name: String,
    /// First CTA.
    pub first_cta: u32,
    /// Number of CTAs.
    pub ctas: u32,
}

/// A family of the plan, for readers of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFamily {
    /// The number in the plan's `fam1`.
    pub id: u32,
    /// `gemm.peers`, …
    pub name: String,
    /// Name of its leaf: `mma_tile`, …
    pub leaf: String,
    /// Names and numbers of the leaf's internal edges.
    pub edges: Vec<(String, u32)>,
}

/// What a traced kernel writes; see [`TraceHead`](crate::device::TraceHead).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLayout {
    /// Records that each agent's ring holds.
    pub records: u32,
    /// Every family of the plan.
    pub families: Vec<TraceFamily>,
    /// Edges that are waits for a rank's entry.
    pub entry_edges: Vec<u32>,
}

impl TraceLayout {
    /// Bytes of a rank's trace buffer for a grid of `ctas`.
    pub fn bytes(&self, ctas: u32) -> u64 {
        let part = size_of::<TraceHead>() + self.records as usize * size_of::<TraceRecord>();
        u64::from(ctas) * (TRACE_AGENTS * part) as u64
    }
}

/// A kernel ready for the JIT: one per plan, the same text on every rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSource {
    /// Name of the pipeline.
    pub name: String,
    /// The whole CUDA translation unit; it includes nothing.
    pub cuda: String,
    /// Entry point (`extern "C"`).
    pub entry: String,
    /// `sm_90a`.
    pub arch: String,
    /// Further NVRTC options.
    pub options: Vec<String>,
    /// World size that the plan was made for.
    pub world_size: u32,
    /// CTAs of the launch.
    pub grid: u32,
    /// Whether CTAs wait for each other, so that all of them must be co-resident.
    pub cooperative: bool,
    /// CTAs per cluster (1 for none).
    pub cluster: u32,
    /// Threads per CTA.
    pub block: u32,
    /// Dynamic shared memory per CTA.
    pub smem_bytes: u32,
    /// Memory to allocate.
    pub workspace: WorkspaceLayout,
    /// Caller tensors in argument order.
    pub tensors: Vec<TensorArg>,
    /// Per-rank shapes and maps; `world_size` of them.
    pub ranks: Vec<RankBinding>,
    /// Dimensions that each launch gives a value; at most [`MAX_RUNTIME_DIMS`](crate::device::MAX_RUNTIME_DIMS).
    pub runtime_dims: Vec<RuntimeDim>,
    /// Whether ranks meet in a launch: it waits until others have entered it.
    pub meets: bool,
    /// Roles, for messages and traces.
    pub roles: Vec<RoleInfo>,
    /// Every wait of the kernel, for messages.
    pub edges: Vec<EdgeInfo>,
    /// Bytes of registers that a thread may spill; more is an error. 0 but for chains of products.
    pub spill_bytes: u32,
    /// Hash of the plan, and of whether it is traced; ranks compare it when they enter.
    pub plan_hash: u32,
    /// What it records of each launch; nothing for a kernel that was emitted without tracing.
    pub trace: Option<TraceLayout>,
    /// What the host does beside it, if it does anything.
    pub host: Option<HostProgram>,
    /// What it needs of the network between nodes, if ranks are on several.
    pub net: Option<NetLayout>,
}
