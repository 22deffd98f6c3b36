//! A prediction as the timeline of a launch, so that it can be drawn like one, and above one.

use mk_abi::KernelSource;
use mk_codegen::{
    cost::Prediction,
    plan::{Consumers, Entity, Leaf, MmaTile, Plan},
    trace::{Agent, Alignment, RankClock, Span, Trace, What, Word},
};
use std::collections::HashMap;

/// What the cost model predicts of a traced kernel, as [`mk_codegen::trace::svg`] takes it: tasks of agents that
/// compute or write, and the time before each in which its CTA was free and had to wait. Without posts and entries,
/// which the model does not place, and without copy engines, which are in no CTA. `None` for a kernel without tracing.
pub fn timeline(plan: &Plan, source: &KernelSource, prediction: &Prediction) -> Option<Trace> {
    let layout = source.trace.as_ref()?;
    let ranks = source.world_size;
    let mut spans = Vec::with_capacity(2 * prediction.spans.len());
    for (rank, cta) in (0..ranks).flat_map(|r| (0..source.grid).map(move |c| (r, c))) {
        let end = 1e9 * prediction.total_s;
        spans.push(Span { rank, cta, agent: Agent::Frame, what: What::Cta, begin: 0.0, end });
    }
    // Tiles of warpgroups that take turns, by CTA.
    let mut turns: HashMap<(u32, u32), u32> = HashMap::new();
    for s in &prediction.spans {
        let family = &plan.families[s.family];
        if family.leaf.is_host_copy() || family.leaf == Leaf::Signal {
            continue;
        }
        let (rank, cta, id) = (s.rank, s.cta, s.family.index() as u32);
        let mut add = |agent, what, begin: f64, end: f64| {
            spans.push(Span { rank, cta, agent, what, begin: 1e9 * begin, end: 1e9 * end });
        };
        if s.begin_s > s.free_s
            && let Some(wait) = family.waits.first()
        {
            let (edge, on) = (wait.edge.index() as u32, Word { rank, offset: 0 });
            let what = What::Wait { family: id, edge, task: s.task, on, before: false };
            add(Agent::Loader, what, s.free_s, s.begin_s);
        }
        let task = What::Task { family: id, task: s.task, stalled: [0.0; 2] };
        match family.leaf.product() {
            _ if family.leaf.enters() => {}
            Some(MmaTile { consumers: Consumers::PingPong, .. }) => {
                let tile = turns.entry((rank, cta)).or_default();
                add(Agent::Compute(*tile % 2), task, s.begin_s, s.main_end_s);
                *tile += 1;
            }
            Some(_) => {
                add(Agent::Compute(0), task, s.begin_s, s.main_end_s);
                add(Agent::Compute(1), task, s.begin_s, s.main_end_s);
            }
            _ if family.edges.is_empty() => add(Agent::Compute(0), task, s.begin_s, s.end_s),
            _ => add(Agent::Storer, task, s.begin_s, s.end_s),
        }
    }
    let place = |s: &Span| (s.rank, s.cta, s.agent);
    spans.sort_by(|a, b| place(a).cmp(&place(b)).then(a.end.total_cmp(&b.end)));
    Some(Trace {
        name: source.name.clone(),
        world: ranks,
        epoch: 0,
        roles: source.roles.clone(),
        families: layout.families.clone(),
        edges: source.edges.clone(),
        entry_edges: layout.entry_edges.clone(),
        clocks: (0..ranks)
            .map(|rank| RankClock { rank, tick_ns: 0, mhz: 0.0, lost: 0, disordered: 0 })
            .collect(),
        alignment: Alignment {
            offsets_ns: vec![0.0; ranks as usize],
            bounds_ns: vec![(0.0, 0.0); ranks as usize],
            shared: true,
            contradiction_ns: 0.0,
        },
        spans,
    })
}
