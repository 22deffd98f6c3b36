//! Turns flows into signals, and guards peers' memory by the hand-shake of entry.
//!
//! Assumes that every access between ranks or families is either in a flow or to a caller's tensor. Leaves: each flow
//! has a signal, a post in its writer after the completion that its proxy needs, and a wait in each reader by the agent
//! that reads; each access to a peer's memory waits for the peer's entry into this launch, so that the peer's readers
//! of the launch before have ended.

use super::draft::{Draft, Flow};
use crate::ir::{
    Access, Agent, Completion, Each, Expr, FamId, Leaf, Operand, Point, Post, Proxy, RoleKind,
    Scope, SigId, Signal, Var, Wait,
};

/// Runs the pass.
pub(super) fn insert(draft: &mut Draft) {
    entry(draft);
    for flow in std::mem::take(&mut draft.flows) {
        connect(draft, flow);
    }
}

/// Who performs an operand's accesses, and how.
fn performer(draft: &Draft, family: FamId, operand: Operand) -> Option<(Agent, Proxy)> {
    let contract = draft.plan.families[family].leaf.contract();
    contract.operand(operand).map(|o| (o.agent, o.proxy))
}

/// Who signals that an operand is written: the last agent of the leaf, which every other one flows into.
fn poster(draft: &Draft, family: FamId) -> Option<Agent> {
    draft.plan.families[family].leaf.contract().agents.last().copied()
}

fn entry(draft: &mut Draft) {
    let own = Expr::from(Var::RANK);
    let remote: Vec<(FamId, Access)> = draft
        .plan
        .families
        .iter()
        .flat_map(|(id, f)| f.accesses.iter().map(move |a| (id, a)))
        .filter(|(_, a)| a.rank != own)
        .map(|(id, a)| (id, a.clone()))
        .collect();
    if remote.is_empty() {
        return;
    }
    let world = Expr::Const(draft.world());
    let entered =
        draft.plan.signals.push(Signal { name: "entered".into(), shape: vec![world.clone()] });
    let enter = draft.family("enter", RoleKind::Prologue, Leaf::Enter, vec![], vec![], vec![]);
    let edge = draft.edge();
    draft.plan.families[enter].posts.push(Post {
        edge,
        signal: entered,
        index: vec![Var::RANK.into()],
        rank: Var::EACH.into(),
        add: 1.into(),
        by: Agent::Lead,
        after: Completion::ProgramOrder,
        scope: Scope::Sys,
        at: Point::Start,
        each: Some(Each { var: "p".into(), extent: world }),
        when: None,
    });
    for (family, access) in remote {
        let Some((by, proxy)) = performer(draft, family, access.operand) else { continue };
        let edge = draft.edge();
        draft.plan.families[family].waits.push(Wait {
            edge,
            signal: entered,
            index: vec![access.rank],
            count: 1.into(),
            lag: 0,
            by,
            proxy,
            scope: Scope::Sys,
            at: Point::Start,
            each: access.each,
            when: access.when,
        });
    }
}

fn connect(draft: &mut Draft, flow: Flow) {
    let Flow { name, shape, from, through, post: (index, rank, each), count, to } = flow;
    let signal: SigId = draft.plan.signals.push(Signal { name: name.into(), shape });
    let scope = if rank == Expr::from(Var::RANK) { Scope::Gpu } else { Scope::Sys };
    if let (Some((_, proxy)), Some(by)) = (performer(draft, from, through), poster(draft, from)) {
        let after = match proxy {
            Proxy::Async => Completion::GlobalWriteDone,
            Proxy::Generic | Proxy::Host => Completion::ProgramOrder,
        };
        let edge = draft.edge();
        draft.plan.families[from].posts.push(Post {
            edge,
            signal,
            index,
            rank,
            add: 1.into(),
            by,
            after,
            scope,
            at: Point::End,
            each,
            when: None,
        });
    }
    for (family, operand, index) in to {
        let Some((by, proxy)) = performer(draft, family, operand) else { continue };
        let edge = draft.edge();
        draft.plan.families[family].waits.push(Wait {
            edge,
            signal,
            index,
            count: count.clone(),
            lag: 0,
            by,
            proxy,
            scope,
            at: Point::Start,
            each: None,
            when: None,
        });
    }
}
