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
    ir::{Plan, StructureError},
    target,
    valid::{self, Violation},
};
use mk_syntax::{Bound, Program, ValueId};
use std::{collections::BTreeMap, fmt, str::FromStr};
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
    /// Which CTA runs which tile of a product, which sum, and which copy through registers: every so many each, or whoever is free takes
    /// the next. CTAs are not equally fast where tiles leave for peers.
    pub tile_schedule: Schedule,
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
            gemm_stages: 4,
            copy_stages: 12,
            group_rows: 8,
            chunk_bytes: 512 * 1024,
            k_slices: 1,
            gather: Gather::Sms,
            all_reduce: AllReduce::TwoPhase,
            sums: Sums::Beside,
            split_k: 1,
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

/// Largest extent of a dimension: indexes are 32-bit, and extents are rounded up to whole blocks.
pub const MAX_EXTENT: u64 = 1 << 30;

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
        ("all_reduce", config.all_reduce != AllReduce::TwoPhase),
        ("k_slices", config.k_slices > 1),
        ("consumers", config.consumers != Consumers::Cooperative),
        ("tile_schedule", config.tile_schedule != Schedule::Static),
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
    rename_loops(&mut plan);
    plan.check_structure().map_err(|mut e| LowerError::Structure(e.swap_remove(0)))?;
    settings::check_ends(&plan)?;
    Ok(plan)
}

/// [`lower`], then [`valid::verify`]: what a kernel may be made from. A plan with a run-time dimension is verified at its
/// bound, at 1, and at the values around whole blocks and equal shards.
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
    if let Some((dim, max)) = plan.runtime_dim() {
        for value in runtime_samples(max, config) {
            valid::verify(&plan.at(dim, value)).map_err(not_verified)?;
        }
    }
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

/// Values of a run-time dimension at which a plan is verified, beside its bound.
///
/// A plan has the same tasks, waits and posts for every value; the value decides how many rows each task covers. Which
/// accesses overlap changes only where a block of rows becomes empty or a shard comes short, so these are values on both
/// sides of such places. Any other can be verified with [`Plan::at`].
pub fn runtime_samples(max: i32, config: &Config) -> Vec<i32> {
    let (world, block) = (config.ranks as i32, config.block[0] as i32);
    let mut out = vec![max / 2 + 1];
    let mut corners = vec![1, world, block, block * world, max / block * block];
    // Finished rows of an all-reduce.
    corners.push(reduce::COPIED_ROWS * world);
    if config.sums == Sums::After || config.split_k > 1 || config.tail.is_some_and(|t| t.parts > 1)
    {
        // Sums in flatter tiles.
        corners.extend([8, 16, 32, 64, 128].map(|height| height * world));
    }
    if config.all_reduce != AllReduce::TwoPhase {
        // Rows that are not cut by owner, and tiles in which sums are copied.
        corners.extend([8, 16, 32, 64, 128, 256]);
    }
    if let Some(tail) = config.tail {
        let tail = i32::try_from(tail.blocks).unwrap_or(i32::MAX).saturating_mul(block);
        corners.push((max / world / block * block).saturating_sub(tail).saturating_mul(world));
    }
    for corner in corners {
        out.extend([corner.saturating_sub(1), corner, corner.saturating_add(1)]);
    }
    out.retain(|v| (1..max).contains(v));
    out.sort_unstable();
    out.dedup();
    out
}

/// Loops do not have the names of the program's dimensions: text is read by name.
fn rename_loops(plan: &mut Plan) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_no_error_of_the_compiler() {
        let limit = || Violation::Limit { what: "words".into(), limit: 7 };
        let wrong = Violation::Capacity { place: "p".into(), message: "m".into() };
        let failure = |violations| valid::Failure { plan: "p".into(), violations };
        let error = not_verified(failure(vec![limit()]));
        assert!(
            matches!(&error, LowerError::TooLarge { what } if what.contains("words: more than 7"))
        );
        assert!(error.to_string().contains("help: use smaller sizes"));
        assert!(matches!(not_verified(failure(vec![limit(), wrong])), LowerError::Verify(_)));
    }

    /// Both sides of every place where a block of rows becomes empty.
    #[test]
    fn run_time_rows_are_sampled_around_whole_blocks() {
        let around = |config: &Config, rows: i32| {
            let samples = runtime_samples(5000, config);
            (rows - 1..=rows + 1).all(|n| samples.contains(&n))
        };
        let config = Config { ranks: 3, ..Config::default() };
        // Tiles of products, and copies of finished rows.
        assert!(around(&config, 128) && around(&config, 3 * 128) && around(&config, 3 * 32));
        assert!(!around(&config, 3 * 64));
        let after = Config { sums: Sums::After, ..config };
        for height in [8, 16, 32, 64, 128] {
            assert!(around(&after, 3 * height), "{height}");
        }
    }
}
