//! The best of earlier runs and of this one.

use crate::{failure::Result, terminal::note_on_stderr};
use mk::{
    Bound, Program,
    function::reserved_sms,
    runtime::{World, jit::JitOptions},
    settings::Config,
    tune::{Cache, Key, Trial, Winner},
};
use mk_harness::Case;

/// Leaves SMs to the other ranks of a GPU.
pub(super) fn fit(configs: &mut [Config], world: &World) {
    configs.iter_mut().for_each(|c| c.reserved_sms = reserved_sms(world, &c.target, 0));
}

/// Keeps the best.
pub(super) fn store(world: &World, case: Case<'_>, trials: &[Trial]) -> Result<()> {
    let best = trials.iter().find_map(|t| Some((t, t.ms()?)));
    let (Some((best, ms)), Some(cache)) = (best, Cache::new(&JitOptions::default())) else {
        return Ok(());
    };
    let gpu = world.gpu_name(0)?;
    let (ranks, target) = (best.config.ranks, &best.config.target);
    let key = Key::new(case.program, case.bound, ranks, target, &gpu);
    let winner = Winner { config: best.config.clone(), ms: ms.into() };
    if let Err(error) = cache.store(&key, &winner) {
        note_on_stderr(format!("the best was not kept: {error}"));
    }
    Ok(())
}

/// What an earlier run kept.
pub(super) fn winner(
    world: &World,
    program: &Program,
    bound: &Bound,
    config: &Config,
) -> Option<Config> {
    let (cache, gpu) = (Cache::new(&JitOptions::default())?, world.gpu_name(0).ok()?);
    let key = Key::new(program, bound, config.ranks, &config.target, &gpu);
    // A damaged file is written anew.
    let mut config = cache.recall(&key).ok()??.config;
    fit(std::slice::from_mut(&mut config), world);
    Some(config)
}
