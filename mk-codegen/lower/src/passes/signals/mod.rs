//! Turns flows into signals, and guards peers' memory by the hand-shake of entry.
//!
//! Assumes that every access between ranks or families is either in a flow or to a caller's tensor. Leaves: each flow
//! that somebody reads has a signal, a post in each writer after the completion that its accesses need, and a wait in
//! each reader by the agent that brings the operand; each access to a peer's memory waits for the peer's entry into
//! this launch, so that the peer's readers of the launch before have ended.

mod ends;
mod entry;

use super::{
    draft::{Draft, Flow, FlowId},
    error::{LowerError, internal},
    shape::ranks::own_rank,
};
use ends::{posting, waiting};
pub(super) use entry::guard;
use mk_plan::{Agent, Point, Post, Proxy, Scope, Signal, Var, Wait};

/// Runs the pass.
///
/// # Errors
/// [`LowerError::Internal`] where a flow or an access names an operand that its leaf does not have, or that nothing can
/// say to be done.
pub(super) fn insert(draft: &mut Draft) -> Result<(), LowerError> {
    guard(draft)?;
    connect(draft)
}

/// Makes a signal of each flow, in the order in which they are first read.
///
/// # Errors
/// As [`insert`].
pub(super) fn connect(draft: &mut Draft) -> Result<(), LowerError> {
    for id in draft.flow_order.clone() {
        signal(draft, id)?;
    }
    Ok(())
}

fn signal(draft: &mut Draft, id: FlowId) -> Result<(), LowerError> {
    let flow = draft.flows[id].clone();
    let posts = flow.from.iter().map(|w| posting(draft, w, flow.name));
    let posts = posts.collect::<Result<Vec<_>, _>>()?;
    let waits = flow.to.iter().map(|r| waiting(draft, r, flow.name));
    let waits = waits.collect::<Result<Vec<_>, _>>()?;
    let Flow { name, shape, from, count, to } = flow;
    let by: Vec<Agent> = posts.iter().map(|p| p.by).collect();
    let net = is_net(draft, name, &by)?;
    let signal = draft.plan.signals.push(Signal { name: name.into(), net, shape });
    let own = own_rank();
    let here = from.iter().zip(&by).all(|(w, by)| w.rank == own && !is_host(*by));
    let leaves = waits.iter().any(|w| w.proxy == Proxy::Host);
    let scope = if here && !leaves { Scope::Gpu } else { Scope::Sys };
    for (w, posting) in from.into_iter().zip(posts) {
        let edge = draft.edge();
        draft.plan.families[w.family].posts.push(Post {
            edge,
            signal,
            index: w.word,
            rank: w.rank,
            add: w.amount,
            by: posting.by,
            after: posting.after,
            scope,
            at: w.at,
            each: w.each,
            when: w.when,
        });
    }
    for (r, waiting) in to.into_iter().zip(waits) {
        let edge = draft.edge();
        let sliced = r.word.iter().chain(&r.when).any(|e| e.mentions(Var::INNER));
        let at = r.at.unwrap_or(if sliced { Point::Inner } else { Point::Start });
        draft.plan.families[r.family].waits.push(Wait {
            edge,
            signal,
            index: r.word,
            count: count.clone(),
            lag: r.lag,
            by: waiting.by,
            proxy: waiting.proxy,
            scope,
            at,
            each: r.each,
            when: r.when,
        });
    }
    Ok(())
}

fn is_host(agent: Agent) -> bool {
    matches!(agent, Agent::Sender | Agent::Receiver | Agent::Engine)
}

/// Whether the words of a flow are those that hosts raise behind network cards, where there are nodes.
///
/// # Errors
/// [`LowerError::Internal`] where GPUs raise some of them, too.
fn is_net(draft: &Draft, name: &str, by: &[Agent]) -> Result<bool, LowerError> {
    let card = |a: &Agent| matches!(a, Agent::Sender | Agent::Receiver);
    match (by.iter().any(card), by.iter().all(card)) {
        (true, false) => Err(internal(format!(
            "hosts and GPUs raise words of the flow {name:?}: give each its own"
        ))),
        (any, _) => Ok(any && draft.plan.nic.is_some_and(|nic| nic.local.is_some())),
    }
}
