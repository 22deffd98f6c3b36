//! The hand-shake of entry, as flows: a rank that has entered a launch has ended the one before, with all that it read
//! and wrote there.
//!
//! Within a node every rank tells every other one. Between nodes, whose memory only network cards reach, a rank that
//! has seen its whole node enter tells the ranks of the same place in other nodes: one word stands for a node.

use super::ends::operand;
use crate::passes::{
    draft::{Draft, Flow, FlowId, Reader, Writer, read, write},
    error::{LowerError, internal},
    shape::ranks::{Nodes, RankGrid, RankGroup, own_rank},
};
use mk_plan::{
    Access, Agent, Completion, Each, Expr, FamId, Leaf, Mode, NicOrdering, Operand, Point,
    RoleKind, Space, Var,
};

const ENTERED: &str = "entered";

/// An access that needs a peer to have entered a launch.
struct Guarded {
    family: FamId,
    operand: Operand,
    peer: Expr,
    each: Option<Each>,
    when: Option<Expr>,
    /// Launches back: 1 for memory that alternates between launches.
    lag: u32,
}

/// Puts the flows of entry before all others.
///
/// # Errors
/// [`LowerError::Internal`] for an access that its leaf does not have, and for one to memory of a rank that only other
/// data name, where no flow comes from there.
pub(in crate::passes) fn guard(draft: &mut Draft) -> Result<(), LowerError> {
    let (guarded, sends) = guarded(draft)?;
    if guarded.is_empty() && sends.is_empty() {
        return Ok(());
    }
    let others = std::mem::take(&mut draft.flow_order);
    // Along one axis at most ranks are on several nodes.
    let nodes = draft.axes().find(|nodes| nodes.count() > 1).unwrap_or(draft.nodes);
    let world = draft.plan.mesh.size();
    // A kernel announces its entry to all ranks that map its memory, whether they wait for it or not.
    let seen_by = RankGroup::of_node(world, draft.plan.local());
    let none = [] as [Access; 0];
    let enter = draft.family("enter", RoleKind::Prologue, Leaf::Enter, vec![], vec![], none);
    let told = Writer::new(enter, Operand::Dst, vec![own_rank()]).on_each(seen_by.everyone());
    let told = Writer { at: Point::Start, ..told };
    let entered = draft.flow(Flow::new(ENTERED, vec![(world as i32).into()], 1.into(), vec![told]));
    for Guarded { family, operand: touched, peer, each, when, lag } in guarded {
        let spec = operand(draft, family, touched, ENTERED)?;
        let reader = Reader::new(family, touched, vec![peer]);
        // The loader of an attention waits for its consumers, who come behind its queries.
        let attends = matches!(draft.plan.families[family].leaf, Leaf::AttendTile(_));
        let by = Some(spec.agent).filter(|by| !attends || *by != Agent::Consumers);
        draft.read(entered, Reader { each, when, lag, by, at: Some(Point::Start), ..reader });
    }
    if !sends.is_empty() {
        let node = enter_node(draft, nodes, entered)?;
        for Guarded { family, operand, peer, each, when, lag } in sends {
            let reader = Reader::new(family, operand, vec![nodes.far.place_of(peer)]);
            draft.read(node, Reader { each, when, lag, at: Some(Point::Start), ..reader });
        }
    }
    draft.flow_order.extend(others);
    Ok(())
}

/// Accesses of peers' memory in the node, and sends to ranks of others.
fn guarded(draft: &Draft) -> Result<(Vec<Guarded>, Vec<Guarded>), LowerError> {
    let own = own_rank();
    let accesses =
        || draft.plan.families.iter().flat_map(|(id, f)| f.accesses.iter().map(move |a| (id, a)));
    // What peers read may be overwritten once they all have entered this launch.
    let read_by_peers = |a: &Access| {
        let theirs = |b: &Access| b.buffer == a.buffer && b.rank != own && b.mode == Mode::Read;
        a.mode == Mode::Write && accesses().any(|(_, b)| theirs(b))
    };
    let (mut guarded, mut sends) = (Vec::new(), Vec::new());
    for (id, a) in accesses().filter(|(_, a)| a.rank != own && !read_by_peers(a)) {
        let lag = u32::from(alternates(a));
        let peer = a.rank.clone();
        // Once, where repetitions say which elements there are, and not on which rank.
        let once = !peer.mentions(Var::EACH) && of_each(a);
        let each = a.each.clone().filter(|_| !once);
        // A peer's memory is free whether or not something moves there.
        let when = draft.plan.beside_meeting(a.when.as_ref()).cloned().filter(|_| !once);
        let mut g = Guarded { family: id, operand: a.operand, peer, each, when, lag };
        match operand(draft, id, a.operand, ENTERED)?.agent {
            Agent::Sender => sends.push(g),
            // Nor does a copy engine know of this rank, by the plan: it is ordered by signals alone. It waits for
            // all.
            Agent::Engine => {
                let all = draft.plan.mesh.size();
                let (peer, each) = RankGroup::of_node(all, all).everyone();
                guarded.push(Guarded { peer, each: Some(each), ..g });
            }
            _ if a.mode == Mode::Read && is_chosen(a) => follows_a_flow(draft, id, a)?,
            _ => {
                draft.axes().for_each(|nodes| but_the_own(&mut g, nodes.group));
                guarded.push(g);
            }
        }
    }
    // Of several groups, those that read it: whose ranks such a read names.
    let reads = |a: &Access, nodes: &Nodes| {
        let theirs = |b: &Access| b.buffer == a.buffer && b.rank != own && b.mode == Mode::Read;
        let (everyone, peers) = (nodes.group.everyone().0, nodes.group.every_peer().0);
        accesses().any(|(_, b)| theirs(b) && (b.rank == everyone || b.rank == peers))
    };
    for (id, a) in accesses().filter(|(_, a)| read_by_peers(a)) {
        let named: Vec<Nodes> = draft.axes().filter(|nodes| reads(a, nodes)).collect();
        let all: Vec<Nodes> = draft.axes().collect();
        // Data name ranks along both axes.
        let chosen = |b: &Access| b.buffer == a.buffer && b.mode == Mode::Read && is_chosen(b);
        let peers: Vec<(Expr, Each)> = match (&named[..], &all[..]) {
            ([], [outer, inner]) if accesses().any(|(_, b)| chosen(b)) => {
                let grid = RankGrid { outer: outer.near, inner: inner.near };
                vec![grid.every_peer()]
            }
            ([], all) => {
                let near = all.iter().filter(|nodes| all.len() == 1 || nodes.local() > 1);
                near.map(|nodes| nodes.near.every_peer()).collect()
            }
            (named, _) => named.iter().map(|nodes| nodes.near.every_peer()).collect(),
        };
        for (peer, each) in peers {
            guarded.push(Guarded {
                family: id,
                operand: a.operand,
                peer,
                each: Some(each),
                when: a.when.clone().filter(|_| !of_each(a)),
                lag: u32::from(alternates(a)),
            });
        }
    }
    Ok((guarded, sends))
}

/// Of all ranks, the own one's kernel is this.
fn but_the_own(g: &mut Guarded, group: RankGroup) {
    let (everyone, all) = group.everyone();
    let everybody = g.peer == everyone && g.when.is_none();
    if let (true, Some(each)) = (everybody, &mut g.each)
        && each.extent == all.extent
    {
        let (peer, but_one) = group.every_peer();
        (g.peer, each.extent) = (peer, but_one.extent);
    }
}

/// Whether some repetitions or iterations of an access are there, and others are not.
fn of_each(a: &Access) -> bool {
    a.when.as_ref().is_some_and(|when| when.mentions(Var::EACH) || when.mentions(Var::INNER))
}

/// Whether an access is to a slot that alternates between launches: a peer has left it when it has entered the launch
/// before.
fn alternates(a: &Access) -> bool {
    a.region.iter().any(|(base, _)| base.mentions(Var::EPOCH))
}

/// Whether other data name the rank of an access, so that it is not known at the start of the task.
fn is_chosen(a: &Access) -> bool {
    a.rank.has_table() || a.rank.mentions(Var::INNER)
}

/// A read of memory on a rank that tables name is behind a flow from there: that rank's kernel, which raised the word,
/// has entered.
fn follows_a_flow(draft: &Draft, family: FamId, a: &Access) -> Result<(), LowerError> {
    let reads = |r: &Reader| r.family == family && r.operand == a.operand;
    if draft.flow_order.iter().any(|id| draft.flows[*id].to.iter().any(reads)) {
        return Ok(());
    }
    let x = &draft.plan.families[family].name;
    let what =
        format!("{x:?} reads `{}` on a rank that data name, and no flow comes from it", a.operand);
    Err(internal(what))
}

/// A rank whose whole node has entered tells those of the same place in other nodes, by sends without data.
fn enter_node(draft: &mut Draft, nodes: Nodes, entered: FlowId) -> Result<FlowId, LowerError> {
    let net = draft.plan.buffers.iter().find(|(_, b)| b.space == Space::Net);
    let (Some((net, buffer)), Some(nic)) = (net, draft.plan.nic) else {
        return Err(internal("a network carries what no net memory holds"));
    };
    let nothing = vec![(Expr::Const(0), Expr::Const(0)); buffer.shape.len()];
    let [to, _] = nodes.rail(Var::domain(0).into());
    let src = read(Operand::Src, net, nothing.clone());
    let dst = Access { rank: to.clone(), ..write(Operand::Dst, net, nothing) };
    let domain = vec![("m", (nodes.count() - 1).into())];
    let send =
        draft.family("enter.node", RoleKind::InterSend, Leaf::NicSend, domain, vec![], [src, dst]);
    // Sends of other ranks wait for it.
    draft.first.push(send);
    let (rank, each) = nodes.near.everyone();
    let node = Reader { each: Some(each), ..Reader::new(send, Operand::Dst, vec![rank]) };
    draft.read(entered, node);
    let word = vec![nodes.far.place()];
    // Nothing that would have to be visible comes with it.
    let after = (nic.ordering == NicOrdering::Unordered).then_some(Completion::NicDelivered);
    let told = Writer { after, ..Writer::new(send, Operand::Dst, word).on(to) };
    let shape = vec![nodes.count().into()];
    Ok(draft.flow(Flow::new("entered.node", shape, 1.into(), vec![told])))
}
