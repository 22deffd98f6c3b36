//! The unrolled plan: tasks, accesses, waits and posts on every rank, and the numbering of words and boxes.
//!
//! Epochs of the same [`Class`] (same residue of the slot period, same tables) are unrolled once and shared: what differs
//! between them is only the epoch number. An event's *step* is 0 for `start`, `1 + i` for iteration `i` of the inner
//! loop, and `1 + n` for `end`; within a step an agent first waits, then accesses, then posts.

use super::{
    boxes::{BoxId, Boxes},
    report::Violation,
    rotation::{self, Rotation, Turned},
    runtime::{Cell, Halt},
    spans::{ALWAYS, LiveId, function::Piece},
    unroll::{MAX_ELEMENTS, MAX_WORDS, Unroller},
    within::Late,
};
use mk_plan::{
    Agent, Contract, Entity, Expr, FamId, Family, Leaf, Mode, Plan, PointError, Points, Proxy,
    SigId, TableSet,
};
use std::ops::Range;

/// An edge of a contract by positions in its list of agents.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub from: u8,
    pub to: u8,
}

/// What the contract of a family's leaf says, in the form that the checks use.
pub(super) struct FamInfo {
    pub contract: Contract,
    /// Edges along which data flows.
    pub flows: Vec<Flow>,
    /// Back-pressure: `from` gives a stage back to `to`.
    pub backs: Vec<Flow>,
    /// Agents that pass on what others give them, or have no operands at all.
    pub relay: Vec<bool>,
    /// The number of each agent that there is, by its place in [`Agent::ALL`].
    numbers: [Option<u8>; Agent::ALL.len()],
    /// Waits that look something up in memory.
    pub late: Late,
}

impl FamInfo {
    fn new(plan: &Plan, x: &Family) -> FamInfo {
        let (contract, late) = (x.leaf.contract(), Late::of(plan, x));
        let at = |a: Agent| contract.agents.iter().position(|x| *x == a).unwrap_or(0) as u8;
        let edges = |back: bool| {
            let of_kind = contract.edges.iter().filter(move |e| e.depth.is_some() == back);
            of_kind.map(|e| Flow { from: at(e.from), to: at(e.to) }).collect::<Vec<_>>()
        };
        let (flows, backs) = (edges(false), edges(true));
        let relay = contract.agents.iter().map(|a| {
            flows.iter().any(|f| f.to == at(*a)) || contract.operands.iter().all(|o| o.agent != *a)
        });
        let numbers = std::array::from_fn(|i| {
            contract.agents.iter().position(|a| *a as usize == i).map(|n| n as u8)
        });
        FamInfo { relay: relay.collect(), flows, backs, numbers, contract, late }
    }
    pub fn agent(&self, index: u8) -> Agent {
        self.contract.agents[usize::from(index)]
    }
    pub fn index(&self, agent: Agent) -> u8 {
        self.number(agent).unwrap_or(0)
    }
    /// The number of an agent, if the leaf has it.
    pub fn number(&self, agent: Agent) -> Option<u8> {
        self.numbers[agent as usize]
    }
}

/// Whether an agent runs on a host, or is a copy engine.
pub(super) fn is_host(agent: Agent) -> bool {
    matches!(agent, Agent::Sender | Agent::Receiver | Agent::Engine)
}

pub(super) struct TaskRec {
    pub family: FamId,
    pub rank: u32,
    /// Steps: iterations of the inner loop, and 2.
    pub steps: u32,
    pub domain: Box<[i64]>,
    pub accs: Range<u32>,
    pub waits: Range<u32>,
    pub posts: Range<u32>,
}

#[derive(Clone, Copy)]
pub(super) struct AccRec {
    pub task: u32,
    pub line: u32,
    pub agent: u8,
    pub proxy: Proxy,
    pub mode: Mode,
    pub step: u32,
    pub boxed: BoxId,
    pub version: i64,
    /// Of ranks that are folded: the turn of the task that makes this access to memory of rank 0.
    pub turn: u32,
}

#[derive(Clone, Copy)]
pub(super) struct WaitRec {
    pub task: u32,
    pub line: u32,
    pub agent: u8,
    pub step: u32,
    pub word: u32,
    pub count: i64,
}

#[derive(Clone, Copy)]
pub(super) struct PostRec {
    pub task: u32,
    pub line: u32,
    pub agent: u8,
    pub step: u32,
    pub word: u32,
    pub add: i64,
}

/// The rank that an access names, whether there is memory in its region or none.
#[derive(Clone, Copy)]
pub(super) struct NamedRec {
    pub task: u32,
    pub line: u32,
    pub rank: u32,
}

/// All events of one epoch; of ranks that are folded, those of rank 0. Events of a task are contiguous and ascend in step.
#[derive(Default)]
pub(super) struct Class {
    pub tasks: Vec<TaskRec>,
    pub accs: Vec<AccRec>,
    pub waits: Vec<WaitRec>,
    pub posts: Vec<PostRec>,
    /// Where there is more than a node, or a send: of accesses to nothing, and of all of sends.
    pub named: Vec<NamedRec>,
    /// Tasks of each rank.
    pub ranks: Vec<Range<u32>>,
    /// Posts to each word: `by_word[starts[w]..starts[w + 1]]`.
    starts: Vec<u32>,
    by_word: Vec<u32>,
}

impl Class {
    /// Posts to a word, by index.
    pub fn posts_of(&self, word: u32) -> &[u32] {
        let w = word as usize;
        &self.by_word[self.starts[w] as usize..self.starts[w + 1] as usize]
    }

    pub fn index_words(&mut self, words: usize, rotation: Rotation) {
        self.starts = vec![0; words + 1];
        for p in &self.posts {
            self.starts[rotation.own(p.word) as usize + 1] += 1;
        }
        for w in 0..words {
            self.starts[w + 1] += self.starts[w];
        }
        let mut next = self.starts.clone();
        self.by_word = vec![0; self.posts.len()];
        for (i, p) in self.posts.iter().enumerate() {
            let slot = &mut next[rotation.own(p.word) as usize];
            self.by_word[*slot as usize] = i as u32;
            *slot += 1;
        }
    }
}

/// Signal words of all ranks, numbered densely.
pub(super) struct Words {
    /// First word of each signal on each rank, with its extents.
    arrays: Vec<Vec<(u32, Vec<i64>)>>,
    /// How many there are; of ranks that are folded, on each.
    pub total: usize,
}

impl Words {
    pub fn find(&self, rank: usize, signal: SigId, index: &[i64]) -> Option<u32> {
        let (base, shape) = self.arrays.get(rank)?.get(signal.index())?;
        let mut flat = 0i64;
        for (i, n) in index.iter().zip(shape) {
            if !(0..*n).contains(i) {
                return None;
            }
            flat = flat * n + i;
        }
        Some(base + flat as u32)
    }

    /// Extents of a signal array.
    pub fn shape(&self, rank: usize, signal: SigId) -> &[i64] {
        &self.arrays[rank][signal.index()].1
    }

    /// Rank, signal and index of a word.
    pub fn name(&self, word: u32) -> (usize, SigId, Vec<i64>) {
        let last = |arrays: &Vec<(u32, Vec<i64>)>| arrays.partition_point(|a| a.0 <= word);
        let rank = self.arrays.partition_point(|r| r.first().is_some_and(|a| a.0 <= word));
        let rank = rank.saturating_sub(1);
        let signal = last(&self.arrays[rank]).saturating_sub(1);
        let (base, shape) = &self.arrays[rank][signal];
        let mut flat = i64::from(word - base);
        let mut index = vec![0; shape.len()];
        for (slot, n) in index.iter_mut().zip(shape).rev() {
            *slot = flat % n.max(&1);
            flat /= n.max(&1);
        }
        (rank, SigId::new(signal), index)
    }
}

/// Pairs of epochs: each of the last ones as the later one, with itself and those so many epochs back.
pub(super) struct Window {
    pub later: u32,
    pub back: u32,
}

/// A plan unrolled for one choice of tables in every epoch.
pub(super) struct World<'a> {
    pub plan: &'a Plan,
    pub fams: Vec<FamInfo>,
    pub ranks: usize,
    pub words: Words,
    pub boxes: Boxes,
    pub classes: Vec<Class>,
    /// Whether rank 0 stands for all ranks.
    pub rotation: Rotation,
    /// The dimensions that it turns.
    pub turned: Option<Turned>,
    /// Class of each epoch; index 0 is epoch 1.
    pub class_of: Vec<usize>,
    /// After how many epochs the plan repeats.
    pub period: u32,
    /// Which pairs of epochs are compared.
    pub window: Window,
    /// Whether only tasks at the ends of loops are here.
    pub ends_only: bool,
    /// Extents of each buffer on each rank; with a run-time dimension for the greatest value of the first cell.
    pub shapes: Vec<Vec<Vec<i64>>>,
    /// For each class, all values of the run-time dimension that it stands for.
    pub whole: Vec<LiveId>,
    /// Whether epochs differ in tasks, waits and posts: those before the first one may be any.
    pub mixed: bool,
}

impl<'a> World<'a> {
    /// Unrolls. `epochs[i]` is the set of tables of epoch `i + 1`; epochs share a class if they have the same tables
    /// and the same residue of `period`.
    pub fn new(
        plan: &'a Plan,
        period: u32,
        epochs: &[usize],
        tables: &[TableSet],
    ) -> Result<World<'a>, Vec<Violation>> {
        let none = TableSet::default();
        let points: Vec<Points<'_>> = match tables {
            [] => vec![Points::new(plan, &none)],
            sets => sets.iter().map(|set| Points::noting(plan, set)).collect(),
        };
        let mut world = World::empty(plan, period, &points[0])?;
        world.unroll_tables(epochs, &points).map_err(Halt::violations)?;
        Ok(world)
    }

    /// The same of the tasks at the ends of loops alone: for what is looked at task by task.
    pub fn ends(
        plan: &'a Plan,
        period: u32,
        epochs: &[usize],
        tables: &[TableSet],
    ) -> Result<World<'a>, Vec<Violation>> {
        let points: Vec<_> = tables.iter().map(|set| Points::noting(plan, set)).collect();
        let mut world = World::empty(plan, period, &points[0])?;
        world.ends_only = true;
        world.unroll_tables(epochs, &points).map_err(Halt::violations)?;
        Ok(world)
    }

    /// The same with all ranks folded into rank 0, of a plan without tables of a launch. `None` where they are not alike, or anything
    /// is wrong.
    pub fn folded(
        plan: &'a Plan,
        period: u32,
        epochs: &[usize],
        tables: &TableSet,
    ) -> Option<World<'a>> {
        let points = [Points::noting(plan, tables)];
        let mut world = World::empty(plan, period, &points[0]).ok()?;
        world.fold(&points[0], |_| true)?;
        world.unroll_tables(epochs, &points).ok()?;
        Some(world)
    }

    fn unroll_tables(&mut self, epochs: &[usize], points: &[Points<'_>]) -> Result<(), Halt> {
        self.unroll(epochs, |world, set, epoch| {
            Unroller::run(world, points.get(set).unwrap_or(&points[0]), None, epoch)
                .map(|class| (class, ALWAYS))
        })
    }

    /// Whether something may go from node to node.
    pub fn is_far(&self) -> bool {
        let sends = |x: &Family| x.leaf == Leaf::NicSend;
        let nodes = self.plan.nic.is_some() || self.plan.mesh.axes.iter().any(|a| a.0 == "node");
        nodes || self.plan.families.values().any(sends)
    }

    /// Sets out to fold ranks: `fixed` says which extents are the same for all values of a run-time dimension.
    fn fold(&mut self, points: &Points<'_>, fixed: impl Fn(&Expr) -> bool) -> Option<()> {
        if self.ranks < 2 || self.is_far() {
            return None;
        }
        self.turned = Some(rotation::guess(self, points, fixed)?);
        self.words.total /= self.ranks;
        self.rotation = Rotation::of(self.ranks, self.words.total);
        Some(())
    }

    /// Unrolls for all values of the run-time dimension. `epochs[i]` is the cell of epoch `i + 1`. An error names the cell.
    pub fn over(
        plan: &'a Plan,
        period: u32,
        epochs: &[usize],
        cells: &[Cell<'_>],
    ) -> Result<World<'a>, (usize, Halt)> {
        let world = World::empty(plan, period, cells[0].points);
        let mut world = world.map_err(|v| (0, Halt::Broken(v)))?;
        world.unroll_cells(epochs, cells)?;
        Ok(world)
    }

    /// The same with all ranks folded into rank 0; `None` where they are not alike, or anything is wrong.
    pub fn folded_over(
        plan: &'a Plan,
        period: u32,
        epochs: &[usize],
        cells: &[Cell<'_>],
    ) -> Option<World<'a>> {
        let alike = |of_ranks: &Vec<Vec<Vec<Piece>>>| of_ranks.iter().all(|s| *s == of_ranks[0]);
        if cells.iter().any(|c| !c.shapes.iter().all(alike)) {
            return None;
        }
        let (mut world, dim) =
            (World::empty(plan, period, cells[0].points).ok()?, cells[0].functions.dim);
        world.fold(cells[0].points, |e| !e.names_dim(dim))?;
        world.unroll_cells(epochs, cells).ok()?;
        Some(world)
    }

    fn unroll_cells(&mut self, epochs: &[usize], cells: &[Cell<'_>]) -> Result<(), (usize, Halt)> {
        let world = self;
        world.boxes.spans = Some(super::runtime::spans_of(cells));
        world.mixed = cells.len() > 1;
        world.unroll(epochs, |world, id, epoch| {
            let cell = &cells[id];
            Unroller::run(world, cell.points, Some(cell), epoch)
                .map(|class| (class, cell.whole))
                .map_err(|halt| (id, halt))
        })
    }

    fn empty(plan: &'a Plan, period: u32, first: &Points<'_>) -> Result<World<'a>, Vec<Violation>> {
        let words = words(plan, first)?;
        Ok(World {
            plan,
            fams: plan.families.values().map(|x| FamInfo::new(plan, x)).collect(),
            ranks: plan.mesh.size() as usize,
            rotation: Rotation::none(words.total),
            turned: None,
            words,
            boxes: Boxes::default(),
            classes: Vec::new(),
            class_of: Vec::new(),
            period,
            window: Window { later: period, back: u32::MAX },
            ends_only: false,
            shapes: shapes(plan, first)?,
            whole: Vec::new(),
            mixed: false,
        })
    }

    fn unroll<E>(
        &mut self,
        epochs: &[usize],
        mut class: impl FnMut(&mut Self, usize, i64) -> Result<(Class, LiveId), E>,
    ) -> Result<(), E> {
        let mut known: Vec<(u32, usize)> = Vec::new();
        for (i, source) in epochs.iter().enumerate() {
            let key = (i as u32 % self.period.max(1), *source);
            let id = known.iter().position(|k| *k == key).unwrap_or(known.len());
            if id == known.len() {
                known.push(key);
                let (class, whole) = class(self, *source, i as i64 + 1)?;
                self.classes.push(class);
                self.whole.push(whole);
            }
            self.class_of.push(id);
        }
        Ok(())
    }

    /// Ranks whose memory and words are looked at.
    pub fn ranks_looked_at(&self) -> usize {
        if self.rotation.is_folded() { 1 } else { self.ranks }
    }
    /// The rank that makes a post, to a word as it is looked at.
    pub fn poster(&self, class: &Class, p: &PostRec) -> u32 {
        let back = self.rotation.back(self.rotation.turn_of(p.word));
        self.rotation.rank(class.tasks[p.task as usize].rank, back)
    }
    /// Number of epochs.
    pub fn epochs(&self) -> u32 {
        self.class_of.len() as u32
    }
    /// The events of an epoch, counted from 1.
    pub fn class(&self, epoch: u32) -> &Class {
        &self.classes[self.class_of[epoch as usize - 1]]
    }
    /// All values of the run-time dimension that an epoch stands for.
    pub fn whole(&self, epoch: u32) -> LiveId {
        self.whole[self.class_of[epoch as usize - 1]]
    }
    pub fn info(&self, family: FamId) -> &FamInfo {
        &self.fams[family.index()]
    }
}

fn one(e: PointError) -> Vec<Violation> {
    vec![Violation::Point(e)]
}

/// Memory and words that are more than anybody unrolls.
pub fn too_much(plan: &Plan) -> Option<Violation> {
    let tables = TableSet::new(plan, |_, _| Vec::new());
    let points = Points::new(plan, &tables);
    let found = shapes(plan, &points).err().or_else(|| words(plan, &points).err())?;
    found.into_iter().find(Violation::is_too_large)
}

fn shapes(plan: &Plan, points: &Points<'_>) -> Result<Vec<Vec<Vec<i64>>>, Vec<Violation>> {
    let mut out = Vec::new();
    for id in plan.buffers.keys() {
        let mut per_rank = Vec::new();
        for rank in 0..plan.mesh.size() as usize {
            let shape = points.shape(id, rank).map_err(one)?;
            let place = || format!("{id} {:?}", plan.buffers[id].name);
            if shape.iter().any(|x| *x < 0) {
                let message = format!("{shape:?} on rank {rank} is negative");
                return Err(vec![Violation::Capacity { place: place(), message }]);
            }
            let elements = shape.iter().try_fold(1i64, |n, x| n.checked_mul(*x));
            if elements.is_none_or(|n| n > MAX_ELEMENTS) {
                let what = format!("elements of {}, {shape:?} on rank {rank}", place());
                return Err(vec![Violation::Limit { what, limit: MAX_ELEMENTS as u64 }]);
            }
            let (row, pitch) =
                (shape.last().copied().unwrap_or(0), points.pitch(id, rank).map_err(one)?);
            let rows = shape.iter().rev().skip(1).try_fold(1i64, |n, x| n.checked_mul(*x));
            let spread = rows.and_then(|n| n.checked_mul(pitch));
            if pitch < row {
                return Err(vec![Violation::Capacity {
                    place: place(),
                    message: format!(
                        "rows of {row} elements on rank {rank} are {pitch} apart: a pitch is at least a row"
                    ),
                }]);
            }
            if spread.is_none_or(|n| n > MAX_ELEMENTS) {
                let what = format!(
                    "elements that rows of {}, {pitch} apart on rank {rank}, lie in",
                    place()
                );
                return Err(vec![Violation::Limit { what, limit: MAX_ELEMENTS as u64 }]);
            }
            per_rank.push(shape);
        }
        out.push(per_rank);
    }
    Ok(out)
}

fn words(plan: &Plan, points: &Points<'_>) -> Result<Words, Vec<Violation>> {
    let mut total = 0u64;
    let mut arrays = Vec::new();
    for rank in 0..plan.mesh.size() as usize {
        let mut of_rank = Vec::new();
        for id in plan.signals.keys() {
            let shape = points.signal_shape(id, rank).map_err(one)?;
            let n = shape.iter().try_fold(1u64, |n, x| n.checked_mul(u64::try_from(*x).ok()?));
            of_rank.push((total as u32, shape));
            total = n.map_or(u64::MAX, |n| total.saturating_add(n));
            if total > MAX_WORDS {
                return Err(vec![Violation::Limit {
                    what: format!("signal words, with {id}"),
                    limit: MAX_WORDS,
                }]);
            }
        }
        arrays.push(of_rank);
    }
    Ok(Words { arrays, total: total as usize })
}
