//! From the op graph to a tile plan: the passes, in the order in which they run.

mod columns;
mod draft;
mod fold;
mod fuse;
mod gather;
mod gemm;
mod pack;
mod product;
mod reduce;
mod roles;
mod rows;
mod select;
mod settings;
mod signals;

use crate::{
    graph::OpGraph,
    ir::{Buffer, Plan, Space, StructureError},
    target,
    valid::{self, Violation},
};
use mk_syntax::{Bound, Program, ValueId};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};
use thiserror::Error;

pub use crate::ir::{Consumers, Schedule};
pub use roles::{DEFAULT_COPY_SMS, DEFAULT_REDUCE_SMS};

/// Everything that decides a plan, apart from the pipeline and its sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of ranks.
    pub ranks: u32,
    /// Target GPU, see [`crate::target`].
    pub target: String,
    /// CTAs of a role, where the default split is not wanted.
    pub sms: BTreeMap<String, u32>,
    /// SMs that none of its CTAs is for.
    pub reserved_sms: u32,
    /// Rows, columns and depth of a matrix product's tile.
    pub block: [u32; 3],
    /// How the warpgroups that multiply share a CTA's tiles. Ping-pong is for tiles of 128 rows and at most 160 columns, of which each
    /// warpgroup has room for one.
    pub consumers: Consumers,
    /// Where the last tiles of a product are cut narrower.
    pub tail: Option<Tail>,
    /// Columns of the tiles of a gathered operand's own rows, a multiple of 64, where they are less than those of the others: so many
    /// CTAs share what is there at once that none begins late with a tile of peers' rows. For products that are results as they are.
    pub own_columns: Option<u32>,
    /// Where the first tiles that leave for owners of a sum are narrower.
    pub head: Option<Head>,
    /// Shared-memory stages of a matrix product; see [`Config::set_block`].
    pub gemm_stages: u32,
    /// Shared-memory stages of a bulk copy.
    pub copy_stages: u32,
    /// Row blocks that are walked together before the next columns' tiles: keeps both operands in L2.
    pub group_rows: u32,
    /// Bytes that one communication task moves to each peer, at most (at least eight rows, or as many as there are).
    pub chunk_bytes: u32,
    /// Slices of the inner dimension in which gathered rows travel, at most: those of many rows leave slice by slice, so that a
    /// product begins with the first slice and is never far behind the last. Each slice has whole steps of a product and rows that
    /// fit a copy's stage; where there is no such number, where the rows are a result themselves, or where a launch decides a dimension, rows
    /// travel whole.
    pub k_slices: u32,
    /// Who pushes gathered rows to the peers.
    pub gather: Gather,
    /// How an `all_reduce` behind a matrix product moves its summands.
    pub all_reduce: AllReduce,
    /// Which CTAs add up what products leave.
    pub sums: Sums,
    /// Parts of the inner dimension that are multiplied side by side, at most, for products whose tiles are fewer than SMs:
    /// For products that end in a `reduce_scatter` or `all_reduce` without an elementwise operation between.
    pub split_k: u32,
    /// Who adds them.
    pub fold: Fold,
    /// Which CTA runs which tile of a product, which sum, and which copy through registers: every so many each, or whoever is free takes
    /// the next. CTAs are not equally fast where tiles leave for peers.
    pub tile_schedule: Schedule,
}

/// Who adds the parts of a product that is cut along its inner dimension and summed over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fold {
    /// The rank that made them, in f32, before anything leaves it.
    #[default]
    Rank,
    /// The owner of the sum, together with those of the other ranks: a hop through memory less, for as many times the bytes over
    /// the links. Parts are rounded to the dtype of the result on the way, each of them.
    Owner,
}

/// Who pushes gathered rows to the peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// CTAs that do nothing else: a chunk is read once and written to every peer. Or, in a gather of rows of any pitch, its threads.
    #[default]
    Sms,
    /// The GPU's copy engine, which takes no SM: to one peer after the other. The kernel begins when every rank has entered the
    /// launch. For rows of a multiple of 16 bytes, and as many in every launch.
    Engine {
        /// Parts of a shard that are announced one by one, at most; 32 or fewer.
        parts: u32,
    },
}

impl fmt::Display for Gather {
    /// `sms`, `engine` or, in parts, `engine/4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gather::Sms => f.write_str("sms"),
            Gather::Engine { parts: 1 } => f.write_str("engine"),
            Gather::Engine { parts } => write!(f, "engine/{parts}"),
        }
    }
}

/// A text that is no [`Gather`].
#[derive(Clone, Debug, Error)]
#[error("`{0}` is neither `sms` nor `engine` or, in parts, for instance `engine/4`")]
pub struct NoGather(String);

impl FromStr for Gather {
    type Err = NoGather;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Gather, NoGather> {
        let wrong = || NoGather(text.into());
        match text.split_once('/') {
            None if text == "sms" => Ok(Gather::Sms),
            None if text == "engine" => Ok(Gather::Engine { parts: 1 }),
            Some(("engine", parts)) => {
                let parts = parts.parse().ok().filter(|n| *n > 0).ok_or_else(wrong)?;
                Ok(Gather::Engine { parts })
            }
            _ => Err(wrong()),
        }
    }
}

/// Which CTAs add up what products leave, and hand the sums on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sums {
    /// Others than those that multiply, meanwhile.
    #[default]
    Beside,
    /// Those that multiply, when they are done: for products of one or two waves of tiles, which need every SM and end all at
    /// once.
    After,
    /// Those that multiply, tile by tile: a sum goes from rank to rank, each adds its product to what has come and passes it on,
    /// and the owner of the rows is the last. No memory is read twice, and nothing is left to do at the end. What is passed on
    /// has the dtype of the result, so that a sum is rounded on every rank; the order of ranks is fixed, and so are the bits. For a
    /// `reduce_scatter` of a product whose left operand is not gathered.
    Ring,
    /// As [`Sums::Ring`], but a sum stays with the owner of its rows: the first rank writes its product there, the others have that
    /// memory add theirs to it over the link (reduce-on-write), one after the other, and the owner is the last.
    OnWrite,
    /// As [`Sums::Ring`], but every rank sends its tiles straight to the owner of their rows, which multiplies its own last and adds
    /// all of them, in a fixed order, when its tile is done. Each rank's part is rounded once on its way.
    Epilogue,
}

impl Sums {
    /// Whether tiles add to sums, so that no task is left that adds them up.
    pub fn in_tiles(self) -> bool {
        match self {
            Sums::Beside | Sums::After => false,
            Sums::Ring | Sums::OnWrite | Sums::Epilogue => true,
        }
    }
}

/// Tiles of the last rows are smaller: narrower, or cut along k, or both. So a last wave that does not fill the GPU is short, and
/// rows that arrive last are multiplied by many SMs. For products that are results as they are; of a gathered operand, the last
/// rows of every peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Blocks of rows at the end of each shard.
    pub blocks: u32,
    /// Columns of their tiles: a multiple of 64; less than the others have, or as many if there are parts.
    pub columns: u32,
    /// Parts of the inner dimension that are multiplied side by side, at most. Each makes a summand in f32, and all CTAs that
    /// multiply add them up at the end, in order.
    pub parts: u32,
}

impl fmt::Display for Tail {
    /// `2x256/4`: blocks, columns and parts; without parts if there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.blocks, self.columns)?;
        if self.parts > 1 { write!(f, "/{}", self.parts) } else { Ok(()) }
    }
}

/// A text that is no [`Tail`].
#[derive(Clone, Debug, Error)]
#[error("`{0}` is not BLOCKSxCOLUMNS or BLOCKSxCOLUMNS/PARTS, for instance 1x64 or 2x256/4")]
pub struct NoTail(String);

impl FromStr for Tail {
    type Err = NoTail;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Tail, NoTail> {
        let read = || {
            let (tiles, parts) = text.split_once('/').unwrap_or((text, "1"));
            let (blocks, columns) = tiles.split_once('x')?;
            let number = |t: &str| t.parse().ok();
            Some(Tail { blocks: number(blocks)?, columns: number(columns)?, parts: number(parts)? })
        };
        read().ok_or_else(|| NoTail(text.into()))
    }
}

/// The first tiles are narrower, fewer than there are SMs: so not all CTAs have their first tile done at once, and links, which then stand
/// in the way of every load, have something to carry sooner. For products that a `reduce_scatter`, or an `all_reduce` in two phases, sums
/// beside or after them; not for rows that are gathered, or in parts of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// How many, at least: as many columns of the first group of rows as make so many.
    pub tiles: u32,
    /// Columns of each: a multiple of 64, and a part of the columns that the others have.
    pub columns: u32,
}

impl fmt::Display for Head {
    /// `64x128`: tiles and columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.tiles, self.columns)
    }
}

/// A text that is no [`Head`].
#[derive(Clone, Debug, Error)]
#[error("`{0}` is not TILESxCOLUMNS, for instance 64x128")]
pub struct NoHead(String);

impl FromStr for Head {
    type Err = NoHead;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Head, NoHead> {
        let read = || {
            let (tiles, columns) = text.split_once('x')?;
            Some(Head { tiles: tiles.parse().ok()?, columns: columns.parse().ok()? })
        };
        read().ok_or_else(|| NoHead(text.into()))
    }
}

/// How an `all_reduce` moves its summands. All add in the order of ranks, in f32, and round once: the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllReduce {
    /// Summands go to the owners of their rows, sums to everybody: each link carries `2 (n - 1) / n` of the result.
    #[default]
    TwoPhase,
    /// Every rank reads the summands of all ranks and adds them for itself: one hop instead of two, `n - 1` results over
    /// each link. For few rows.
    OneShot,
    /// As in two phases, but columns have owners: block `j` of them belongs to rank `j % n`. For rows that are too few to be cut.
    ByColumns,
}

impl Default for Config {
    /// One rank on `sm_90a`.
    fn default() -> Config {
        Config {
            ranks: 1,
            target: target::SM_90A.name.to_string(),
            sms: BTreeMap::new(),
            reserved_sms: 0,
            block: [128, 256, 64],
            consumers: Consumers::Cooperative,
            tail: None,
            own_columns: None,
            head: None,
            gemm_stages: 4,
            copy_stages: 12,
            group_rows: 8,
            chunk_bytes: 512 * 1024,
            k_slices: 1,
            gather: Gather::Sms,
            all_reduce: AllReduce::TwoPhase,
            sums: Sums::Beside,
            split_k: 1,
            fold: Fold::Rank,
            tile_schedule: Schedule::Static,
        }
    }
}

/// Most stages that [`Config::set_block`] gives a product: more of them bring nothing sooner.
const MOST_STAGES: u32 = 6;

impl Config {
    /// Takes tiles of so many rows, columns and steps along k, and as many stages as fit beside their results.
    pub fn set_block(&mut self, block: [u32; 3]) {
        self.block = block;
        if let Some(target) = target::by_name(&self.target) {
            self.gemm_stages = settings::stages(block, target).clamp(2, MOST_STAGES);
        }
    }
}

/// Largest extent of a dimension: what binding allows.
pub const MAX_EXTENT: u64 = mk_syntax::MAX_DIM;

/// Why a checked pipeline has no plan.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LowerError {
    /// The pipeline is sound, but no pass lowers it.
    #[error("`{op}` cannot be lowered here: {why}\n  help: {help}")]
    Unsupported {
        /// The operation.
        op: String,
        /// What stands in the way.
        why: String,
        /// What works.
        help: String,
    },
    /// A setting that fits no plan.
    #[error("{what}\n  help: {help}")]
    Config {
        /// The setting and its value.
        what: String,
        /// What would fit.
        help: String,
    },
    /// More than the verifier decides.
    #[error(
        "the plan is too large to be verified: {what}\n  help: use smaller sizes, or several launches of less each"
    )]
    TooLarge {
        /// What there is too much of, and the limit.
        what: String,
    },
    /// A pass produced a plan that is not well formed.
    #[error("internal error: the lowered plan is not well formed: {0}")]
    Structure(StructureError),
    /// A pass produced a plan that does not verify.
    #[error("internal error: the lowered plan does not verify:\n{0}")]
    Verify(valid::Failure),
}

/// The plan of a pipeline, not yet verified.
///
/// # Errors
/// [`LowerError::Unsupported`] for pipelines outside what the passes cover, [`LowerError::Config`] for settings that do
/// not fit the target.
pub fn lower(program: &Program, bound: &Bound, config: &Config) -> Result<Plan, LowerError> {
    let mut shapes = (0..program.n_values()).filter_map(|i| bound.shape(ValueId::new(i)));
    if let Some(shape) = shapes.find(|shape| shape.iter().any(|n| *n > MAX_EXTENT)) {
        let what = format!("a tensor of shape {shape:?} has too large an extent");
        return Err(LowerError::Config { what, help: format!("use at most {MAX_EXTENT}") });
    }
    if !(1..=mk_abi::device::MAX_RANKS as u32).contains(&config.ranks) {
        let what = format!("a world of {} ranks", config.ranks);
        let help = format!("use 1 to {}", mk_abi::device::MAX_RANKS);
        return Err(LowerError::Config { what, help });
    }
    let mut graph = OpGraph::new(program, bound);
    fuse::epilogues(&mut graph);
    let kernel = select::kernel(&graph, config)?;
    let products_only = [
        ("sums", config.sums != Sums::Beside),
        ("split_k", config.split_k > 1),
        ("fold", config.fold != Fold::Rank),
        ("all_reduce", config.all_reduce != AllReduce::TwoPhase),
        ("k_slices", config.k_slices > 1),
        ("consumers", config.consumers != Consumers::Cooperative),
        ("tile_schedule", config.tile_schedule != Schedule::Static),
        ("own_columns", config.own_columns.is_some()),
        ("head", config.head.is_some()),
        ("tail", config.tail.is_some()),
    ];
    let set = products_only.iter().find(|(_, set)| *set);
    if let (true, Some((name, _))) = (kernel.gemms.is_empty(), set) {
        let what = format!("`{name}` is about matrix products, and there are none");
        let help = "leave it as it is by default".into();
        return Err(LowerError::Config { what, help });
    }
    settings::check_gather(&kernel, config)?;
    let mut draft = match (kernel.gemms.is_empty(), kernel.results[0].reduce) {
        (false, _) => gemm::tile(&kernel, config)?,
        (true, Some(how)) => reduce::alone(&kernel, how, config),
        (true, None) => gather::alone(&kernel, config),
    };
    signals::insert(&mut draft);
    let mut plan = roles::assign(draft, config)?;
    rename(&mut plan);
    plan.check_structure().map_err(|mut e| LowerError::Structure(e.swap_remove(0)))?;
    settings::check_ends(&plan)?;
    Ok(plan)
}

/// [`lower`], then [`valid::verify`]: what a kernel may be made from.
///
/// # Errors
/// As [`lower`]; also [`LowerError::TooLarge`]. A plan that does not verify is an error of the compiler itself.
pub fn compile(
    program: &Program,
    bound: &Bound,
    config: &Config,
) -> Result<(Plan, valid::Proof), LowerError> {
    let plan = lower(program, bound, config)?;
    let proof = valid::verify(&plan).map_err(not_verified)?;
    Ok((plan, proof))
}

fn not_verified(failure: valid::Failure) -> LowerError {
    let large = |v: &Violation| matches!(v, Violation::Limit { .. });
    match failure.violations.first() {
        Some(first) if failure.violations.iter().all(large) => {
            LowerError::TooLarge { what: first.to_string() }
        }
        _ => LowerError::Verify(failure),
    }
}

/// Text is read by name: loops do not have the names of the program's dimensions, and what kernels keep for themselves does not
/// have the names of the program's tensors.
fn rename(plan: &mut Plan) {
    let mut taken: BTreeSet<String> =
        plan.buffers.values().filter(|b| caller(b)).map(|b| b.name.clone()).collect();
    for (_, b) in plan.buffers.iter_mut().filter(|(_, b)| !caller(b)) {
        while !taken.insert(b.name.clone()) {
            b.name.push('_');
        }
    }
    let dims: Vec<String> = plan.dims.values().map(|d| d.name.clone()).collect();
    let rename = |name: &mut String| {
        while dims.contains(name) {
            name.push('_');
        }
    };
    for (_, f) in plan.families.iter_mut() {
        f.domain.iter_mut().chain(&mut f.inner).for_each(|(name, _)| rename(name));
        let accesses = f.accesses.iter_mut().filter_map(|a| a.each.as_mut());
        let waits = f.waits.iter_mut().filter_map(|w| w.each.as_mut());
        let posts = f.posts.iter_mut().filter_map(|p| p.each.as_mut());
        accesses.chain(waits).chain(posts).for_each(|each| rename(&mut each.var));
    }
}

/// Whether a buffer is a tensor of the program.
fn caller(b: &Buffer) -> bool {
    matches!(b.space, Space::In | Space::Out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_no_error_of_the_compiler() {
        let limit = || Violation::Limit { what: "words".into(), limit: 7 };
        let wrong = Violation::Capacity { place: "p".into(), message: "m".into() };
        let failure = |violations| valid::Failure { plan: "p".into(), at: None, violations };
        let error = not_verified(failure(vec![limit()]));
        assert!(
            matches!(&error, LowerError::TooLarge { what } if what.contains("words: more than 7"))
        );
        assert!(error.to_string().contains("help: use smaller sizes"));
        assert!(matches!(not_verified(failure(vec![limit(), wrong])), LowerError::Verify(_)));
    }
}
