//! Rule 6, the part that needs no unrolling, and co-residency (rule 2).
//!
//! Shared memory of every role, queue pairs, the fifo, who may run which leaf, and prefix sums that fit in 32 bits.
//! (Bounds of accesses and signal indexes, `order`, and expressions without a value are found while unrolling.)

use super::{report::Violation, site, world::World};
use mk_plan::{
    Agent, Operand, Plan, Points, RoleKind, TableSet, TableSource,
    target::{self, Target},
};
use std::collections::{BTreeMap, BTreeSet};

/// Checks the plan against its target.
pub(super) fn check(plan: &Plan) -> Vec<Violation> {
    let mut out = Vec::new();
    let mut tell =
        |place: String, message: String| out.push(Violation::Capacity { place, message });
    for (id, x) in plan.families.iter() {
        let place = || format!("{id} {:?}", x.name);
        let engine = plan.roles[x.role].kind == RoleKind::CopyEngine;
        if engine != x.leaf.is_host_copy() {
            let name = x.leaf.name();
            tell(
                place(),
                format!(
                    "{name} cannot run in a {} role: host_copy runs on the copy engine, and nothing else does",
                    plan.roles[x.role].kind.name()
                ),
            );
        }
        if x.leaf.sends() {
            match plan.nic {
                None => {
                    tell(place(), "sends through the network, but the plan has no `nic`".into())
                }
                Some(n) if n.fifo < 1 => {
                    tell(place(), "sends through the network, but the fifo has no entries".into())
                }
                Some(_) => {}
            }
            let to = x.accesses.iter().find(|a| a.operand == Operand::Dst).map(|a| &a.rank);
            for p in x.posts.iter().filter(|p| p.by == Agent::Receiver && Some(&p.rank) != to) {
                tell(
                    place(),
                    format!(
                        "{} is posted by the receiver, who is on the rank of `dst`, to another rank",
                        p.edge
                    ),
                );
            }
        }
    }
    for (id, t) in plan.tables.iter() {
        if let TableSource::Prefix { of, align } = &t.source {
            let max = match &plan.tables[*of].source {
                TableSource::Runtime { max, .. } => i64::from((*max).max(0)),
                TableSource::Const(v) => v.iter().map(|v| i64::from(*v)).max().unwrap_or(0).max(0),
                // Two-dimensional ones are not summed.
                TableSource::Prefix { .. }
                | TableSource::Blocks { .. }
                | TableSource::Bounds { .. }
                | TableSource::Meets { .. }
                | TableSource::Places { .. } => i64::from(i32::MAX),
            };
            let align = i64::from(*align);
            let total = ((max + align - 1) / align * align)
                .saturating_mul(i64::from(plan.tables[*of].shape[0]));
            if total > i64::from(i32::MAX) {
                tell(
                    format!("{id} {:?}", t.name),
                    format!("may reach {total}, which does not fit in 32 bits"),
                );
            }
        }
    }
    let none = TableSet::example(plan);
    match Points::new(plan, &none).rows_for_tma() {
        Ok(errors) => errors.into_iter().for_each(|e| tell(e.place, e.message)),
        Err(error) => out.push(Violation::Point(error)),
    }
    match target::by_name(&plan.target) {
        Some(target) => limits(plan, target, &mut out),
        None => {
            let known: Vec<_> = target::TARGETS.iter().map(|t| t.name).collect();
            out.push(Violation::Capacity {
                place: format!("target {}", plan.target),
                message: format!("is not known; known are {}", known.join(", ")),
            });
        }
    }
    out
}

fn limits(plan: &Plan, target: &Target, out: &mut Vec<Violation>) {
    let ctas = plan.roles.values().map(|r| r.ctas).fold(0u32, u32::saturating_add);
    if ctas > target.sms {
        out.push(Violation::NotResident { ctas, sms: target.sms, target: target.name.into() });
    }
    for (role, r) in plan.roles.iter() {
        let families = plan.families.iter().filter(|(_, x)| x.role == role);
        let most = families.map(|(id, x)| (x.leaf.contract().smem_bytes, id)).max_by_key(|m| m.0);
        let Some((bytes, id)) = most else { continue };
        let room = target.smem_bytes.saturating_sub(target.smem_reserved_bytes);
        if bytes > room {
            out.push(Violation::Capacity {
                place: format!("{role} {}", r.kind.name()),
                message: format!(
                    "{id} {:?} needs {bytes} bytes of shared memory; {} has {room} beside the {} reserved",
                    plan.families[id].name, target.name, target.smem_reserved_bytes
                ),
            });
        }
    }
}

/// Queue pairs: one for each rank that a rank sends to.
pub(super) fn queue_pairs(world: &World<'_>) -> Vec<Violation> {
    let Some(target) = target::by_name(&world.plan.target) else { return Vec::new() };
    let mut peers: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
    let mut out = Vec::new();
    for class in &world.classes {
        for a in &class.accs {
            let t = &class.tasks[a.task as usize];
            let x = &world.plan.families[t.family];
            if !x.leaf.sends() || x.accesses[a.line as usize].operand != Operand::Dst {
                continue;
            }
            let to = world.boxes.all[a.boxed as usize].rank;
            if peers.entry(t.rank).or_default().insert(to) && to == t.rank as usize {
                out.push(Violation::Capacity {
                    place: site::family(world, t.family),
                    message: format!("rank {to} sends to itself: no queue pair leads there"),
                });
            }
        }
    }
    let most = peers.iter().map(|(r, p)| (p.len(), *r)).max();
    if let Some((n, rank)) = most
        && n > target.max_queue_pairs as usize
    {
        out.push(Violation::Capacity {
            place: "nic".into(),
            message: format!(
                "rank {rank} sends to {n} ranks, and the card takes {} queue pairs",
                target.max_queue_pairs
            ),
        });
    }
    out
}
