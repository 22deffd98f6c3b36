//! Tasks that only wait and post, by one lane.

use super::record::{AgentEmission, Group, LeafEmission, Prepared, Seat, Spills, Warpgroups};
use crate::emit::{EmitError, Result, context::Emitter};
use minijinja::context;
use mk_plan::{Agent, Point, RoleKind};

pub(in crate::emit) const EMISSION: LeafEmission = LeafEmission {
    template: "signal",
    texts: &[("signal", include_str!("../../../templates/leaf/signal.cu.j2"))],
    warpgroups: Warpgroups::MOVING,
    ring: None,
    agents: &[AgentEmission {
        agent: Agent::Lead,
        seat: Seat::Lane(2),
        state: &[],
        function: "signal_lead",
        arguments: "<@{ name }@Hooks>(ctx, @{ name }@Hooks{params});",
    }],
    spills: Spills::NONE,
    prepare,
};

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    if e.plan.roles[g.head(e).role].kind != RoleKind::InterReduce || g.first_cta == 0 {
        let what = "signals have a role behind the first CTA, which announces the launch";
        return EmitError::refuse(g.head(e).name.clone(), what);
    }
    let mut families = Vec::new();
    for s in &g.slices {
        let f = &e.plan.families[s.id];
        if f.posts.iter().any(|p| p.at == Point::Start) {
            let what = "its posts come behind its waits";
            return EmitError::refuse(&f.name, what);
        }
        let before = e.waits(f, Agent::Lead, Point::Start)?;
        families.push(context! { before, after => e.posts(f), ..e.slice(*s) });
    }
    let (hooks, call, choices) = (context! {}, context! {}, Vec::new());
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices })
}
