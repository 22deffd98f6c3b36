//! From the op graph to a tile plan: the passes, in the order in which they run.

mod columns;
mod draft;
mod ends;
mod facts;
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
mod signals;

use crate::{
    graph::OpGraph,
    ir::{Plan, StructureError},
    settings::{self, AllReduce, Config, Facts, Reduction, Refusal},
    target,
    valid::{self, Violation},
};
use mk_syntax::{Bound, Program, ValueId};
use thiserror::Error;

pub use roles::{DEFAULT_COPY_SMS, DEFAULT_REDUCE_SMS};

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
    /// A setting that this pipeline, or its other settings, cannot have.
    #[error(transparent)]
    Setting(#[from] Refusal),
    /// A world, a target or a tensor outside what one kernel can have.
    #[error("{what}\n  help: {help}")]
    OutOfRange {
        /// The value.
        what: String,
        /// What would be accepted.
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
    /// A pass met something that the passes before it do not leave.
    #[error("internal error: {what}")]
    Internal {
        /// The thing, and its place.
        what: String,
    },
    /// A pass produced a plan that is not well formed.
    #[error("internal error: the lowered plan is not well formed: {0}")]
    Structure(StructureError),
    /// A pass produced a plan that does not verify.
    #[error("internal error: the lowered plan does not verify:\n{0}")]
    Verify(valid::Failure),
}

/// The kernel of a pipeline: what settings and plans are made for.
fn select(program: &Program, bound: &Bound, ranks: u32) -> Result<select::Kernel, LowerError> {
    let mut shapes = (0..program.n_values()).filter_map(|i| bound.shape(ValueId::new(i)));
    if let Some(shape) = shapes.find(|shape| shape.iter().any(|n| *n > MAX_EXTENT)) {
        let what = format!("a tensor of shape {shape:?} has too large an extent");
        return Err(LowerError::OutOfRange { what, help: format!("use at most {MAX_EXTENT}") });
    }
    if !(1..=mk_abi::device::MAX_RANKS as u32).contains(&ranks) {
        let what = format!("a world of {ranks} ranks");
        let help = format!("use 1 to {}", mk_abi::device::MAX_RANKS);
        return Err(LowerError::OutOfRange { what, help });
    }
    let mut graph = OpGraph::new(program, bound);
    fuse::epilogues(&mut graph);
    select::kernel(&graph, ranks)
}

/// What decides which settings a pipeline can have.
///
/// # Errors
/// As [`lower`], for pipelines without a kernel.
pub fn facts(program: &Program, bound: &Bound, ranks: u32) -> Result<Facts, LowerError> {
    Ok(facts::of(&select(program, bound, ranks)?, ranks))
}

/// The plan of a pipeline, not yet verified.
///
/// # Errors
/// [`LowerError::Unsupported`] for pipelines outside what the passes cover, [`LowerError::Setting`] for settings that do
/// not fit, [`LowerError::OutOfRange`] for worlds, targets and extents that no kernel has.
pub fn lower(program: &Program, bound: &Bound, config: &Config) -> Result<Plan, LowerError> {
    let target = target::by_name(&config.target).ok_or_else(|| {
        let known: Vec<_> = target::TARGETS.iter().map(|t| t.name).collect();
        let what = format!("target `{}` is not known", config.target);
        LowerError::OutOfRange { what, help: format!("use {}", known.join(", ")) }
    })?;
    let kernel = select(program, bound, config.ranks)?;
    let config = &settings::normalise(config, &facts::of(&kernel, config.ranks), target)?;
    let mut draft = match (kernel.gemms.is_empty(), kernel.results[0].reduce) {
        (false, _) => gemm::tile(&kernel, config, target),
        (true, Some(how)) => reduce::alone(&kernel, how, config, target),
        (true, None) => gather::alone(&kernel, config, target),
    };
    signals::insert(&mut draft);
    let mut plan = roles::assign(draft, config)?;
    rename_loops(&mut plan);
    plan.check_structure().map_err(|mut e| LowerError::Structure(e.swap_remove(0)))?;
    ends::check(&plan, config)?;
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
    if config.reduction == Reduction::AfterLastWave
        || config.split_k > 1
        || config.last_wave.is_some_and(|t| t.parts > 1)
    {
        // Sums in flatter tiles.
        corners.extend([8, 16, 32, 64, 128].map(|height| height * world));
    }
    if config.all_reduce != AllReduce::TwoShot {
        // Rows that are not cut by owner, and tiles in which sums are copied.
        corners.extend([8, 16, 32, 64, 128, 256]);
    }
    if let Some(tail) = config.last_wave {
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
        let after = Config { reduction: Reduction::AfterLastWave, ..config };
        for height in [8, 16, 32, 64, 128] {
            assert!(around(&after, 3 * height), "{height}");
        }
    }
}
