//! Turns flows into signals, and guards peers' memory by the hand-shake of entry.
//!
//! Assumes that every access between ranks or families is either in a flow or to a caller's tensor. Leaves: each flow
//! has a signal, a post in its writer after the completion that its proxy needs, and a wait in each reader by the agent
//! that reads; each access to a peer's memory waits for the peer's entry into this launch, so that the peer's readers
//! of the launch before have ended.

use super::{
    draft::{Draft, Flow, Writer},
    error::{LowerError, internal},
    shape::ranks::{every_peer, peer},
};
use crate::ir::{
    Access, Agent, Completion, Each, Expr, FamId, Leaf, Mode, Operand, Point, Post, Proxy,
    RoleKind, Scope, SigId, Signal, Var, Wait,
};

/// Runs the pass.
///
/// # Errors
/// [`LowerError::Internal`] where a flow or an access names an operand that its leaf does not have.
pub(super) fn insert(draft: &mut Draft) -> Result<(), LowerError> {
    entry(draft)?;
    for id in draft.flow_order.clone() {
        let flow = draft.flows[id].clone();
        connect(draft, flow)?;
    }
    Ok(())
}

/// An access that needs a peer to have entered this launch.
struct Guarded {
    family: FamId,
    operand: Operand,
    peer: Expr,
    each: Option<Each>,
    when: Option<Expr>,
}

/// Who performs an operand's accesses, and how.
fn performer(draft: &Draft, family: FamId, operand: Operand) -> Option<(Agent, Proxy)> {
    let contract = draft.plan.families[family].leaf.contract();
    contract.operand(operand).map(|o| (o.agent, o.proxy))
}

/// Who waits for the data that an operand needs, and for which accesses. The consumers of a product have no time to: the loader
/// does, before it brings them anything, and for all that follows in the task.
fn waiter(draft: &Draft, family: FamId, operand: Operand) -> Option<(Agent, Proxy)> {
    if draft.plan.families[family].leaf == Leaf::Signal {
        return Some((Agent::Lead, Proxy::Generic));
    }
    let (agent, proxy) = performer(draft, family, operand)?;
    Some(if agent == Agent::Consumers { (Agent::Loader, Proxy::Async) } else { (agent, proxy) })
}

/// Who signals that an operand is written: the last agent of the leaf, which every other one flows into.
fn poster(draft: &Draft, family: FamId) -> Option<Agent> {
    draft.plan.families[family].leaf.contract().agents.last().copied()
}

fn entry(draft: &mut Draft) -> Result<(), LowerError> {
    let own = Expr::from(Var::RANK);
    let accesses =
        || draft.plan.families.iter().flat_map(|(id, f)| f.accesses.iter().map(move |a| (id, a)));
    // What peers read may be overwritten once they all have entered this launch.
    let read_by_peers = |a: &Access| {
        let theirs = |b: &Access| b.buffer == a.buffer && b.rank != own && b.mode == Mode::Read;
        a.mode == Mode::Write && accesses().any(|(_, b)| theirs(b))
    };
    let mut guarded: Vec<Guarded> = accesses()
        .filter(|(_, a)| a.rank != own && !read_by_peers(a))
        .map(|(id, a)| Guarded {
            family: id,
            operand: a.operand,
            peer: a.rank.clone(),
            each: a.each.clone(),
            when: a.when.clone(),
        })
        .collect();
    let peers = draft.world() - 1;
    for g in &mut guarded {
        // Of all ranks, the own one's kernel is this.
        let everybody = g.peer == Expr::from(Var::EACH) && g.when.is_none();
        if let (true, Some(each)) = (everybody, &mut g.each)
            && each.extent == Expr::Const(peers + 1)
        {
            g.peer = peer(Var::EACH.into(), peers + 1);
            each.extent = peers.into();
        }
        // Nor does a copy engine know of the own rank, by the plan: it is ordered by signals alone.
        if let Some((Agent::Engine, _)) = performer(draft, g.family, g.operand) {
            g.peer = Var::EACH.into();
            g.each = Some(Each { var: "p".into(), extent: (peers + 1).into() });
        }
    }
    let (peer, each) = every_peer(peers + 1);
    guarded.extend(accesses().filter(|(_, a)| read_by_peers(a)).map(|(id, a)| Guarded {
        family: id,
        operand: a.operand,
        peer: peer.clone(),
        each: Some(each.clone()),
        when: a.when.clone(),
    }));
    if guarded.is_empty() {
        return Ok(());
    }
    let world = Expr::Const(draft.world());
    let entered = draft.plan.signals.push(Signal {
        name: "entered".into(),
        net: false,
        shape: vec![world.clone()],
    });
    let enter =
        draft.family("enter", RoleKind::Prologue, Leaf::Enter, vec![], vec![], [] as [Access; 0]);
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
    for Guarded { family, operand, peer, each, when } in guarded {
        let (by, proxy) = performer(draft, family, operand).ok_or_else(|| {
            let name = &draft.plan.families[family].name;
            internal(format!("the leaf of {name:?} has no operand `{operand}`"))
        })?;
        let edge = draft.edge();
        draft.plan.families[family].waits.push(Wait {
            edge,
            signal: entered,
            index: vec![peer],
            count: 1.into(),
            lag: 0,
            by,
            proxy,
            scope: Scope::Sys,
            at: Point::Start,
            each,
            when,
        });
    }
    Ok(())
}

fn connect(draft: &mut Draft, flow: Flow) -> Result<(), LowerError> {
    let Flow { name, shape, from, count, to } = flow;
    let signal: SigId = draft.plan.signals.push(Signal { name: name.into(), net: false, shape });
    let own = Expr::from(Var::RANK);
    let here = |w: &Writer| {
        let host = matches!(performer(draft, w.family, w.operand), Some((_, Proxy::Host)));
        w.rank == own && !host
    };
    let scope = if from.iter().all(here) { Scope::Gpu } else { Scope::Sys };
    let unknown = |draft: &Draft, family: FamId, operand: Operand| {
        let family = &draft.plan.families[family].name;
        internal(format!("the leaf of {family:?} has no operand `{operand}` for the flow {name:?}"))
    };
    for w in from {
        let performed = performer(draft, w.family, w.operand);
        // A leaf that only signals has no operand.
        let proxy = match (performed, &draft.plan.families[w.family].leaf) {
            (Some((_, proxy)), _) => proxy,
            (None, Leaf::Signal) => Proxy::Generic,
            (None, _) => return Err(unknown(draft, w.family, w.operand)),
        };
        let last = poster(draft, w.family).ok_or_else(|| unknown(draft, w.family, w.operand))?;
        let after = w.after.unwrap_or(match proxy {
            Proxy::Async => Completion::GlobalWriteDone,
            Proxy::Generic | Proxy::Host => Completion::ProgramOrder,
        });
        let edge = draft.edge();
        draft.plan.families[w.family].posts.push(Post {
            edge,
            signal,
            index: w.word,
            rank: w.rank,
            add: w.amount,
            by: w.by.unwrap_or(last),
            after,
            scope,
            at: w.at,
            each: w.each,
            when: w.when,
        });
    }
    for r in to {
        let (by, proxy) = waiter(draft, r.family, r.operand)
            .ok_or_else(|| unknown(draft, r.family, r.operand))?;
        let by = r.by.unwrap_or(by);
        let edge = draft.edge();
        let sliced = r.word.iter().chain(&r.when).any(|e| e.mentions(Var::INNER));
        let at = r.at.unwrap_or(if sliced { Point::Inner } else { Point::Start });
        draft.plan.families[r.family].waits.push(Wait {
            edge,
            signal,
            index: r.word,
            count: count.clone(),
            lag: r.lag,
            by,
            proxy,
            scope,
            at,
            each: r.each,
            when: r.when,
        });
    }
    Ok(())
}
