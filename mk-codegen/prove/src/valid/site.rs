//! Names for things of the unrolled plan, as counterexamples print them.

use super::{
    actor::{Actor, Site, Touch},
    world::{AccRec, Class, World},
};
use mk_plan::{Agent, Entity, FamId, Region, SigId, Task};

/// `sig1[0, 2] of rank 3`.
pub(super) fn word(world: &World<'_>, word: u32) -> String {
    let (rank, signal, index): (usize, SigId, Vec<i64>) = world.words.name(word);
    format!("{signal}{index:?} of rank {rank}")
}

/// An agent of a task at a step.
pub(super) fn task(
    world: &World<'_>,
    class: &Class,
    epoch: u32,
    id: u32,
    agent: Agent,
    step: u32,
) -> Site {
    let t = &class.tasks[id as usize];
    let mut site = plain(world, t.family, t.rank as usize, agent, epoch, &t.domain);
    let x = &world.plan.families[t.family];
    if let Some((name, _)) = &x.inner
        && step > 0
        && step + 1 < t.steps
    {
        site.tile.push((name.clone(), i64::from(step) - 1));
    }
    site
}

/// An access.
pub(super) fn access(world: &World<'_>, class: &Class, epoch: u32, a: &AccRec) -> Site {
    let family = class.tasks[a.task as usize].family;
    let mut site = task(world, class, epoch, a.task, world.info(family).agent(a.agent), a.step);
    let boxed = &world.boxes.all[a.boxed as usize];
    site.touch = Some(Touch {
        operand: world.plan.families[family].accesses[a.line as usize].operand,
        mode: a.mode,
        buffer: boxed.buffer,
        buffer_name: world.plan.buffers[boxed.buffer].name.clone(),
        rank: boxed.rank,
        region: boxed.dims.to_vec(),
        version: a.version,
    });
    site
}

/// An access as one side of a counterexample.
pub(super) fn actor(world: &World<'_>, epoch: u32, a: &AccRec) -> Box<Actor> {
    Box::new(Actor::Task(access(world, world.class(epoch), epoch, a)))
}

/// An access that has no record because it lies outside its buffer.
pub(super) fn outside(
    world: &World<'_>,
    family: FamId,
    at: &Task,
    line: usize,
    region: &Region,
    epoch: u32,
) -> Site {
    let x = &world.plan.families[family];
    let a = &x.accesses[line];
    let agent = world.info(family).contract.operand(a.operand).map_or(Agent::Lead, |o| o.agent);
    let mut site = plain(world, family, at.rank(), agent, epoch, at.domain());
    site.touch = Some(Touch {
        operand: a.operand,
        mode: a.mode,
        buffer: a.buffer,
        buffer_name: world.plan.buffers[a.buffer].name.clone(),
        rank: region.rank,
        region: region.dims.clone(),
        version: region.version,
    });
    site
}

fn plain(
    world: &World<'_>,
    family: FamId,
    rank: usize,
    agent: Agent,
    epoch: u32,
    domain: &[i64],
) -> Site {
    let x = &world.plan.families[family];
    let kind = world.plan.roles[x.role].kind;
    let tile = x.domain.iter().zip(domain).map(|((name, _), v)| (name.clone(), *v));
    Site {
        rank,
        role: (x.role, kind),
        agent,
        family,
        family_name: x.name.clone(),
        tile: tile.collect(),
        epoch,
        touch: None,
    }
}

/// `fam2 "gemm"`.
pub(super) fn family(world: &World<'_>, id: FamId) -> String {
    debug_assert!(id.index() < world.plan.families.len());
    format!("{id} {:?}", world.plan.families[id].name)
}
