//! The two ends of a flow: which agent of a leaf posts, after which completion, and which one waits, for which proxy.

use crate::passes::{
    draft::{Draft, Reader, Writer},
    error::{LowerError, internal},
    shape::ranks::own_rank,
};
use mk_plan::{Agent, Completion, FamId, Leaf, Mode, NicOrdering, Operand, OperandSpec, Proxy};

/// How a writer posts.
#[derive(Clone, Copy)]
pub(super) struct Posting {
    pub by: Agent,
    pub after: Completion,
}

/// How a reader waits.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub by: Agent,
    pub proxy: Proxy,
}

/// An operand of a family.
///
/// # Errors
/// [`LowerError::Internal`] where its leaf does not have it.
pub(super) fn operand(
    draft: &Draft,
    family: FamId,
    operand: Operand,
    name: &str,
) -> Result<OperandSpec, LowerError> {
    let x = &draft.plan.families[family];
    x.leaf.contract().operand(operand).copied().ok_or_else(|| {
        let what =
            format!("the leaf of {:?} has no operand `{operand}`, for the flow {name:?}", x.name);
        internal(what)
    })
}

/// The agent that can say that an operand's accesses are done, and the least completion that says so.
///
/// The last agent of a leaf says it: every other one flows into it, so that it knows of the loads of others, too.
///
/// # Errors
/// As [`operand`]; also for sends that the plan has no network for, or that hand room to another rank.
pub(super) fn posting(draft: &Draft, w: &Writer, name: &str) -> Result<Posting, LowerError> {
    let leaf = &draft.plan.families[w.family].leaf;
    let found = match leaf {
        Leaf::Signal | Leaf::Enter => Posting { by: Agent::Lead, after: Completion::ProgramOrder },
        Leaf::NicSend => sent(draft, w, name)?,
        _ => {
            let spec = operand(draft, w.family, w.operand, name)?;
            let agents = leaf.contract().agents;
            let last = agents.last().copied().unwrap_or(spec.agent);
            let after = match (spec.proxy, spec.mode) {
                (Proxy::Async, Mode::Write | Mode::Accumulate) => Completion::GlobalWriteDone,
                (Proxy::Async, Mode::Read) | (Proxy::Generic | Proxy::Host, _) => {
                    Completion::ProgramOrder
                }
            };
            Posting { by: last, after }
        }
    };
    Ok(Posting { by: w.by.unwrap_or(found.by), after: w.after.unwrap_or(found.after) })
}

/// What a network card has done: delivered, for those at home who want to write the source again; visible, for those
/// there. On an ordered network the word travels behind the data; on an unordered one only the receiver knows that they
/// are there.
fn sent(draft: &Draft, w: &Writer, name: &str) -> Result<Posting, LowerError> {
    let spec = operand(draft, w.family, w.operand, name)?;
    let Some(nic) = draft.plan.nic else {
        return Err(internal(format!("the flow {name:?} is sent, and the plan has no network")));
    };
    if w.rank == own_rank() {
        return Ok(Posting { by: Agent::Sender, after: Completion::NicDelivered });
    }
    if spec.mode == Mode::Read {
        let what = format!("the flow {name:?} hands the source of a send to another rank");
        return Err(internal(what));
    }
    Ok(match nic.ordering {
        NicOrdering::InOrder => Posting { by: Agent::Sender, after: Completion::NicPosted },
        NicOrdering::Unordered => Posting { by: Agent::Receiver, after: Completion::NicFlushed },
    })
}

/// The agent that brings an operand, and for which accesses it waits. The consumers of a tile have no time to: the
/// loader waits, before it brings them anything, and for all that follows in the task. A network card is told by the
/// agent that commands it.
///
/// # Errors
/// As [`operand`].
pub(super) fn waiting(draft: &Draft, r: &Reader, name: &str) -> Result<Waiting, LowerError> {
    let leaf = &draft.plan.families[r.family].leaf;
    if *leaf == Leaf::Signal {
        return Ok(Waiting { by: Agent::Lead, proxy: Proxy::Generic });
    }
    let spec = operand(draft, r.family, r.operand, name)?;
    let (by, proxy) = match (r.by, spec.agent) {
        (Some(by), _) => (by, spec.proxy),
        (None, Agent::Consumers) => (Agent::Loader, Proxy::Async),
        (None, Agent::Sender) => (Agent::Issuer, Proxy::Host),
        (None, agent) => (agent, spec.proxy),
    };
    Ok(Waiting { by, proxy })
}
