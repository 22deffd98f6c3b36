//! What a picture of a plan shows: lanes of families, places in memory, signals, and the ports that join them.

use mk_abi::count;
use mk_plan::{
    BufId, Consumers, Each, Entity, EpilogueOp, Expr, FamId, Family, Leaf, Mode, Plan, Post, Role,
    SigId, Space, Var,
};
use std::collections::BTreeMap;

/// Everything to be seen.
pub(super) struct Scene {
    pub title: String,
    /// Mesh, target, dimensions.
    pub subtitle: String,
    /// One for each role, in order.
    pub lanes: Vec<Lane>,
    /// One for each family, a producer of signals above its consumers.
    pub blocks: Vec<Block>,
    /// Memory and signals, in the order in which they are first touched.
    pub places: Vec<Place>,
}

/// A role.
pub(super) struct Lane {
    pub name: String,
    /// Its CTAs.
    pub note: String,
}

/// A family.
pub(super) struct Block {
    pub id: FamId,
    pub lane: usize,
    pub name: String,
    /// Leaf, its settings, and the loop of its tasks.
    pub notes: Vec<String>,
    pub ports: Vec<Port>,
}

/// An access, a wait or a post of a family.
pub(super) struct Port {
    pub kind: PortKind,
    /// An index into [`Scene::places`].
    pub place: usize,
    pub text: String,
    /// The whole line of the plan.
    pub detail: String,
}

/// In the order in which a family shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PortKind {
    Wait,
    Read,
    /// Also accumulation.
    Write,
    Post,
}

impl PortKind {
    /// Whether something flows from the place into the family.
    pub fn is_into_family(self) -> bool {
        matches!(self, PortKind::Read | PortKind::Wait)
    }
}

/// Memory, or an array of signal words.
pub(super) struct Place {
    /// The entity, and `.peers` for that of other ranks: unlike every other place's.
    pub id: String,
    pub kind: PlaceKind,
    pub name: String,
    /// Space, dtype and shape.
    pub note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceKind {
    /// A caller's tensor.
    Caller,
    /// Memory of mk on this rank.
    Own,
    /// Memory of peers.
    Peers,
    /// A signal that this rank alone raises.
    OwnSignal,
    /// A signal that peers raise.
    PeerSignal,
}

impl PlaceKind {
    /// Drawn on the left: what stays on this rank and is no signal.
    pub fn is_own_memory(self) -> bool {
        matches!(self, PlaceKind::Caller | PlaceKind::Own)
    }
}

impl Scene {
    pub fn of(plan: &Plan) -> Scene {
        let mut scene = Scene {
            title: plan.name.clone(),
            subtitle: subtitle(plan),
            lanes: lanes(plan),
            blocks: Vec::new(),
            places: Vec::new(),
        };
        let mut known = BTreeMap::new();
        for id in in_order_of_signals(plan) {
            let family = &plan.families[id];
            let mut block = Block {
                id,
                lane: family.role.index().min(scene.lanes.len().saturating_sub(1)),
                name: family.name.clone(),
                notes: notes(plan, family),
                ports: Vec::new(),
            };
            for port in ports(plan, family) {
                let Found { kind, place, text, detail } = port;
                let next = scene.places.len();
                let at = *known.entry(place.id.clone()).or_insert(next);
                if at == next {
                    scene.places.push(place);
                }
                block.ports.push(Port { kind, place: at, text, detail });
            }
            let order = |p: &Port| (!scene.places[p.place].kind.is_own_memory(), p.kind);
            block.ports.sort_by_key(order);
            scene.blocks.push(block);
        }
        scene
    }
}

fn subtitle(plan: &Plan) -> String {
    let mut parts: Vec<String> = plan
        .mesh
        .axes
        .iter()
        .map(|(name, size)| format!("{name} = {}", count(*size, "rank")))
        .collect();
    parts.push(plan.target.clone());
    for dim in plan.dims.values() {
        let max = dim.runtime_max.map(|max| format!(" (at launch, up to {max})"));
        parts.push(format!("{} = {}{}", dim.name, dim.value, max.unwrap_or_default()));
    }
    parts.join("  ·  ")
}

fn lanes(plan: &Plan) -> Vec<Lane> {
    let mut first = 0;
    let lane = |role: &Role| {
        let note = match role.ctas {
            0 => "no CTA of its own".to_owned(),
            1 => format!("1 CTA: {first}"),
            n => format!("{n} CTAs: {first} to {}", first + n - 1),
        };
        first += role.ctas;
        Lane { name: role.kind.name().to_owned(), note }
    };
    plan.roles.values().map(lane).collect()
}

/// Families by the longest chain of signals that leads to them, then by role, then as the plan has them.
fn in_order_of_signals(plan: &Plan) -> Vec<FamId> {
    let ids: Vec<FamId> = plan.families.keys().collect();
    let mut depth = vec![0_usize; ids.len()];
    // A chain is as long as there are families at most; a wrong plan may have circles.
    for _ in 0..ids.len() {
        // Of each signal, the two deepest of its producers: one of them is not the reader itself.
        let mut deepest: BTreeMap<SigId, [Option<(usize, FamId)>; 2]> = BTreeMap::new();
        for &id in &ids {
            for post in &plan.families[id].posts {
                let two = deepest.entry(post.signal).or_default();
                let this = Some((depth[id.index()], id));
                if two.iter().flatten().all(|(_, known)| *known != id) {
                    let [first, second] = *two;
                    let mut all = [first, second, this];
                    all.sort_by_key(|known| std::cmp::Reverse(known.map(|(depth, _)| depth)));
                    *two = [all[0], all[1]];
                }
            }
        }
        let mut changed = false;
        for &id in &ids {
            let awaited = plan.families[id].waits.iter().filter(|w| w.lag == 0);
            let producers = awaited.filter_map(|w| deepest.get(&w.signal)).flatten().flatten();
            let above = producers.filter(|(_, by)| *by != id).map(|(depth, _)| depth + 1).max();
            let new = above.unwrap_or(0).min(ids.len());
            changed |= depth[id.index()] != new;
            depth[id.index()] = new;
        }
        if !changed {
            break;
        }
    }
    let mut ordered = ids;
    ordered.sort_by_key(|id| (depth[id.index()], plan.families[*id].role.index(), id.index()));
    ordered
}

fn word(op: &EpilogueOp) -> String {
    match op {
        EpilogueOp::Curve(curve) => curve.name().into(),
        EpilogueOp::Slope(curve) => curve.grad().into(),
        op => format!("{op:?}").to_lowercase(),
    }
}

fn notes(plan: &Plan, family: &Family) -> Vec<String> {
    let mut lines = vec![leaf(&family.leaf)];
    let epilogue = family.leaf.epilogue();
    if !epilogue.is_empty() {
        let ops: Vec<_> = epilogue.iter().map(word).collect();
        lines.push(format!("then {}", ops.join(", ")));
    }
    let mut loops: Vec<String> = Vec::new();
    let mut n_tasks = Some(1_i64);
    for (name, extent) in &family.domain {
        loops.push(format!("{name} < {}", plan.text(Some(family), None, extent)));
        n_tasks = match extent {
            Expr::Const(n) => n_tasks.and_then(|all| all.checked_mul(i64::from(*n))),
            _ => None,
        };
    }
    let tasks = match n_tasks {
        Some(n) => count(n, "task"),
        None => "tasks".to_owned(),
    };
    lines.push(if loops.is_empty() { tasks } else { format!("{tasks}: {}", loops.join(", ")) });
    if let Some((name, extent)) = &family.inner {
        lines.push(format!("each loops {name} < {}", plan.text(Some(family), None, extent)));
    }
    for pair in family.edges.chunks(2) {
        let edges: Vec<_> = pair.iter().map(|e| format!("{} {}", e.edge, e.name)).collect();
        lines.push(format!("inside: {}", edges.join(", ")));
    }
    lines
}

fn leaf(leaf: &Leaf) -> String {
    let Some((block, stages)) = leaf.pipeline() else { return leaf.name().to_owned() };
    let sides: Vec<_> = block.iter().map(ToString::to_string).collect();
    let block = if sides.is_empty() { String::new() } else { format!(" {}", sides.join("×")) };
    let turns = leaf.product().is_some_and(|x| x.consumers == Consumers::PingPong);
    let turns = if turns { ", ping-pong" } else { "" };
    format!("{}{block}, {}{turns}", leaf.name(), count(stages, "stage"))
}

struct Found {
    kind: PortKind,
    place: Place,
    text: String,
    detail: String,
}

fn ports(plan: &Plan, family: &Family) -> Vec<Found> {
    let mut found = Vec::new();
    for access in &family.accesses {
        let e = |expr: &Expr| plan.text(Some(family), access.each.as_ref(), expr).to_string();
        let is_own = access.rank == Expr::Var(Var::RANK);
        let Some(buffer) = plan.buffers.get(access.buffer) else { continue };
        let kind = match access.mode {
            Mode::Read => PortKind::Read,
            _ => PortKind::Write,
        };
        let region: Vec<_> =
            access.region.iter().map(|(base, len)| format!("{} : {}", e(base), e(len))).collect();
        let [times, each] = each(plan, family, access.each.as_ref());
        found.push(Found {
            kind,
            place: memory(plan, access.buffer, is_own),
            text: format!("{} {}{times}", access.mode.name(), buffer.name),
            detail: format!(
                "{}: {} {} on rank {} [{}] at {}{each}",
                access.operand,
                access.mode.name(),
                buffer.name,
                e(&access.rank),
                region.join(", "),
                access.at.name()
            ),
        });
    }
    for wait in &family.waits {
        let e = |expr: &Expr| plan.text(Some(family), wait.each.as_ref(), expr).to_string();
        let Some(signal) = plan.signals.get(wait.signal) else { continue };
        let index: Vec<_> = wait.index.iter().map(e).collect();
        let [times, each] = each(plan, family, wait.each.as_ref());
        let lag = if wait.lag > 0 { " of the launch before" } else { "" };
        found.push(Found {
            kind: PortKind::Wait,
            place: words(plan, wait.signal),
            text: format!("{} wait {} ≥ {}{lag}{times}", wait.edge, signal.name, e(&wait.count)),
            detail: format!(
                "{}: the {} waits at {} for {}[{}] ≥ {}{lag}{each}, for the {} proxy, scope {}",
                wait.edge,
                wait.by,
                wait.at.name(),
                signal.name,
                index.join(", "),
                e(&wait.count),
                wait.proxy.name(),
                wait.scope.name()
            ),
        });
    }
    for post in &family.posts {
        let e = |expr: &Expr| plan.text(Some(family), post.each.as_ref(), expr).to_string();
        let Some(signal) = plan.signals.get(post.signal) else { continue };
        let index: Vec<_> = post.index.iter().map(e).collect();
        let [times, each] = each(plan, family, post.each.as_ref());
        found.push(Found {
            kind: PortKind::Post,
            place: words(plan, post.signal),
            text: format!("{} post {} += {}{times}", post.edge, signal.name, e(&post.add)),
            detail: format!(
                "{}: the {} posts at {} after {} {}[{}] += {} on rank {}{each}, scope {}",
                post.edge,
                post.by,
                post.at.name(),
                post.after.name(),
                signal.name,
                index.join(", "),
                e(&post.add),
                e(&post.rank),
                post.scope.name()
            ),
        });
    }
    found
}

/// ` (×3)` for a port that is there for each of three, and the same in full; or nothing.
fn each(plan: &Plan, family: &Family, each: Option<&Each>) -> [String; 2] {
    each.map_or_else(Default::default, |each| {
        let extent = plan.text(Some(family), None, &each.extent);
        [format!(" (×{extent})"), format!(", each {} < {extent}", each.var)]
    })
}

fn memory(plan: &Plan, id: BufId, is_own: bool) -> Place {
    let Some(buffer) = plan.buffers.get(id) else {
        return Place {
            id: id.to_string(),
            kind: PlaceKind::Own,
            name: String::new(),
            note: String::new(),
        };
    };
    let shape: Vec<_> = buffer.shape.iter().map(|e| plan.text(None, None, e).to_string()).collect();
    let (kind, what) = match (is_own, buffer.space) {
        (false, _) => (PlaceKind::Peers, "on peers"),
        (true, Space::In) => (PlaceKind::Caller, "parameter"),
        (true, Space::Out) => (PlaceKind::Caller, "result"),
        (true, Space::Workspace) => (PlaceKind::Own, "symmetric"),
        (true, Space::Scratch) => (PlaceKind::Own, "scratch"),
        (true, Space::Net) => (PlaceKind::Own, "net"),
    };
    Place {
        id: if is_own { id.to_string() } else { format!("{id}.peers") },
        kind,
        name: buffer.name.clone(),
        note: format!("{what} {}[{}]", buffer.dtype, shape.join(", ")),
    }
}

fn words(plan: &Plan, id: SigId) -> Place {
    let own = |p: &Post| p.rank == Expr::Var(Var::RANK);
    let mut posts = plan.families.values().flat_map(|f| &f.posts).filter(|p| p.signal == id);
    let (kind, what) = match posts.all(own) {
        true => (PlaceKind::OwnSignal, "on this rank"),
        false => (PlaceKind::PeerSignal, "from rank to rank"),
    };
    let signal = plan.signals.get(id);
    let shape: Vec<_> = signal
        .map_or(&[][..], |s| &s.shape)
        .iter()
        .map(|e| plan.text(None, None, e).to_string())
        .collect();
    Place {
        id: id.to_string(),
        kind,
        name: signal.map_or(String::new(), |s| s.name.clone()),
        note: format!("{what} [{}]", shape.join(", ")),
    }
}
