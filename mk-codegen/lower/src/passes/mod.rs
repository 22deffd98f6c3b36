//! From the op graph to a tile plan: the passes, in the order in which they run.

mod claims;
mod commute;
mod draft;
mod error;
mod fits;
mod fuse;
mod limits;
mod proof;
mod roles;
mod scaled;
mod shape;
mod signals;
mod strategies;
mod tile;
mod world;

use crate::{
    graph::OpGraph,
    settings::{self, Config, Facts},
};
use mk_plan::{Buffer, Plan, Space};
use mk_prove::{equivalence, valid};
use mk_syntax::{Bound, Program};
use shape::kernel::Kernel;
use std::collections::BTreeSet;

pub use error::LowerError;
pub use proof::{Claim, NotProved, Shown, Stage};
pub use roles::{DEFAULT_COPY_SMS, DEFAULT_REDUCE_SMS};
pub use scaled::{Smaller, smaller};
use world::World;

/// The numbers of a world of so many ranks that share experts.
fn on(program: &Program, bound: &Bound, ranks: u32) -> Result<Bound, LowerError> {
    bound.on(program, ranks).map_err(|e| LowerError::OutOfRange {
        what: "room for dispatched rows".into(),
        help: e.iter().next().map_or_else(String::new, |e| format!("{e}: {}", e.help())),
    })
}

/// The ranks that share experts.
fn sharing(program: &Program, config: &Config) -> u32 {
    program.ranks_of_experts(config.ranks, &config.mesh)
}

/// The kernel of a pipeline on so many ranks along each of its axes.
fn claimed(program: &Program, bound: &Bound, sizes: &[i32]) -> Result<Kernel, LowerError> {
    let ranks = sizes.iter().map(|n| *n as u32).product();
    if !(1..=mk_abi::device::MAX_RANKS as u32).contains(&ranks) {
        let what = format!("a world of {ranks} ranks");
        let help = format!("use 1 to {}", mk_abi::device::MAX_RANKS);
        return Err(LowerError::OutOfRange { what, help });
    }
    let sharing = if program.axis_of_experts() == Some(0) { sizes[0] as u32 } else { ranks };
    let bound = &on(program, bound, sharing)?;
    let mut graph = OpGraph::new(program, bound);
    claims::share_tokens(&mut graph, sizes);
    fuse::epilogues(&mut graph);
    commute::gathers(&mut graph);
    claims::kernel(&graph, sizes)
}

/// What decides which settings a pipeline can have.
///
/// # Errors
/// As [`lower`], for pipelines without a kernel.
pub fn facts(program: &Program, bound: &Bound, ranks: u32) -> Result<Facts, LowerError> {
    let program = world::over_one_axis(program)?;
    Ok(claims::facts(&claimed(&program, bound, &[ranks as i32])?, ranks, |_| false))
}

/// [`facts`] on a mesh of `ranks` ranks, axes by name; without axes, on ranks along the pipeline's only one.
///
/// # Errors
/// As [`facts`].
pub fn facts_on(
    program: &Program,
    bound: &Bound,
    ranks: u32,
    mesh: &[(String, u32)],
) -> Result<Facts, LowerError> {
    if mesh.is_empty() {
        return facts(program, bound, ranks);
    }
    let config = Config { ranks, mesh: mesh.to_vec(), ..Config::default() };
    let (world, program, config) = &World::of(program, bound, &config)?;
    Ok(claims::facts(&claimed(program, bound, &world.sizes())?, config.ranks, |_| false))
}

/// The plan of a pipeline, not yet verified.
///
/// # Errors
/// [`LowerError::Unsupported`] for pipelines outside what the passes cover, [`LowerError::Setting`] for settings that
/// do not fit, [`LowerError::OutOfRange`] for worlds, targets and extents that no kernel has, [`LowerError::TooLarge`]
/// for sizes that no plan has.
pub fn lower(program: &Program, bound: &Bound, config: &Config) -> Result<Plan, LowerError> {
    let plan = lower_of_any_capacity(program, bound, config)?;
    let (_, program, config) = &World::of(program, bound, config)?;
    equivalence::has_room(&plan, program, &on(program, bound, sharing(program, config))?)
        .map_err(error::no_room)?;
    Ok(plan)
}

/// As [`lower`], also where no routing of all tokens fits: of plans that stand for larger ones.
fn lower_of_any_capacity(
    program: &Program,
    bound: &Bound,
    config: &Config,
) -> Result<Plan, LowerError> {
    let (world, program, config) = &World::of(program, bound, config)?;
    let kernel = claimed(program, bound, &world.sizes())?;
    let along = |axis: usize| world.nodes.get(axis);
    let inside = |axis| config.nodes > 1 && along(axis).is_some_and(|nodes| nodes.count() == 1);
    let facts = claims::facts(&kernel, config.ranks, inside);
    let config = &settings::normalise(config, &facts, world.target)?;
    let mut draft = tile::families(&kernel, config, world)?;
    limits::check(&draft)?;
    signals::insert(&mut draft)?;
    let plan = finish(draft, config)?;
    tile::check_ends(&plan, config, &facts)?;
    Ok(plan)
}

/// The plan of a draft that has its signals.
fn finish(draft: draft::Draft, config: &Config) -> Result<Plan, LowerError> {
    let mut plan = roles::assign(draft, config)?;
    rename(&mut plan);
    plan.check_structure().map_err(|mut errors| {
        let large = errors.iter().all(|e| e.too_large);
        let first = errors.swap_remove(0);
        if large { error::too_large(first.to_string()) } else { LowerError::Structure(first) }
    })?;
    match valid::too_much(&plan) {
        Some(limit) => Err(error::too_large(limit.to_string())),
        None => Ok(plan),
    }
}

/// [`lower`], then [`prove`]: what a kernel may be made from.
///
/// # Errors
/// As [`lower`] and [`prove`].
pub fn compile(
    program: &Program,
    bound: &Bound,
    config: &Config,
) -> Result<(Plan, valid::Proof), LowerError> {
    let bound = &on(program, bound, sharing(program, config))?;
    let plan = lower(program, bound, config)
        .map_err(|error| error.with_what_fits(program, bound, config))?;
    let proof = prove(program, bound, config, &plan)?;
    Ok((plan, proof))
}

/// [`Claim::prove`] of the plan that [`lower`] made of the same. A plan that routes many tokens is proved and evaluated
/// by smaller ones: [`smaller`].
///
/// # Errors
/// [`LowerError::TooLarge`]. A plan that does not verify, or computes something else than the pipeline, is an error of
/// the compiler itself.
pub fn prove(
    program: &Program,
    bound: &Bound,
    config: &Config,
    plan: &Plan,
) -> Result<valid::Proof, LowerError> {
    let bound = &on(program, bound, sharing(program, config))?;
    let smaller = smaller(program, bound, config, plan);
    let shown = Claim::made(plan, program, bound, smaller.as_ref()).prove()?;
    Ok(shown.proof)
}

/// Text is read by name: loops do not have the names of the program's dimensions, and the kernel's own buffers do not
/// have the names of the program's tensors.
fn rename(plan: &mut Plan) {
    let caller = |b: &Buffer| matches!(b.space, Space::In | Space::Out);
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
