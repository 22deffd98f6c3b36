//! Events of the unrolled plan and what each comes after. Events are made in an order in which each follows all that it comes
//! after, signals apart.

use super::unroll::{Raise, Task, Touch, Unrolled};
use mk_codegen::plan::{Agent, Completion, Mode, NicOrdering, Proxy, Scope};

pub type Event = u32;

#[derive(Default)]
pub struct Node {
    pub after: Vec<Event>,
    /// The wait of its task that it stands for: task, number.
    pub wait: Option<(u32, u32)>,
    /// The post of its task that it stands for.
    pub post: Option<(u32, u32)>,
    /// Whether it begins a kernel: whoever knows of something then knows it in every way.
    pub begins: bool,
}

/// Events of a task, by agent and step.
pub struct Part {
    pub events: std::ops::Range<Event>,
    /// When an agent may read in a step.
    reads: Vec<Vec<Event>>,
    /// When it may write; its accesses of the step are behind it, as issued.
    writes: Vec<Vec<Event>>,
    /// For each post of the task.
    pub posts: Vec<Event>,
    /// For each wait of the task.
    pub waits: Vec<Event>,
}

impl Part {
    /// The event that issues an access, at the earliest.
    pub fn issues(&self, t: &Touch) -> Event {
        let list = if t.mode == Mode::Read { &self.reads } else { &self.writes };
        list[t.agent][t.step as usize]
    }
    /// The event behind an agent's step.
    pub fn behind(&self, agent: usize, step: u32) -> Event {
        self.writes[agent][step as usize]
    }
}

pub struct Graph {
    pub nodes: Vec<Node>,
    pub parts: Vec<Part>,
    /// By epoch (from 0) and rank: the caller has written the inputs.
    pub written: Vec<Vec<Event>>,
    pub ends: Vec<Vec<Event>>,
    /// The caller has read the outputs.
    pub read: Vec<Vec<Event>>,
    /// Waits and posts of each word.
    pub word_waits: Vec<Vec<Event>>,
    pub word_posts: Vec<Vec<Event>>,
}

pub fn is_host(agent: Agent) -> bool {
    matches!(agent, Agent::Sender | Agent::Receiver | Agent::Engine)
}

impl Graph {
    /// With every task on a CTA of its own, or (`split`) with the plan's CTAs and stages.
    pub fn new(u: &Unrolled<'_>, split: bool) -> Graph {
        let mut g = Graph {
            nodes: Vec::new(),
            parts: Vec::new(),
            written: Vec::new(),
            ends: Vec::new(),
            read: Vec::new(),
            word_waits: vec![Vec::new(); u.words.len()],
            word_posts: vec![Vec::new(); u.words.len()],
        };
        let mut first = 0;
        let mut engines: Vec<Option<Event>> = vec![None; u.ranks];
        for epoch in 0..u.epochs as usize {
            let (mut written, mut ends, mut read) = (Vec::new(), Vec::new(), Vec::new());
            for (rank, engine) in engines.iter_mut().enumerate() {
                let before: Vec<Event> = match epoch {
                    0 => vec![],
                    e => vec![g.read[e - 1][rank]],
                };
                let inputs = g.add(before);
                let begin = g.add(vec![inputs]);
                g.nodes[begin as usize].begins = true;
                let here = |t: &Task| t.epoch == epoch as i64 + 1 && t.rank == rank;
                let n = u.tasks[first..].iter().take_while(|t| here(t)).count();
                let end = g.kernel(u, first..first + n, begin, split, engine);
                first += n;
                written.push(inputs);
                ends.push(end);
                read.push(g.add(vec![end]));
            }
            g.written.push(written);
            g.ends.push(ends);
            g.read.push(read);
        }
        g
    }

    fn add(&mut self, after: Vec<Event>) -> Event {
        self.nodes.push(Node { after, ..Node::default() });
        self.nodes.len() as Event - 1
    }

    fn kernel(
        &mut self,
        u: &Unrolled<'_>,
        tasks: std::ops::Range<usize>,
        begin: Event,
        split: bool,
        engine: &mut Option<Event>,
    ) -> Event {
        let mut end = vec![begin];
        // What an agent of a CTA did last, and everything that a part of CTA 0 ends with.
        let mut last: Vec<((usize, Agent), Event)> = Vec::new();
        let mut order: Vec<usize> = tasks.clone().collect();
        order.sort_by_key(|t| u.tasks[*t].place.1);
        let (mut part, mut gate, mut done) = (0, begin, Vec::new());
        let base = self.parts.len();
        let mut parts: Vec<Option<Part>> = tasks.clone().map(|_| None).collect();
        for i in order {
            let t = &u.tasks[i];
            if split && t.place.0 == 0 && t.place.1 != part {
                part = t.place.1;
                gate = self.add(std::mem::take(&mut done));
                self.nodes[gate as usize].after.push(begin);
                last.retain(|l| l.0.0 != 0);
            }
            let contract = u.contract(t);
            // Copiers and consumers are the same warps.
            let runs =
                |a: Agent| (t.place.0, if a == Agent::Copier { Agent::Consumers } else { a });
            let from = |agent: usize| -> Vec<Event> {
                let a = contract.agents[agent];
                let before = last.iter().find(|l| l.0 == runs(a)).map(|l| l.1);
                match a {
                    Agent::Engine => if split { *engine } else { None }.into_iter().collect(),
                    Agent::Sender | Agent::Receiver => vec![],
                    _ if split && t.place.0 == 0 => vec![before.unwrap_or(gate)],
                    _ if split => vec![before.unwrap_or(begin)],
                    _ => vec![begin],
                }
            };
            let starts: Vec<_> = (0..contract.agents.len()).map(from).collect();
            let p = self.task(u, i, starts, split);
            for (agent, a) in contract.agents.iter().enumerate() {
                let behind = p.behind(agent, t.steps - 1);
                if *a == Agent::Engine {
                    *engine = Some(behind);
                }
                if is_host(*a) {
                    continue;
                }
                end.push(behind);
                if t.place.0 == 0 {
                    done.push(behind);
                }
                last.retain(|l| l.0 != runs(*a));
                last.push((runs(*a), behind));
            }
            parts[i - tasks.start] = Some(p);
        }
        self.parts.extend(parts.into_iter().flatten());
        debug_assert_eq!(self.parts.len(), base + tasks.len());
        self.add(end)
    }

    fn task(&mut self, u: &Unrolled<'_>, id: usize, starts: Vec<Vec<Event>>, split: bool) -> Part {
        let t = &u.tasks[id];
        let contract = u.contract(t);
        let first = self.nodes.len() as Event;
        let agents = contract.agents.len();
        let index = |a: Agent| contract.agents.iter().position(|b| *b == a).unwrap_or(0);
        let edges = |back: bool| {
            let list = contract.edges.iter().filter(move |e| e.depth.is_some() == back);
            list.map(|e| (index(e.from), index(e.to))).collect::<Vec<_>>()
        };
        let (flows, backs) = (edges(false), edges(true));
        let touches =
            |agent: usize, step: u32| t.touches.iter().any(|x| (x.agent, x.step) == (agent, step));
        let relays = |agent: usize| {
            flows.iter().any(|f| f.1 == agent)
                || contract.operands.iter().all(|o| index(o.agent) != agent)
        };
        let passes =
            |(a, b): (usize, usize), step: u32| touches(a, step) || (relays(a) && touches(b, step));
        let relayed = |a: usize| matches!(contract.agents[a], Agent::Sender | Agent::Receiver);
        let mut waits = vec![0; t.waits.len()];
        let mut posts = vec![0; t.posts.len()];
        let (mut reads, mut writes) = (vec![Vec::new(); agents], vec![Vec::new(); agents]);
        for step in 0..t.steps {
            // Waits of all agents first: back-pressure looks at those of later agents.
            for agent in (0..agents).filter(|a| !relayed(*a)) {
                let before = match step {
                    0 => starts[agent].clone(),
                    s => vec![writes[agent][s as usize - 1]],
                };
                reads[agent].push(self.waits(t, id, agent, step, before, &mut waits));
            }
            for agent in 0..agents {
                if contract.agents[agent] == Agent::Receiver {
                    continue;
                }
                // A sending host does nothing for a task before it has its command.
                if contract.agents[agent] == Agent::Sender {
                    let command = writes[index(Agent::Issuer)][0];
                    let before = writes[agent].last().copied().unwrap_or(command);
                    reads[agent].push(self.waits(t, id, agent, step, vec![before], &mut waits));
                }
                let mut before = vec![reads[agent][step as usize]];
                let handed = |f: &&(usize, usize)| f.1 == agent && passes(**f, step);
                for f in flows.iter().filter(handed).filter(|_| !relayed(agent)) {
                    before.push(writes[f.0][step as usize]);
                }
                // An agent that fills stages is through when the one that empties them is there.
                for b in backs.iter().filter(|b| split && b.1 == agent) {
                    if flows.contains(&(agent, b.0)) && passes((agent, b.0), step) {
                        before.push(reads[b.0][step as usize]);
                    }
                }
                let behind = self.add(before);
                writes[agent].push(behind);
                let early = step == 0 && !touches(agent, 0);
                let at = if early { reads[agent][0] } else { behind };
                self.posts(t, id, agent, step, at, &mut posts);
            }
        }
        if let Some(agent) = contract.agents.iter().position(|a| *a == Agent::Receiver) {
            let sender = writes[index(Agent::Sender)].last().copied();
            for step in 0..t.steps {
                let before = writes[agent].last().copied().into_iter().chain(sender).collect();
                let at = self.waits(t, id, agent, step, before, &mut waits);
                reads[agent].push(at);
                writes[agent].push(at);
                self.posts(t, id, agent, step, at, &mut posts);
            }
        }
        Part { events: first..self.nodes.len() as Event, reads, writes, posts, waits }
    }

    /// The waits of an agent in a step, and the event that they are over.
    fn waits(
        &mut self,
        t: &Task,
        id: usize,
        agent: usize,
        step: u32,
        before: Vec<Event>,
        out: &mut [Event],
    ) -> Event {
        let mut over = before.clone();
        for (i, w) in t.waits.iter().enumerate().filter(|w| (w.1.agent, w.1.step) == (agent, step))
        {
            out[i] = self.add(before.clone());
            self.nodes[out[i] as usize].wait = Some((id as u32, i as u32));
            self.word_waits[w.word as usize].push(out[i]);
            over.push(out[i]);
        }
        self.add(over)
    }

    fn posts(
        &mut self,
        t: &Task,
        id: usize,
        agent: usize,
        step: u32,
        at: Event,
        out: &mut [Event],
    ) {
        for (i, p) in t.posts.iter().enumerate().filter(|p| (p.1.agent, p.1.step) == (agent, step))
        {
            out[i] = self.add(vec![at]);
            self.nodes[out[i] as usize].post = Some((id as u32, i as u32));
            self.word_posts[p.word as usize].push(out[i]);
        }
    }

    /// Which events of a task come after an access's issue.
    pub fn later(&self, part: &Part, t: &Touch) -> Vec<bool> {
        let first = part.events.start;
        let mut known = vec![false; part.events.len()];
        for e in part.events.clone() {
            let n = &self.nodes[e as usize];
            let inside = |p: &&Event| part.events.contains(p);
            known[(e - first) as usize] = e == part.behind(t.agent, t.step)
                || n.after.iter().filter(inside).any(|p| known[(p - first) as usize]);
        }
        known
    }
}

/// Whether a post that comes after an access's issue comes after its completion, for those who touch the memory by a
/// GPU (`to_gpu`) or by a network card.
pub fn completes(u: &Unrolled<'_>, t: &Task, x: &Touch, p: &Raise, to_gpu: bool) -> bool {
    use Completion::{GlobalWriteDone, NicDelivered, NicFlushed, NicPosted};
    let (by, poster) = (u.agent(t, x.agent), u.agent(t, p.agent));
    let in_order = u.plan.nic.is_some_and(|n| n.ordering == NicOrdering::InOrder);
    match (x.proxy, x.mode) {
        (Proxy::Generic, _) => true,
        // The loader has only issued its loads; who was handed their data knows that they are over.
        (Proxy::Async, Mode::Read) => by != poster,
        (Proxy::Async, _) => p.after == GlobalWriteDone,
        (Proxy::Host, _) if by == Agent::Engine => true,
        (Proxy::Host, Mode::Read) => p.after >= NicDelivered,
        (Proxy::Host, _) => {
            let flag_behind = in_order
                && poster == Agent::Sender
                && p.after >= NicPosted
                && x.rank == u.words[p.word as usize];
            let flushed = p.after == NicFlushed && (in_order || poster == Agent::Receiver);
            flag_behind || flushed || (!to_gpu && p.after >= NicDelivered)
        }
    }
}

/// Whether a post and a wait synchronise. `outside`: for a device outside the GPU, which only scope sys speaks about.
pub fn strong(u: &Unrolled<'_>, post: (u32, u32), wait: (u32, u32), outside: bool) -> bool {
    let (pt, wt) = (&u.tasks[post.0 as usize], &u.tasks[wait.0 as usize]);
    let (p, w) = (&pt.posts[post.1 as usize], &wt.waits[wait.1 as usize]);
    let sys = p.scope == Scope::Sys && w.scope == Scope::Sys;
    let hosts = is_host(u.agent(pt, p.agent)) || is_host(u.agent(wt, w.agent));
    sys || (!outside && pt.rank == wt.rank && !hosts)
}
