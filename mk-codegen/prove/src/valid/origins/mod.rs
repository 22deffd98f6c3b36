//! Rule 6, what tables in memory are made of: the experts, lists and counts of the right tokens and ranks, whatever the
//! routing.
//!
//! Where tasks read and write that make tables of a routing, no table says. So rows of integers are followed through a
//! launch: a row has the experts of a token, the list of a chunk, where rows of chunks begin, or entries of a table of
//! a rank. Each task that makes some of these must read what [`Tabulation`] makes it of, and write it where it belongs
//! (`route.rs`); then a table is what its line says, with every routing.

mod memory;
mod route;

use super::report::Violation;
use memory::{Ids, Memory, Slab, What, rows, slab};
use mk_abi::DType;
use mk_plan::{
    Axis, BufId, FamId, Family, LIST_TOKENS, Leaf, MAX_TASKS, Mode, Operand, Plan, Point,
    PointError, Points, Region, RoutePart, Space, TabId, Table, TableSet, TableSource, Tabulate,
    Tabulation, Task,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most looks at tasks, until all that they read is known.
const MAX_LOOKS: u64 = 1 << 23;

/// All chunks in their order: their first tokens, and how many those are.
#[derive(Debug, PartialEq, Eq)]
struct Partition {
    ids: Option<Ids>,
    experts: u32,
    chunks: Vec<(i64, i64)>,
}

/// Why a task makes nothing.
enum Stop {
    /// It reads what nobody has written yet.
    Missing(Region),
    /// It reads, or writes, something else than it should.
    Wrong(String),
    Point(PointError),
}

impl From<PointError> for Stop {
    fn from(e: PointError) -> Stop {
        Stop::Point(e)
    }
}

impl From<PointError> for Violation {
    fn from(e: PointError) -> Violation {
        Violation::Point(e)
    }
}

fn wrong<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Wrong(what.into()))
}

/// Tables of routings that are made of something else than their lines say.
pub(super) fn check(plan: &Plan, period: u32) -> Vec<Violation> {
    let out: Vec<Violation> =
        plan.families.iter().filter_map(|(id, x)| integers(plan, id, x)).collect();
    let routed = plan.tables.values().any(|t| t.routed.is_some() && t.stored.is_some());
    if !out.is_empty() || !routed {
        return out;
    }
    let tables = TableSet::example(plan);
    let launch = |epoch| Walk::new(Points::new(plan, &tables)).launch(epoch).err();
    (1..=i64::from(period)).find_map(launch).into_iter().collect()
}

/// Tables are made of integers, and are integers: of 32 bits, but for the experts of tokens.
fn integers(plan: &Plan, id: FamId, x: &Family) -> Option<Violation> {
    let Leaf::Tabulate(Tabulate { of }) = x.leaf else { return None };
    let wide = match of {
        Tabulation::Route { part, .. } => {
            use RoutePart::{Coming, Leaving, Lists, Places, Slots, Wanted};
            matches!(part, Lists | Wanted | Places | Slots | Leaving | Coming)
        }
        Tabulation::Blocks { .. }
        | Tabulation::Begins { .. }
        | Tabulation::Bounds { .. }
        | Tabulation::Meets { .. } => false,
    };
    let first = x.accesses.iter().position(|a| a.operand == Operand::Src);
    let found = x.accesses.iter().enumerate().find(|(i, a)| {
        let dtype = plan.buffers[a.buffer].dtype;
        let fits = dtype == DType::I32 || dtype == DType::I64 && wide && first == Some(*i);
        matches!(a.operand, Operand::Src | Operand::Dst) && !fits
    });
    let a = found?.1;
    let dtype = plan.buffers[a.buffer].dtype.name();
    Some(Violation::Capacity {
        place: format!("{id} {:?}", x.name),
        message: format!("`{}` is {dtype}, and tables are made of i32 ({})", a.operand, a.buffer),
    })
}

struct Walk<'p> {
    points: Points<'p>,
    plan: &'p Plan,
    memory: Memory,
    partitions: Vec<Partition>,
    /// Partitions, by the rows of lists that they are.
    known: HashMap<(Slab, (i64, i64)), usize>,
    /// By the input that has the experts of tokens: tokens of each of the ranks that share them, and room for those of
    /// one. Token `i` of rank `r` of these is number `r * room + i`.
    tokens: BTreeMap<BufId, (Vec<i64>, i64)>,
    /// Memory of which tables decide where it is written.
    chosen: BTreeSet<BufId>,
}

impl<'p> Walk<'p> {
    fn new(points: Points<'p>) -> Walk<'p> {
        Walk {
            plan: points.plan,
            points,
            memory: Memory::default(),
            partitions: Vec::new(),
            known: HashMap::new(),
            tokens: BTreeMap::new(),
            chosen: BTreeSet::new(),
        }
    }

    fn ranks(&self) -> usize {
        self.plan.mesh.size() as usize
    }

    /// Follows one launch.
    fn launch(&mut self, epoch: i64) -> Result<(), Violation> {
        let at = |task: &Task, stop: Stop, walk: &Walk<'_>| match stop {
            Stop::Point(e) => Violation::Point(e),
            Stop::Wrong(what) => walk.violation(task, what),
            Stop::Missing(region) => {
                let what = format!("it reads {}, which no task fills before", walk.named(&region));
                walk.violation(task, what)
            }
        };
        self.given()?;
        let mut pending = self.tasks(epoch)?;
        let mut looks = 0;
        while !pending.is_empty() {
            let (before, mut later, mut first) = (pending.len(), Vec::new(), None);
            looks += before as u64;
            if looks > MAX_LOOKS {
                let what = "looks at tasks that make tables".into();
                return Err(Violation::Limit { what, limit: MAX_LOOKS });
            }
            for task in pending {
                match self.task(&task) {
                    Ok(()) => {}
                    Err(stop @ Stop::Missing(_)) => {
                        first.get_or_insert_with(|| (task.clone(), stop));
                        later.push(task);
                    }
                    Err(stop) => return Err(at(&task, stop, self)),
                }
            }
            pending = later;
            let (true, Some((task, stop))) = (pending.len() == before, first) else { continue };
            // Tables are not made of anything else that there may be.
            let makes = |t: &Task| matches!(self.plan.families[t.family].leaf, Leaf::Tabulate(_));
            let (tables, others): (Vec<Task>, Vec<Task>) = pending.into_iter().partition(makes);
            if others.is_empty() {
                return Err(at(&task, stop, self));
            }
            for task in others {
                for region in self.operands(&task, Operand::Dst)?.into_iter().flatten() {
                    self.put(&region, What::Other, 0)?;
                }
            }
            pending = tables;
        }
        self.tables()
    }

    fn violation(&self, task: &Task, what: String) -> Violation {
        let x = &self.plan.families[task.family];
        let (tile, rank) = (task.domain(), task.rank());
        Violation::Capacity {
            place: format!("{} {:?}", task.family, x.name),
            message: format!("{what} (tile {tile:?} of rank {rank})"),
        }
    }

    /// A region, for messages.
    fn named(&self, region: &Region) -> String {
        let dims = region.dims.iter().map(|(base, n)| format!("{base} : {n}"));
        let dims = dims.collect::<Vec<_>>().join(", ");
        format!("{}[{dims}] of rank {}", region.buffer, region.rank)
    }

    /// What the caller gives.
    fn given(&mut self) -> Result<(), Violation> {
        let inputs = self.plan.buffers.iter().filter(|(_, b)| b.space == Space::In);
        for (id, b) in inputs.filter(|(_, b)| b.dtype.is_integer()) {
            let mut tokens = Vec::new();
            for rank in 0..self.ranks() {
                let shape = self.points.shape(id, rank)?;
                tokens.push(shape.first().copied().unwrap_or(1).max(0));
            }
            let stored = self.plan.tables.iter().filter(|(_, t)| t.stored == Some(id));
            let stored: Vec<TabId> = stored.map(|(id, _)| id).collect();
            let routed = || self.plan.tables.values().filter_map(|t| t.routed);
            let over = routed().find(|r| stored.contains(&r.ids)).map(|r| r.over(&self.plan.mesh));
            let is_ids = over.is_some();
            let over = over.unwrap_or(Axis { stride: 1, size: tokens.len() as u32 });
            let shared = (0..over.size as usize).map(|place| tokens[over.rank(0, place)]);
            let shared: Vec<i64> = shared.collect();
            let (all, ranks) = (shared.iter().sum::<i64>(), shared.len().max(1) as i64);
            let most = (all + ranks - 1) / ranks;
            let room =
                |id: &TabId| self.plan.tables[*id].shape.first().map_or(0, |n| i64::from(*n));
            let room = stored.iter().map(room).max().unwrap_or(0).max(most);
            for (rank, n) in tokens.iter().enumerate() {
                let place = over.place(rank) as i64;
                if is_ids && *n != (all - place * most).clamp(0, most) {
                    return Err(Violation::Capacity {
                        place: format!("{id} {:?}", b.name),
                        message: format!(
                            "has {n} of {all} tokens on rank {rank}: each rank has {most} of a routing, as long as \
                             there are some"
                        ),
                    });
                }
                let (what, at) = match stored.first() {
                    _ if is_ids => (What::Experts((id, over.rank(rank, 0))), place * room),
                    Some(table) => (What::Table(*table, rank), 0),
                    None => (What::Other, 0),
                };
                if *n > 0 {
                    self.memory.put((id, rank, 0), (0, *n), what, at);
                }
            }
            self.tokens.insert(id, (shared, room));
        }
        Ok(())
    }

    /// Tasks that touch integers. Those that tables decide about are followed no further: nothing is known of the
    /// memory that they write.
    fn tasks(&mut self, epoch: i64) -> Result<Vec<Task>, Violation> {
        let plan = self.plan;
        let mut tasks = Vec::new();
        for (id, x) in plan.families.iter() {
            let moved = || x.accesses.iter().filter(|a| !a.operand.looks_up());
            let mut integers = moved().filter(|a| plan.buffers[a.buffer].dtype.is_integer());
            if integers.next().is_none() {
                continue;
            }
            if looks_up(plan, x) {
                let written = moved().filter(|a| a.mode != Mode::Read);
                self.chosen.extend(written.map(|a| a.buffer));
                continue;
            }
            for rank in 0..self.ranks() {
                let room = MAX_TASKS - tasks.len() as u64;
                if self.points.count(id, rank, epoch, room)? > room {
                    return Err(Violation::Limit { what: "tasks".into(), limit: MAX_TASKS });
                }
                tasks.extend(self.points.tasks(id, rank, epoch)?);
            }
        }
        Ok(tasks)
    }

    /// Regions of an operand, in the order of lines and repetitions; none where it is empty.
    fn operands(&self, task: &Task, operand: Operand) -> Result<Vec<Option<Region>>, PointError> {
        let x = &self.plan.families[task.family];
        let mut out = Vec::new();
        for a in x.accesses.iter().filter(|a| a.operand == operand) {
            let steps = if a.at == Point::Inner { self.points.inner(task)? } else { 1 };
            for step in 0..steps {
                let one = |at: &Task| -> Result<(), PointError> {
                    out.push(self.points.region(at, a)?);
                    Ok(())
                };
                self.points.for_each(task, step, a.each.as_ref(), a.when.as_ref(), one)?;
            }
        }
        Ok(out)
    }

    /// Whether a region has whole rows.
    fn whole(&self, region: &Region) -> Result<bool, PointError> {
        let shape = self.points.shape(region.buffer, region.rank)?;
        let others = region.dims.iter().zip(&shape).skip(1);
        Ok(others.into_iter().all(|((base, n), all)| *base == 0 && n == all))
    }

    fn put(&mut self, region: &Region, what: What, at: i64) -> Result<(), PointError> {
        let known = self.whole(region)? && !self.chosen.contains(&region.buffer);
        let what = if known { what } else { What::Other };
        self.memory.put(slab(region), rows(region), what, at);
        Ok(())
    }

    /// What the rows of a region have, piece by piece.
    fn get(&self, region: &Region) -> Result<Vec<memory::Piece>, Stop> {
        let all = rows(region);
        let other = memory::Piece { begin: all.0, end: all.1, what: What::Other, at: 0 };
        if self.chosen.contains(&region.buffer) {
            return Ok(vec![other]);
        }
        let Some(pieces) = self.memory.get(slab(region), all) else {
            return Err(Stop::Missing(region.clone()));
        };
        Ok(if self.whole(region)? { pieces } else { vec![other] })
    }

    fn task(&mut self, task: &Task) -> Result<(), Stop> {
        let x = &self.plan.families[task.family];
        match &x.leaf {
            Leaf::Tabulate(Tabulate { of: Tabulation::Route { .. } }) => self.route(task),
            Leaf::Tabulate(Tabulate {
                of:
                    Tabulation::Blocks { .. }
                    | Tabulation::Begins { .. }
                    | Tabulation::Bounds { .. }
                    | Tabulation::Meets { .. },
            }) => self.blocks(task),
            leaf if leaf.copies() => self.copy(task),
            _ => {
                for region in self.operands(task, Operand::Dst)?.into_iter().flatten() {
                    self.put(&region, What::Other, 0)?;
                }
                Ok(())
            }
        }
    }

    /// A copy of one region, which may go to several; or of as many as there are destinations.
    fn copy(&mut self, task: &Task) -> Result<(), Stop> {
        let [from, to] = [Operand::Src, Operand::Dst].map(|o| self.operands(task, o));
        let (from, to) = (from?, to?);
        let mut writes = Vec::new();
        for (i, region) in to.iter().enumerate() {
            let Some(region) = region else { continue };
            let source = match &from[..] {
                [one] => one.as_ref(),
                several if several.len() == to.len() => several[i].as_ref(),
                _ => None,
            };
            let same = |a: &Region| a.dims.iter().map(|d| d.1).eq(region.dims.iter().map(|d| d.1));
            match source {
                Some(source) if same(source) => {
                    let shift = rows(region).0 - rows(source).0;
                    let pieces = self.get(source)?;
                    writes.push((region.clone(), pieces, shift));
                }
                _ => {
                    from.iter().flatten().try_for_each(|r| self.get(r).map(|_| ()))?;
                    writes.push((region.clone(), Vec::new(), 0));
                }
            }
        }
        for (region, pieces, shift) in writes {
            if pieces.is_empty() || !self.whole(&region)? || self.chosen.contains(&region.buffer) {
                self.put(&region, What::Other, 0)?;
                continue;
            }
            for p in pieces {
                self.memory.put(slab(&region), (p.begin + shift, p.end + shift), p.what, p.at);
            }
        }
        Ok(())
    }

    /// The structure of a plan says what a table of blocks is made of.
    fn blocks(&mut self, task: &Task) -> Result<(), Stop> {
        for region in self.operands(task, Operand::Src)?.into_iter().flatten() {
            self.get(&region)?;
        }
        for region in self.operands(task, Operand::Dst)?.into_iter().flatten() {
            let mut tables = self.plan.tables.iter();
            let table = tables.find(|(_, t)| t.stored == Some(region.buffer));
            let what = table.map_or(What::Other, |(t, _)| What::Table(t, region.rank));
            self.put(&region, what, rows(&region).0)?;
        }
        Ok(())
    }

    /// Tables of a routing have their own entries, where they were written.
    fn tables(&self) -> Result<(), Violation> {
        let routed = |t: &Table| match t.source {
            TableSource::Blocks { of, .. } | TableSource::Prefix { of, .. } => {
                self.plan.tables[of].routed.is_some()
            }
            _ => t.routed.is_some(),
        };
        for (id, t) in self.plan.tables.iter().filter(|(_, t)| routed(t)) {
            if let Some(message) = self.beyond(t) {
                return Err(Violation::Capacity { place: format!("{id} {:?}", t.name), message });
            }
            let Some(buffer) = t.stored else { continue };
            let what = |rank| What::Table(self.first(id), rank);
            let own = |rank, p: &memory::Piece| p.at == p.begin && p.what == what(rank);
            if let Some((rank, p)) = self.memory.of(buffer).find(|(rank, p)| !own(*rank, p)) {
                return Err(Violation::Capacity {
                    place: format!("{id} {:?}", t.name),
                    message: format!(
                        "rows {}..{} of {buffer} on rank {rank} have something else than this table",
                        p.begin, p.end
                    ),
                });
            }
        }
        Ok(())
    }

    /// Why some routing has an entry beyond those that a table's line allows, of which alone a proof is.
    fn beyond(&self, t: &Table) -> Option<String> {
        let (routed, TableSource::Runtime { min, max }) = (t.routed?, &t.source) else {
            return None;
        };
        let (tokens, room) = self.tokens.get(&self.plan.tables[routed.ids].stored?)?;
        let last = (0i64..).zip(tokens).filter(|(_, n)| **n > 0).last();
        let all: i64 = tokens.iter().sum();
        let most = match routed.part {
            RoutePart::Counts if routed.keep > 0 => all.min(i64::from(routed.keep)),
            RoutePart::Counts => all,
            RoutePart::Sources => last.map_or(0, |(rank, n)| rank * room + n - 1),
            RoutePart::Dropped => {
                let slots = self.plan.tables[routed.ids].shape.last();
                let most = tokens.iter().max().copied().unwrap_or(0);
                most * slots.map_or(0, |slots| i64::from(*slots))
            }
            RoutePart::Slots => {
                let of = self.plan.tables[routed.ids].shape.last();
                of.map_or(0, |slots| i64::from(*slots) - 1)
            }
            RoutePart::Crossing => LIST_TOKENS as i64,
            RoutePart::Leaving | RoutePart::Coming => LIST_TOKENS as i64 - 1,
            _ => 1,
        };
        let least = i32::from(routed.part == RoutePart::Crossing);
        let fits = *min <= least && most <= i64::from(*max);
        (!fits).then(|| {
            format!("has entries of {min}..={max}, and a routing may have {least}..={most}")
        })
    }

    /// The first of tables that say the same of the same memory.
    fn first(&self, id: TabId) -> TabId {
        let t = &self.plan.tables[id];
        let says = |t: &Table| (t.stored, t.routed, t.source.clone());
        self.plan.tables.iter().find(|(_, o)| says(o) == says(t)).map_or(id, |(o, _)| o)
    }
}

/// Whether a table that is not in the plan decides what tasks a family has, or what one of them touches.
fn looks_up(plan: &Plan, x: &Family) -> bool {
    let decides = |t: TabId| !matches!(plan.tables[t].source, TableSource::Const(_));
    let accesses = x.accesses.iter().flat_map(|a| {
        let region = a.region.iter().flat_map(|(base, n)| [base, n]);
        region.chain([&a.rank, &a.version]).chain(&a.when).chain(a.each.iter().map(|e| &e.extent))
    });
    let loops = x.domain.iter().chain(&x.inner).map(|(_, n)| n);
    accesses.chain(loops).chain(&x.order).any(|e| e.any_table(decides))
}
