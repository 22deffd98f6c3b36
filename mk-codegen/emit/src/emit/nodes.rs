//! Constants of a plan over nodes, and the refusal of network plans that no template supports.

use super::error::{EmitError, Result};
use mk_plan::{
    Arena, Axis, Expr, FamId, NetPlan, Operand, Plan, PointError, Points, RoleKind, SigId, Space,
    TableSet, Var,
};

/// Constants of a plan's nodes, which the library is compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// How many; all else means something only where there are several.
    pub nodes: u32,
    /// Ranks of each.
    pub local: u32,
    /// Entries of the fifo.
    pub fifo: u32,
    /// Lanes to each peer.
    pub lanes: u32,
    /// First of the net words that stand for the nodes' entries.
    pub entered: u32,
    /// The ranks of the same place in other nodes that tell each other of their entry, and this one.
    pub rail: Axis,
    /// Where the hashes of launches lie in net memory.
    pub hashes: u64,
}

/// A rank that no other tells of its node's entry.
const ALONE: Axis = Axis { stride: 1, size: 1 };

impl Nodes {
    /// All ranks map each other's memory.
    pub const ONE: Nodes =
        Nodes { nodes: 1, local: 1, fifo: 1, lanes: 1, entered: 0, rail: ALONE, hashes: 0 };

    pub(super) fn text(self) -> String {
        let Nodes { nodes, local, fifo, lanes, entered, rail, hashes } = self;
        let Axis { stride, size } = rail;
        format!(
            "constexpr u32 kNodes = {nodes}, kLocal = {local}, kFifo = {fifo}, kLanes = {lanes}, kEnteredNode = {entered};\n\
             constexpr u32 kRail = {size}, kRailStride = {stride};\n\
             constexpr u64 kNetHashes = {hashes};\n"
        )
    }
}

/// The constants of a plan's nodes.
pub(super) fn nodes(plan: &Plan, net: Option<&NetPlan>) -> Nodes {
    let Some(NetPlan { signals, layout, .. }) = net else { return Nodes::ONE };
    Nodes {
        nodes: plan.mesh.size() / layout.local.max(1),
        local: layout.local,
        fifo: layout.fifo,
        lanes: layout.lanes,
        entered: entered(plan).and_then(|s| first_word(signals, s)).unwrap_or(0),
        rail: rail(plan).ok().flatten().unwrap_or(ALONE),
        hashes: layout.hashes,
    }
}

fn first_word(signals: &Arena<SigId, Option<u32>>, signal: SigId) -> Option<u32> {
    signals.get(signal).copied().flatten()
}

/// [`nodes`], with the layout of net memory computed from the plan.
///
/// # Errors
/// Where an extent has no value.
pub(super) fn of(plan: &Plan) -> Result<Nodes, PointError> {
    let tables = TableSet::default();
    let net = NetPlan::new(plan, &Points::new(plan, &tables))?;
    Ok(nodes(plan, net.as_ref()))
}

/// The signal by which nodes tell each other of their entry.
pub(super) fn entered(plan: &Plan) -> Option<SigId> {
    let enters = plan.families.iter().filter(|(id, _)| plan.enters_node(*id));
    enters.flat_map(|(_, f)| &f.posts).map(|p| p.signal).next()
}

/// The ranks that tell each other of their nodes' entry, each in the word of its own place; `None` where they are not
/// those along an axis.
///
/// # Errors
/// Where an expression has no value.
fn rail(plan: &Plan) -> Result<Option<Axis>, PointError> {
    let mut enters = plan.families.iter().filter(|(id, _)| plan.enters_node(*id));
    let (Some((id, f)), None) = (enters.next(), enters.next()) else {
        return Ok(plan.families.keys().all(|id| !plan.enters_node(id)).then_some(ALONE));
    };
    let tables = TableSet::default();
    let points = Points::new(plan, &tables);
    let own = Expr::Var(Var::RANK);
    let dst = f.accesses.iter().find(|a| a.operand == Operand::Dst);
    let word = f.posts.iter().find(|p| p.rank != own).map(|p| p.index.as_slice());
    let (Some(dst), Some([word])) = (dst, word) else { return Ok(None) };
    let mut axis = None;
    for rank in 0..plan.mesh.size() as usize {
        let tasks = points.tasks(id, rank, 1)?;
        let mut told = vec![rank];
        for task in &tasks {
            told.push(points.rank(task, &dst.rank)?);
        }
        told.sort_unstable();
        let second = told.get(1).copied().unwrap_or(1) as u32;
        let rail = *axis.get_or_insert(Axis { stride: second.max(1), size: told.len() as u32 });
        let along = (0..rail.size as usize).map(|place| rail.rank(rank, place));
        let places = tasks.iter().map(|task| points.eval(task, word));
        let of_place = |at: Result<i64, PointError>| at.map(|at| at == rail.place(rank) as i64);
        let words = places.map(of_place).collect::<Result<Vec<_>, _>>()?;
        if !told.iter().copied().eq(along) || words.contains(&false) {
            return Ok(None);
        }
    }
    Ok(axis)
}

/// Refuses network plans that no template supports.
///
/// # Errors
/// [`EmitError::Refused`] for the first line that no template carries out.
pub(super) fn check(plan: &Plan) -> Result<()> {
    let refuse = |id: FamId, what: &str| {
        EmitError::refuse(format!("{id} {:?}", plan.families[id].name), what)
    };
    let Some(nic) = plan.nic else { return Ok(()) };
    if nic.local.is_none() {
        let what = "a network without nodes (`local=`) has no templates";
        return EmitError::refuse("nic", what);
    }
    if !nic.fifo.is_power_of_two() {
        let what = format!("a fifo of {} commands: numbers wrap, take a power of two", nic.fifo);
        return EmitError::refuse("nic", what);
    }
    let mut senders: Vec<_> =
        plan.families.values().filter(|f| f.leaf.sends()).map(|f| f.role).collect();
    senders.sort_unstable();
    senders.dedup();
    let first = plan.roles.iter().filter(|(_, r)| r.ctas > 0).map(|(id, _)| id).next();
    for role in &senders {
        let (role, r) = (*role, &plan.roles[*role]);
        if senders.len() > 1 || r.ctas != 1 || r.kind != RoleKind::InterSend || first == Some(role)
        {
            let what = "one lane writes the fifo: sends have one role, inter_send, of one CTA that is not the first";
            return EmitError::refuse(role.to_string(), what);
        }
    }
    let entry = entered(plan);
    if rail(plan)?.is_none() {
        let what = "ranks along one axis tell each other of their nodes' entry, each in the word of its place";
        return EmitError::refuse("nic", what);
    }
    for (id, f) in plan.families.iter() {
        let net = |signal: SigId| plan.signals[signal].net;
        // A network writes words, it does not add to them.
        if f.waits.iter().any(|w| net(w.signal) && w.count != Expr::Const(1)) {
            return refuse(id, "a word that hosts raise is raised once in a launch, by one");
        }
        let sends = f.leaf.sends();
        if f.posts.iter().any(|p| net(p.signal) != sends || sends && p.add != Expr::Const(1)) {
            return refuse(id, "sends raise net words, by one, and nothing else does");
        }
        let one_dim = |s: SigId| plan.signals[s].shape.len() == 1;
        if entry
            .is_some_and(|s| f.waits.iter().any(|w| w.signal == s && (w.lag != 0 || !one_dim(s))))
        {
            return refuse(id, "a node's entry is one word, of this launch");
        }
        if sends
            && (f.inner.is_some()
                || !f
                    .accesses
                    .iter()
                    .filter(|a| !a.operand.looks_up())
                    .all(|a| plan.buffers[a.buffer].space == Space::Net))
        {
            return refuse(
                id,
                "a send has one piece of net memory at either end, and no inner loop",
            );
        }
    }
    Ok(())
}
