//! From the op graph to a tile plan: the passes, in the order in which they run.

mod check;
mod draft;
mod error;
mod facts;
mod fuse;
mod roles;
mod select;
mod shape;
mod signals;
mod tile;
mod ways;

use crate::{
    graph::OpGraph,
    ir::Plan,
    settings::{self, Config, Facts},
    target,
    valid::{self, Violation},
};
use mk_syntax::{Bound, Program, ValueId};

pub use error::LowerError;
pub use roles::{DEFAULT_COPY_SMS, DEFAULT_REDUCE_SMS};

/// Largest extent of a dimension: indexes are 32-bit, and extents are rounded up to whole blocks.
pub const MAX_EXTENT: u64 = 1 << 30;

/// The kernel of a pipeline: what settings and plans are made for.
fn select(
    program: &Program,
    bound: &Bound,
    ranks: u32,
) -> Result<shape::kernel::Kernel, LowerError> {
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
    let mut draft = tile::families(&kernel, config, target)?;
    signals::insert(&mut draft)?;
    let mut plan = roles::assign(draft, config)?;
    rename_loops(&mut plan);
    plan.check_structure().map_err(|mut e| LowerError::Structure(e.swap_remove(0)))?;
    tile::check_ends(&plan, config)?;
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
        let failure = |violations| valid::Failure { plan: "p".into(), at: None, violations };
        let error = not_verified(failure(vec![limit()]));
        assert!(
            matches!(&error, LowerError::TooLarge { what } if what.contains("words: more than 7"))
        );
        assert!(error.to_string().contains("help: use smaller sizes"));
        assert!(matches!(not_verified(failure(vec![limit(), wrong])), LowerError::Verify(_)));
    }
}
