//! Rule 6, the network: the messages that a card sends, and who touches which memory and which words between nodes.
//!
//! A message is one piece of memory at either end, and no longer than a card sends at once. It goes to a rank of
//! another node, and raises words there or at home, whether it has data or none: a command names the rank, and not the
//! bytes. GPUs, copy engines and their posts stay inside their node, where there are nodes: `nic … local=`, or an axis
//! of the mesh named `node`. Only a `nic_send` leaves it. With `nic … local=`
//! - it reads *net memory* at home and writes that of a rank of another node; nobody else touches another rank's;
//! - hosts raise *net words*, and nobody else raises them: a card writes a word, it does not add to what others do;
//! - a send raises one word at the receiver, at most: on an ordered network the sender writes it, on the data's lane;
//!   on an unordered one the receiver's host raises it, by an immediate, which has 20 bits for the word;
//! - net words are awaited in inter roles only, whose few CTAs may poll memory that hosts write.

use super::{
    family::is_host,
    region,
    report::Violation,
    site,
    within::post_line,
    world::{AccRec, Class, NamedRec, PostRec, TaskRec, World},
};
use mk_plan::{
    Agent, BufId, EdgeId, Entity, Expr, FamId, NicOrdering, Operand, Plan, RoleKind, Space, Var,
    Wait,
};
use std::collections::HashSet;

/// Longest message.
const MAX_MESSAGE_BYTES: i64 = 1 << 30;
/// Most words that immediates name.
const MAX_IMMEDIATES: i64 = 1 << 20;

/// Checks what is said above.
pub(super) fn check(world: &World<'_>) -> Vec<Violation> {
    let local = world.plan.nic.and_then(|nic| nic.local).map(|local| local.max(1) as usize);
    let reach = local.or_else(|| nodes(world.plan));
    let mut c = Checker { world, local, reach, told: HashSet::new(), out: Vec::new() };
    for class in &world.classes {
        class.accs.iter().for_each(|a| c.access(class, a));
        class.named.iter().for_each(|n| c.named(class, n));
        if reach.is_some() {
            class.posts.iter().for_each(|p| c.post(class, p));
        }
        if local.is_some() {
            class.tasks.iter().for_each(|t| c.raised(class, t));
        }
    }
    if local.is_some() {
        c.waits();
        c.immediates();
    }
    c.out
}

/// Ranks of a node where the mesh says which they are: those that differ in axes behind one named `node`.
fn nodes(plan: &Plan) -> Option<usize> {
    let at = plan.mesh.axes.iter().position(|(name, _)| name == "node")?;
    Some(plan.mesh.axes[at + 1..].iter().map(|(_, n)| *n as usize).product::<usize>().max(1))
}

/// A line that a mistake is reported for once.
#[derive(PartialEq, Eq, Hash)]
enum Line {
    Access(FamId, u32),
    Edge(EdgeId),
    Family(FamId),
}

struct Checker<'w, 'a> {
    world: &'w World<'a>,
    /// Ranks of a node, if there are nodes.
    local: Option<usize>,
    /// Ranks of a node, if the mesh has an axis of nodes, too.
    reach: Option<usize>,
    told: HashSet<Line>,
    out: Vec<Violation>,
}

impl Checker<'_, '_> {
    fn tell(&mut self, line: Line, family: FamId, what: &str, message: String) {
        if self.told.insert(line) {
            let place = format!("{}: {what}", site::family(self.world, family));
            self.out.push(Violation::Capacity { place, message });
        }
    }

    fn access(&mut self, class: &Class, a: &AccRec) {
        let world = self.world;
        let task = &class.tasks[a.task as usize];
        let boxed = &world.boxes.all[a.boxed as usize];
        let x = &world.plan.families[task.family];
        // The GPU looks lengths up in tables of its own, and passes them to the card.
        let sent = x.leaf.sends() && !x.accesses[a.line as usize].operand.looks_up();
        let wrong = match sent {
            true => self.message(a),
            false => self.reached(boxed.buffer, task.rank as usize, boxed.rank),
        };
        self.tell_access(task, a.line, wrong);
    }

    /// The rank that an access names: where a send goes, and whose memory has nothing in a region.
    fn named(&mut self, class: &Class, n: &NamedRec) {
        let task = &class.tasks[n.task as usize];
        let x = &self.world.plan.families[task.family];
        let (a, home, rank) = (&x.accesses[n.line as usize], task.rank as usize, n.rank as usize);
        let wrong = match x.leaf.sends() && !a.operand.looks_up() {
            true => self.sent(a.operand, a.buffer, home, rank),
            false => self.reached(a.buffer, home, rank),
        };
        self.tell_access(task, n.line, wrong);
        if x.leaf.sends() && a.operand == Operand::Dst {
            self.raised_elsewhere(class, task, rank);
        }
    }

    fn tell_access(&mut self, task: &TaskRec, line: u32, wrong: Option<String>) {
        let Some(message) = wrong else { return };
        let operand = self.world.plan.families[task.family].accesses[line as usize].operand;
        let what = format!("access {operand} of rank {}", task.rank);
        self.tell(Line::Access(task.family, line), task.family, &what, message);
    }

    /// The words of a send are at home, `@ rank`, or where its message goes: a command has one peer.
    fn raised_elsewhere(&mut self, class: &Class, task: &TaskRec, to: usize) {
        let world = self.world;
        for p in &class.posts[task.posts.start as usize..task.posts.end as usize] {
            let (post, rank) = (post_line(world.plan, class, p), world.words.name(p.word).0);
            if post.rank == Expr::Var(Var::RANK) || rank == to {
                continue;
            }
            let message = format!(
                "raises a word of rank {rank}, and the message goes to rank {to}: raise words there, or `@ rank`"
            );
            let what = format!("{} of rank {}", post.edge, task.rank);
            self.tell(Line::Edge(post.edge), task.family, &what, message);
        }
    }

    /// Whether two ranks are in one node.
    fn together(&self, a: usize, b: usize) -> bool {
        self.reach.is_none_or(|reach| a / reach == b / reach)
    }

    fn reached(&self, buffer: BufId, home: usize, rank: usize) -> Option<String> {
        let space = self.world.plan.buffers[buffer].space;
        if space == Space::Net && rank != home {
            return Some(format!("touches net memory of rank {rank}: only network cards do"));
        }
        (!self.together(home, rank)).then(|| {
            format!("touches memory of rank {rank}, which is in another node: use nic_send")
        })
    }

    fn sent(&self, operand: Operand, buffer: BufId, home: usize, rank: usize) -> Option<String> {
        if self.local.is_some() && self.world.plan.buffers[buffer].space != Space::Net {
            return Some("network cards reach net memory only".into());
        }
        match operand {
            Operand::Src if rank != home => {
                Some(format!("the card of rank {home} reads at home, not on rank {rank}"))
            }
            Operand::Dst if rank == home => Some("goes to the rank that sends it".into()),
            Operand::Dst if self.reach.is_some() && self.together(home, rank) => {
                Some(format!("rank {rank} is in the same node: use a copy"))
            }
            _ => None,
        }
    }

    /// Why an access is no message: it is in one piece where every dimension behind the first of more than one index is
    /// whole.
    fn message(&self, a: &AccRec) -> Option<String> {
        let boxed = &self.world.boxes.all[a.boxed as usize];
        let bytes = region::area(&boxed.dims)
            .saturating_mul(self.world.plan.buffers[boxed.buffer].dtype.size_bytes() as i64);
        if bytes > MAX_MESSAGE_BYTES {
            return Some(format!("a message of {bytes} bytes is longer than {MAX_MESSAGE_BYTES}"));
        }
        let shape = &self.world.shapes[boxed.buffer.index()][boxed.rank];
        let fixed = |d: usize| match &self.world.boxes.spans {
            Some(spans) => spans.all[boxed.spans[d] as usize].constant,
            None => true,
        };
        let whole = |d: usize| boxed.dims[d] == (0, shape[d]) && fixed(d);
        let first = (0..shape.len()).find(|d| boxed.dims[*d].1 != 1 || !fixed(*d))?;
        let rows = first + 1 < shape.len();
        let pieces = (first + 1..shape.len()).any(|d| !whole(d));
        let gaps = rows && self.has_gaps(boxed.buffer);
        (pieces || gaps).then(|| {
            let region = region::text(&boxed.dims);
            format!("{region} of {shape:?} is several pieces of memory: a message is one")
        })
    }

    /// Whether rows of a buffer are further apart than they are long.
    fn has_gaps(&self, buffer: BufId) -> bool {
        let b = &self.world.plan.buffers[buffer];
        b.pitch.as_ref().is_some_and(|pitch| b.shape.last() != Some(pitch))
    }

    fn post(&mut self, class: &Class, p: &PostRec) {
        let world = self.world;
        let task = &class.tasks[p.task as usize];
        let (post, home) = (post_line(world.plan, class, p), task.rank as usize);
        let (rank, signal, _) = world.words.name(p.word);
        let net = world.plan.signals[signal].net;
        let by = post.by;
        let wrong = match by {
            Agent::Sender | Agent::Receiver if !net && self.local.is_some() => {
                format!("hosts raise net words, and {signal} is none")
            }
            Agent::Sender | Agent::Receiver => return,
            _ if net => format!("`{by}` raises {signal}, whose words are the hosts'"),
            _ if !self.together(home, rank) => format!(
                "raises a word of rank {rank}, which is in another node: let a nic_send raise it"
            ),
            _ => return,
        };
        let what = format!("{} of rank {home}", post.edge);
        self.tell(Line::Edge(post.edge), task.family, &what, wrong);
    }

    /// The words that one send raises on other ranks.
    fn raised(&mut self, class: &Class, task: &TaskRec) {
        let world = self.world;
        if !world.plan.families[task.family].leaf.sends() {
            return;
        }
        let posts = &class.posts[task.posts.start as usize..task.posts.end as usize];
        let away = |p: &&PostRec| world.words.name(p.word).0 != task.rank as usize;
        let remote: Vec<&PostRec> = posts.iter().filter(away).collect();
        let unordered = world.plan.nic.is_some_and(|n| n.ordering == NicOrdering::Unordered);
        let wrong = match remote[..] {
            [] => return,
            [p] if unordered && post_line(world.plan, class, p).by == Agent::Sender => {
                "on an unordered network the receiver raises its words: post `by receiver`"
            }
            [_] => return,
            _ => "raises several words at the receiver: a card writes one behind its data",
        };
        let what = format!("a send of rank {}", task.rank);
        self.tell(Line::Family(task.family), task.family, &what, wrong.into());
    }

    fn waits(&mut self) {
        let plan = self.world.plan;
        for (id, x) in plan.families.iter() {
            let kind = plan.roles[x.role].kind;
            if matches!(kind, RoleKind::InterSend | RoleKind::InterReduce) {
                continue;
            }
            let net = |w: &&Wait| plan.signals[w.signal].net && !is_host(w.by);
            for w in x.waits.iter().filter(net) {
                let message = format!(
                    "awaits words of hosts in role {}: await them in an inter role, and relay them",
                    kind.name()
                );
                self.tell(Line::Edge(w.edge), id, &w.edge.to_string(), message);
            }
        }
    }

    fn immediates(&mut self) {
        let plan = self.world.plan;
        if plan.nic.is_none_or(|nic| nic.ordering == NicOrdering::InOrder) {
            return;
        }
        for rank in 0..self.world.ranks {
            let net = plan.signals.iter().filter(|(_, s)| s.net).map(|(id, _)| id);
            let words: i64 =
                net.map(|id| self.world.words.shape(rank, id).iter().product::<i64>()).sum();
            if words > MAX_IMMEDIATES {
                self.out.push(Violation::Capacity {
                    place: "nic".into(),
                    message: format!(
                        "rank {rank} has {words} net words, and immediates name {MAX_IMMEDIATES}"
                    ),
                });
                return;
            }
        }
    }
}
