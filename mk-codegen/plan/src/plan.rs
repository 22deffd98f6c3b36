//! The tile plan: what runs where, what it touches, and what orders it.

use super::{
    axis::Axis,
    entity::{Arena, BufId, DimId, EdgeId, FamId, RoleId, SigId, TabId},
    expr::{Expr, Var},
    leaf::{Leaf, Mask},
    names::{Agent, Mode, Operand, Point, Proxy, RoutePart, Side, names},
};
use mk_abi::DType;
use serde::{Deserialize, Serialize};

/// A tile-level dataflow program for one mesh: the same for every rank, parametric in `rank`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the pipeline.
    pub name: String,
    /// The ranks.
    pub mesh: Mesh,
    /// The machine that the plan is for; see [`crate::target`].
    pub target: String,
    /// The network, if families use it.
    pub nic: Option<Nic>,
    /// Dimension symbols.
    pub dims: Arena<DimId, Dim>,
    /// Look-up tables.
    pub tables: Arena<TabId, Table>,
    /// Memory.
    pub buffers: Arena<BufId, Buffer>,
    /// Signal words.
    pub signals: Arena<SigId, Signal>,
    /// CTA ranges, in order of CTA number.
    pub roles: Arena<RoleId, Role>,
    /// Work. A role runs its families in this order.
    pub families: Arena<FamId, Family>,
}

/// Blocks of ragged rows that there is room for, of each group, up to which most groups have one.
pub const FEW_BLOCKS: u32 = 2;

impl Plan {
    /// Whether nobody but one task of the family reads what that task reads as `operand`: no loop goes over the same
    /// part again, and no other family reads the buffer.
    pub fn reads_once(&self, family: FamId, operand: Operand) -> bool {
        let f = &self.families[family];
        let Some(a) = f.accesses.iter().find(|a| a.operand == operand) else { return false };
        let moves = |v| a.region.iter().any(|(from, _)| self.moves(from, v));
        let again = |(i, (_, extent)): (usize, &(String, Expr))| {
            *extent != Expr::Const(1) && !moves(Var::domain(i))
        };
        let reads = |x: &Access| x.buffer == a.buffer && x.mode == Mode::Read;
        let mut others = self.families.iter().filter(|(id, _)| *id != family);
        let shared = others.any(|(_, f)| f.accesses.iter().any(reads));
        let repeats = f.inner.is_some() && !moves(Var::INNER);
        !shared && !repeats && !f.domain.iter().enumerate().any(again)
    }

    /// Whether an expression has another value where a variable has. What blocks look up moves with them where most
    /// groups have one of them.
    fn moves(&self, e: &Expr, v: Var) -> bool {
        let mentions = |e: &Expr| {
            let mut n = 0;
            e.visit(&mut |e| n += usize::from(*e == Expr::Var(v)));
            n
        };
        let shared = |t: &Table| match t.source {
            TableSource::Blocks { of, .. } => {
                let groups = self.tables.get(of).and_then(|t| t.shape.first());
                groups.is_none_or(|groups| t.shape[0] > FEW_BLOCKS * groups)
            }
            _ => false,
        };
        let mut looked_up = 0;
        e.visit(&mut |e| {
            if let Expr::Table(table, index) = e
                && self.tables.get(*table).is_some_and(shared)
            {
                looked_up += index.iter().map(&mentions).sum::<usize>();
            }
        });
        mentions(e) > looked_up
    }

    /// The plan with another value for a run-time dimension: what a launch with that value runs.
    ///
    /// Values outside the dimension's range, and dimensions that are fixed, are left as they are.
    pub fn at(&self, dim: DimId, value: i32) -> Plan {
        let mut plan = self.clone();
        let range = self.dims.get(dim).and_then(|d| Some(d.least()..=d.runtime_max?));
        if range.is_some_and(|range| range.contains(&value)) {
            plan.dims[dim].value = value;
        }
        plan
    }

    /// Ranks of a node: all, where the plan has one.
    pub fn local(&self) -> u32 {
        self.nic.and_then(|nic| nic.local).unwrap_or_else(|| self.mesh.size()).max(1)
    }

    /// The first dimension that comes with each launch, and its bound.
    pub fn runtime_dim(&self) -> Option<(DimId, i32)> {
        self.dims.iter().find_map(|(id, d)| Some((id, d.runtime_max?)))
    }
}

/// Named axes of ranks; rank is row-major over them (last axis fastest).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Axis names and sizes.
    pub axes: Vec<(String, u32)>,
}

impl Mesh {
    /// One axis named `world`.
    pub fn world(size: u32) -> Mesh {
        Mesh { axes: vec![("world".into(), size)] }
    }
    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.axes.iter().map(|a| a.1).product()
    }
    /// An axis by its name. All ranks are along the only one, whatever it is called.
    pub fn axis(&self, name: &str) -> Option<Axis> {
        if let [(_, size)] = self.axes[..] {
            return Some(Axis { stride: 1, size });
        }
        let at = self.axes.iter().position(|(axis, _)| axis == name)?;
        let behind = self.axes[at + 1..].iter().map(|a| a.1);
        Some(Axis { stride: behind.product(), size: self.axes[at].1 })
    }

    /// Places along some of its axes, and along the others.
    ///
    /// # Errors
    /// The first name that is none of its axes; the only axis may be called anything.
    pub fn places<'n>(&self, names: &'n [String]) -> Result<[Places; 2], &'n str> {
        let mut axes = Vec::new();
        for name in names {
            let named = names.len() == 1 || self.axes.iter().any(|(axis, _)| axis == name);
            axes.push(self.axis(name).filter(|_| named).ok_or(name.as_str())?);
        }
        let others = self.axes.iter().filter_map(|(name, _)| self.axis(name));
        let others = others.filter(|axis| axis.size > 1 && !axes.contains(axis)).collect();
        Ok([Places { axes }, Places { axes: others }])
    }
}

/// Places along some axes of a mesh: row-major over them, the last one fastest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    axes: Vec<Axis>,
}

impl Places {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.axes.iter().map(|axis| axis.size as usize).product()
    }

    /// How many there are along each axis.
    pub fn sizes(&self) -> Vec<usize> {
        self.axes.iter().map(|axis| axis.size as usize).collect()
    }

    /// That of a rank.
    pub fn of(&self, rank: usize) -> usize {
        self.axes.iter().fold(0, |place, axis| place * axis.size as usize + axis.place(rank))
    }
}

/// The network between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Whether writes of one lane become visible in order.
    pub ordering: NicOrdering,
    /// Ranks of a node, which follow each other; those of others are reached by network cards only. `None`: all ranks
    /// are in one node, and cards reach all symmetric memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<u32>,
    /// Entries of the GPU-to-host fifo.
    pub fifo: u32,
    /// Lanes (queue pairs) between two ranks. The word that a command raises at the receiver decides its lane.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub lanes: u32,
}

/// The default of numbers that JSON leaves out if they are 1.
pub(crate) fn one() -> u32 {
    1
}

pub(crate) fn is_one(n: &u32) -> bool {
    *n == 1
}

/// Ordering class of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NicOrdering {
    /// RC: a later write of the same lane is not visible before an earlier one.
    InOrder,
    /// SRD: writes become visible in any order.
    Unordered,
}

/// A dimension symbol and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dim {
    /// Its name in the pipeline.
    pub name: String,
    /// The value: a JIT constant, or for a runtime dimension the value that this plan is checked at.
    pub value: i32,
    /// Upper bound of a runtime dimension.
    pub runtime_max: Option<i32>,
    /// Whether a launch may have none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_be_zero: bool,
}

impl Dim {
    /// The least value of a runtime dimension.
    pub fn least(&self) -> i32 {
        i32::from(!self.may_be_zero)
    }
}

/// A table of integers. Its contents may differ from rank to rank, and from epoch to epoch if they come at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// A name for people.
    pub name: String,
    /// Extents, row-major.
    pub shape: Vec<u32>,
    /// Contents.
    pub source: TableSource,
    /// Memory of each rank that has them, in the same order: looking an entry up is then a read of it, which the family
    /// has as an access (`tab`). Of the caller's, the contents come with it; all other memory is filled within the
    /// launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<BufId>,
    /// Whether a routing says what is in it; of its source a proof knows no more than of any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed: Option<Routed>,
}

/// That the contents of a table follow from a routing. Proofs take what the table's source says of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routed {
    /// The experts of a rank's tokens: `[tokens, slots]`, of which a rank may have fewer; numbers from 0 to the
    /// greatest value of the table.
    pub ids: TabId,
    /// What follows from them.
    pub part: RoutePart,
    /// Rows of a block.
    pub rows: i32,
    /// Rows of an expert that are kept, the first ones; 0: all of them.
    pub keep: i32,
    /// Of places: ranks of a node, of whose experts alone there are some, of the tokens of its rails, node by node; 0:
    /// all ranks are one, and tokens the rank's own.
    pub local: u32,
    /// The ranks that share tokens and experts, along an axis of the mesh; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub along: Option<Axis>,
}

impl Routed {
    /// The ranks that share tokens and experts.
    pub fn over(&self, mesh: &Mesh) -> Axis {
        self.along.unwrap_or(Axis { stride: 1, size: mesh.size() })
    }
}

/// Where a table's contents come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableSource {
    /// In the plan.
    Const(Vec<i32>),
    /// Comes with each launch; every entry lies in `min..=max`, and nothing else is known of it.
    Runtime {
        /// Least value of an entry.
        min: i32,
        /// Greatest value of an entry.
        max: i32,
    },
    /// Exclusive prefix sum over the entries of a one-dimensional table, each rounded up to `align`.
    /// Has one more entry than that table.
    Prefix {
        /// The counts.
        of: TabId,
        /// Rows to which every count is rounded up.
        align: i32,
    },
    /// The rows of groups, cut into blocks: `[blocks, 2]`, the group of each block and its rows. The blocks of a group
    /// follow each other, those of groups, too; only the last one of a group has fewer than `rows`. Blocks that are
    /// left over have none. No launch has more rows than fit.
    Blocks {
        /// Rows of each group: a one-dimensional table.
        of: TabId,
        /// Rows of a block.
        rows: i32,
    },
    /// Of documents, `[rows, 2]`: the first row of the other side that each row meets, and the one behind the last
    /// ([`document_bounds`](crate::document_bounds)).
    Bounds {
        /// Where documents begin, and the last one ends: a one-dimensional table.
        of: TabId,
        /// Whose rows these are.
        side: Side,
        /// Which pairs of a document meet.
        mask: Mask,
    },
    /// Of documents, `[places, parts]`: 1 where a row of the place meets one of the part, else 0
    /// ([`meets_table`](crate::meets_table)). The documents of a launch are the same on all ranks, and so is this.
    Meets {
        /// Where documents begin, and the last one ends: a one-dimensional table.
        of: TabId,
        /// Whose rows a place has.
        side: Side,
        /// Which pairs of a document meet.
        mask: Mask,
        /// Rows of a part.
        rows: i32,
    },
    /// Comes with each launch: `[…, 2]`, a rank, and a row that the blocks of that rank fill. Row `i` of block `b` is
    /// number `b * rows + i`.
    Places {
        /// The blocks.
        of: TabId,
    },
}

impl TableSource {
    /// Whether the contents come with each launch, or follow from such.
    pub fn comes(&self) -> bool {
        !matches!(self, TableSource::Const(_))
    }
}

/// Memory that tasks touch: the same name on every rank, `rank`-dependent in shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// A name for people; for caller tensors the name in the pipeline.
    pub name: String,
    /// Where it lives.
    pub space: Space,
    /// A caller's tensor that peers may touch in place (`SymTensor`).
    pub shared: bool,
    /// A caller's tensor of which each rank has its own number of rows in a launch, `shape`'s at most. Rows behind them
    /// are read as zeros, of integers as -1, and what is written there is not kept: a plan is proved with all rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_rows: bool,
    /// Element type.
    pub dtype: DType,
    /// Extents, row-major; may depend on `rank`.
    pub shape: Vec<Expr>,
    /// Elements from one row (of the last dimension) to the next in memory, where that is more than its extent.
    pub pitch: Option<Expr>,
}

names! {
    /// Whose memory a buffer is.
    Space {
        /// A tensor that the caller writes before each launch.
        In = "in",
        /// A tensor that the caller reads after each launch.
        Out = "out",
        /// Symmetric memory: peers may touch it.
        Workspace = "workspace",
        /// Device memory of one rank.
        Scratch = "scratch",
        /// Memory that network cards read and write, and otherwise its own GPU alone.
        Net = "net",
    }
}

/// An array of counters, one copy on every rank. A word only ever counts up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// A name for people.
    pub name: String,
    /// Raised by hosts, behind what network cards do, and by nobody else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub net: bool,
    /// Extents of the array.
    pub shape: Vec<Expr>,
}

names! {
    /// What the CTAs of a role do.
    RoleKind {
        /// Runs in CTA 0 before its own role begins.
        Prologue = "prologue",
        /// Matrix and attention tiles.
        Compute = "compute",
        /// Moves data between GPUs of one node.
        IntraComm = "intra_comm",
        /// Hands data to the network.
        InterSend = "inter_send",
        /// Combines what the network brought.
        InterReduce = "inter_reduce",
        /// The GPU's copy engine, driven by the host: needs no CTA.
        CopyEngine = "copy_engine",
        /// Runs in CTA 0 after its own role has ended.
        Epilogue = "epilogue",
    }
}

impl RoleKind {
    /// Whether the role has CTAs of its own; the others run beside one that has.
    pub fn owns_ctas(self) -> bool {
        !matches!(self, RoleKind::Prologue | RoleKind::Epilogue | RoleKind::CopyEngine)
    }
}

/// A contiguous range of CTAs. Roles follow each other in CTA number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    /// What it does.
    pub kind: RoleKind,
    /// How many CTAs; 0 for those that need none of their own.
    pub ctas: u32,
}

/// A parametric loop of tasks of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// A name for people.
    pub name: String,
    /// Who runs it.
    pub role: RoleId,
    /// What one task does.
    pub leaf: Leaf,
    /// Loop variables and extents, outermost first. An extent may depend on variables before it.
    pub domain: Vec<(String, Expr)>,
    /// The order of tasks: an expression for each variable over the linear index `t`. Empty: nested loops, last
    /// variable fastest. Must name every point of the domain exactly once.
    pub order: Vec<Expr>,
    /// Which CTA of the role runs which task.
    pub schedule: Schedule,
    /// A loop inside each task: k blocks, or ring steps.
    pub inner: Option<(String, Expr)>,
    /// Where queries and keys are in their sequence, for attention that masks by position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<Positions>,
    /// Memory that a task touches.
    pub accesses: Vec<Access>,
    /// Signals that a task waits for.
    pub waits: Vec<Wait>,
    /// Signals that a task raises.
    pub posts: Vec<Post>,
    /// Ids of the leaf's internal edges, in the order of its contract.
    pub edges: Vec<InternalEdge>,
}

/// Places in the sequence of the first query of a tile, and of the first key of a step. Those behind them follow one by
/// one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Positions {
    /// Of the first row of `q`.
    pub q: Expr,
    /// Of the first row of `k`; may name the inner loop.
    pub k: Expr,
}

/// Which CTA of a role runs which task of a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schedule {
    /// Task `n` of the role's families, in their order, is for CTA `n % ctas`.
    #[default]
    Static,
    /// In order, the next is for the CTA (or the part of it that works by itself) that is free; each has one to begin
    /// with.
    Dynamic,
}

/// An edge inside a leaf: an mbarrier or a named barrier. Which agents it joins is in the leaf's contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InternalEdge {
    /// Its id.
    pub edge: EdgeId,
    /// Its name in the contract.
    pub name: String,
}

/// Repetition of a wait, a post or an access: `each p in 4`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Each {
    /// Name of the variable; its slot is [`Var::EACH`](super::Var::EACH).
    pub var: String,
    /// Extent.
    pub extent: Expr,
}

/// A region of a buffer on some rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Which operand of the leaf; the contract says which agent performs it through which proxy.
    pub operand: Operand,
    /// Read, write or accumulate.
    pub mode: Mode,
    /// The buffer.
    pub buffer: BufId,
    /// The rank whose copy of the buffer it is.
    pub rank: Expr,
    /// Base and length in each dimension, in elements. A length below 1 means that nothing is touched.
    pub region: Vec<(Expr, Expr)>,
    /// Which write of this memory within the epoch: a read sees the write of its own version, and versions of
    /// overlapping regions are ordered. 0 unless memory is reused within an epoch.
    pub version: Expr,
    /// When in the task.
    pub at: Point,
    /// Repetition.
    pub each: Option<Each>,
    /// Condition; absent means always.
    pub when: Option<Expr>,
}

names! {
    /// How far an acquire or release reaches.
    Scope {
        /// One GPU.
        Gpu = "gpu",
        /// All GPUs, the host and network cards.
        Sys = "sys",
    }
}

/// Waits until the word on this rank has reached `(epoch - lag) * count`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// Its id.
    pub edge: EdgeId,
    /// The signal; the word on this rank is meant.
    pub signal: SigId,
    /// Which word.
    pub index: Vec<Expr>,
    /// What one epoch adds to the word in all.
    pub count: Expr,
    /// 0: this epoch's posts; 1: those of the epoch before.
    pub lag: u32,
    /// Who waits.
    pub by: Agent,
    /// Which accesses it protects.
    pub proxy: Proxy,
    /// Reach of the acquire.
    pub scope: Scope,
    /// When in the task.
    pub at: Point,
    /// Repetition.
    pub each: Option<Each>,
    /// Condition; absent means always.
    pub when: Option<Expr>,
}

names! {
    /// What must have happened to the agent's accesses before it posts.
    Completion {
        /// Nothing beyond program order: enough for reads and for generic stores, which the release covers.
        ProgramOrder = "program_order",
        /// Bulk stores have read shared memory (`cp.async.bulk.wait_group.read`).
        SmemReadDone = "smem_read_done",
        /// Bulk stores are visible in global memory (`cp.async.bulk.wait_group`).
        GlobalWriteDone = "global_write_done",
        /// The network card has taken the command.
        NicPosted = "nic_posted",
        /// The data is in the peer's memory and the source may be reused.
        NicDelivered = "nic_delivered",
        /// Also visible to the peer's GPU (flushed where write ordering is not guaranteed).
        NicFlushed = "nic_flushed",
    }
}

/// Adds to a word on some rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Post {
    /// Its id.
    pub edge: EdgeId,
    /// The signal.
    pub signal: SigId,
    /// Which word.
    pub index: Vec<Expr>,
    /// The rank whose word it is.
    pub rank: Expr,
    /// How much; nothing is sent if it is 0.
    pub add: Expr,
    /// Who posts.
    pub by: Agent,
    /// What it waits for first.
    pub after: Completion,
    /// Reach of the release.
    pub scope: Scope,
    /// When in the task.
    pub at: Point,
    /// Repetition.
    pub each: Option<Each>,
    /// Condition; absent means always.
    pub when: Option<Expr>,
}
