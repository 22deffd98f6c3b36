//! What a traced kernel has beside what every kernel has: where stalls are added up, and what the host must know. The
//! device side is `templates/sync/trace.cuh`.

use super::{
    EmitError, Result,
    arch::carrier,
    context::Emitter,
    leaf::{Carrier, LeafEmission},
};
use minijinja::{Value, context};
use mk_abi::{TraceFamily, TraceLayout};
use mk_plan::{EdgeId, Entity, Expr, Family, Plan, Point, Schedule, SigId};

/// Records of a ring: at least, and at most (8192 records of all agents of 132 CTAs are 200 MB).
const RECORDS: (u32, u32) = (64, 8192);
/// Families and edges have 12 bits in a record.
const MAX_IDS: usize = 1 << 12;

/// The internal edges that are mbarriers, and in which of its two slots an agent adds up its cycles there.
///
/// # Errors
/// [`EmitError::Internal`] for an edge that its leaf's record does not have.
pub(super) fn stalls(plan: &Plan) -> Result<Vec<Value>> {
    let mut edges = Vec::new();
    for f in plan.families.values() {
        let Carrier::Agents(LeafEmission { ring: Some(ring), .. }) = carrier(plan, f) else {
            continue;
        };
        for e in &f.edges {
            edges.push((e.edge, ring.slot(e)?));
        }
    }
    edges.sort_unstable();
    edges.dedup();
    let say = |(edge, slot): (EdgeId, u32)| context! { edge => edge.to_string(), slot };
    Ok(edges.into_iter().map(say).collect())
}

/// What the host must know of a traced kernel.
///
/// # Errors
/// [`EmitError::Refused`] for more families or edges than a record can name.
pub(super) fn layout(e: &Emitter<'_>) -> Result<TraceLayout> {
    let plan = e.plan;
    let edges = plan.families.values().flat_map(Family::edge_ids).map(|e| e.index()).max();
    if plan.families.len() > MAX_IDS || edges.is_some_and(|e| e >= MAX_IDS) {
        return EmitError::refuse("trace", format!("records name {MAX_IDS} families and edges"));
    }
    let families = plan.families.iter().map(|(id, f)| TraceFamily {
        id: id.index() as u32,
        name: f.name.clone(),
        leaf: f.leaf.name().into(),
        edges: f.edges.iter().map(|e| (e.name.clone(), e.edge.index() as u32)).collect(),
    });
    let enters = |signal: SigId| {
        let mut enter = plan.families.values().filter(|f| f.leaf.enters());
        enter.any(|f| f.posts.iter().any(|p| p.signal == signal))
    };
    let waits = plan.families.values().flat_map(|f| &f.waits);
    Ok(TraceLayout {
        records: records(e)?,
        families: families.collect(),
        entry_edges: waits.filter(|w| enters(w.signal)).map(|w| w.edge.index() as u32).collect(),
    })
}

/// What the busiest agent of the busiest CTA writes, if that is not too much.
fn records(e: &Emitter<'_>) -> Result<u32> {
    let plan = e.plan;
    let times = |each: Option<&Expr>| match each {
        None => 1,
        Some(Expr::Const(n)) => (*n).max(0) as u32,
        Some(_) => plan.mesh.size(),
    };
    let mut most = 0_u32;
    for (id, _) in plan.roles.iter().filter(|(_, r)| r.ctas > 0) {
        let (mut sum, workers) = (8_u32, plan.workers(id));
        for (family, f) in plan.families.iter().filter(|(_, f)| f.role == id) {
            let mut iterations = 1;
            for task in e.points.tasks(family, 0, 1)? {
                iterations = iterations.max(e.points.inner(&task)?);
            }
            let iterations = u32::try_from(iterations).unwrap_or(u32::MAX);
            let waits = f.waits.iter().map(|w| {
                let each = times(w.each.as_ref().map(|x| &x.extent));
                if w.at == Point::Inner { each.saturating_mul(iterations) } else { each }
            });
            let posts = f.posts.iter().map(|p| times(p.each.as_ref().map(|x| &x.extent)));
            let each = waits.chain(posts).fold(1_u32, u32::saturating_add);
            // Who is free early takes more.
            let share = if f.schedule == Schedule::Dynamic { 4 } else { 1 };
            let tasks = e.n_tasks(family)?.div_ceil(workers).saturating_add(1);
            let tasks = tasks.saturating_mul(share);
            sum = sum.saturating_add(tasks.saturating_mul(each));
        }
        most = most.max(sum);
    }
    let (least, limit) = RECORDS;
    Ok(most.clamp(least, limit).next_power_of_two())
}
