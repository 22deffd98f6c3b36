//! Contents for run-time tables: the cases on which proofs about all tables are tested.

use mk_plan::{
    Axis, Entity, Env, Plan, RoutePart, TabId, Table, TableSet, TableSource, entries, needed,
    no_tables,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeSet;

/// A way to fill the run-time tables of a plan. Entries stay within their declared ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Every entry is its least value.
    Min,
    /// Every entry is its greatest value.
    Max,
    /// Entry `i` (modulo the number of entries) is the greatest, all others the least value.
    OneMax(usize),
    /// Least and greatest values take turns; odd ranks begin with the greatest.
    Alternate,
    /// Random entries, different on every rank.
    Random(u64),
}

impl TableKind {
    /// The kinds on which the verifier runs every plan that has run-time tables.
    pub const ALL: &'static [TableKind] = &[
        TableKind::Random(1),
        TableKind::Max,
        TableKind::Min,
        TableKind::Alternate,
        TableKind::OneMax(0),
        TableKind::Random(2),
        TableKind::OneMax(1),
        TableKind::Random(3),
    ];
}

/// Most visits of tasks, over all counts.
pub const MAX_WORK: u64 = 1 << 21;

/// How much of tables of a launch a proof looks at.
#[derive(Clone, Copy)]
pub struct Samples {
    /// Contents on which all rules are run.
    pub kinds: &'static [TableKind],
    /// Most visits of tasks over all counts.
    pub work: u64,
    /// Steps from the greatest count to the least one, at least, whatever they cost.
    pub counts: u64,
}

impl Samples {
    /// What [`super::verify`] looks at.
    pub const ALL: Samples = Samples { kinds: TableKind::ALL, work: MAX_WORK, counts: 4 };
}

/// What a proof looks at of a plan that differs in size alone from one that was looked at closely.
pub(super) const OTHERS: Samples =
    Samples { kinds: &[TableKind::Random(1), TableKind::Max], work: 1 << 18, counts: 2 };

/// Fills the run-time tables of a plan, on every rank, as a launch may have them.
pub fn sample_tables(plan: &Plan, kind: TableKind) -> TableSet {
    let nodes = Nodes::of(plan);
    let counts = |rank: usize, id: TabId, raised: bool| {
        let (n, min, max) = bounds(plan, id);
        let rank = if same_everywhere(plan, id) { 0 } else { nodes.number(rank) };
        let at = place(rank, id);
        let mut values: Vec<i32> = match kind {
            TableKind::Random(seed) => {
                let mut rng = SmallRng::seed_from_u64(seed ^ at);
                (0..n).map(|_| rng.random_range(min..=max)).collect()
            }
            _ => (0..n).map(|i| if kind.is_greatest(rank, i, n) { max } else { min }).collect(),
        };
        if let (true, true, Some(first)) = (raised, nodes.first(rank), values.first_mut()) {
            *first = (*first).max(1.min(max));
        }
        fit(plan, id, min, &mut values);
        values
    };
    let pick = |rank: usize, id: TabId, i: usize, of: u64| match kind {
        TableKind::Random(seed) => {
            let at = place(nodes.number(rank), id) ^ (i as u64) << 8;
            SmallRng::seed_from_u64(seed ^ at).random_range(0..of)
        }
        _ if kind.is_greatest(nodes.number(rank), i, usize::MAX) => of - 1,
        _ => 0,
    };
    // Which parts meet is the same on all ranks, and may be anything.
    let met = |_: usize, id: TabId| is_met(plan, id).then(|| counts(0, id, false));
    let filled = complete(plan, |rank, id| counts(rank, id, false), met, pick);
    // Places are in rows that there are.
    let empty = |of: &TabId| {
        let rows = filled.filled(plan, *of);
        nodes.all().any(|of| rows.of_ranks(|rank| nodes.near(of, rank)).is_empty())
    };
    let lacking: Vec<TabId> = places(plan).filter(empty).filter_map(|b| counted(plan, b)).collect();
    if lacking.is_empty() {
        return filled;
    }
    complete(plan, |rank, id| counts(rank, id, lacking.contains(&id)), met, pick)
}

/// Whether a table says which parts of a sequence meet.
fn is_met(plan: &Plan, id: TabId) -> bool {
    matches!(plan.tables[id].source, TableSource::Meets { .. })
}

/// Whether all ranks have the same entries: they are of all tokens, and nodes.
fn same_everywhere(plan: &Plan, id: TabId) -> bool {
    plan.tables[id].routed.is_some_and(|r| r.part == RoutePart::Crossing)
}

impl TableKind {
    /// Whether entry `i` of `n` of a rank is the greatest value.
    fn is_greatest(self, rank: usize, i: usize, n: usize) -> bool {
        match self {
            TableKind::Max => true,
            TableKind::OneMax(at) => i == at % n.max(1),
            TableKind::Alternate => !(i + rank).is_multiple_of(2),
            TableKind::Min | TableKind::Random(_) => false,
        }
    }
}

/// A seed for a table of a rank.
fn place(rank: usize, id: TabId) -> u64 {
    (rank as u64) << 32 ^ (id.index() as u64) << 48
}

/// The ranks among which places are: those that share a routing; of a table that says so, those of a node. Ranks at one
/// place of several groups have the same tables: some of them may have the same tokens.
#[derive(Clone, Copy)]
struct Nodes {
    ranks: usize,
    over: Axis,
    local: usize,
}

impl Nodes {
    fn of(plan: &Plan) -> Nodes {
        let ranks = plan.mesh.size().max(1) as usize;
        let routed = || plan.tables.values().filter_map(|t| t.routed);
        let over = routed().find_map(|r| r.along);
        let over = over.unwrap_or(Axis { stride: 1, size: ranks as u32 });
        let local = routed().map(|r| r.local as usize).max().filter(|local| *local > 0);
        Nodes { ranks, over, local: local.unwrap_or(over.size as usize) }
    }

    /// As places of a table go.
    fn of_table(self, table: &Table) -> Nodes {
        match table.routed.map_or(0, |r| r.local as usize) {
            0 => Nodes { local: self.over.size as usize, ..self },
            local => Nodes { local, ..self },
        }
    }

    /// The number of a rank among those that share a routing.
    fn number(self, rank: usize) -> usize {
        self.over.place(rank)
    }

    fn first(self, rank: usize) -> bool {
        self.number(rank).is_multiple_of(self.local)
    }

    fn last(self, rank: usize) -> bool {
        (self.number(rank) + 1).is_multiple_of(self.local)
    }

    /// A rank of each.
    fn all(self) -> impl Iterator<Item = usize> {
        (0..self.ranks).filter(move |rank| self.first(*rank))
    }

    /// The number of a rank that is in the same one as `of`.
    fn near(self, of: usize, rank: usize) -> Option<usize> {
        let node = |rank: usize| (self.over.group(rank), self.number(rank) / self.local);
        (node(of) == node(rank)).then(|| self.number(rank))
    }
}

/// The tables of blocks in which there are places.
fn places(plan: &Plan) -> impl Iterator<Item = TabId> {
    plan.tables.values().filter_map(|t| match t.source {
        TableSource::Places { of } => Some(of),
        _ => None,
    })
}

/// The counts that a table of blocks is made from.
fn counted(plan: &Plan, blocks: TabId) -> Option<TabId> {
    match plan.tables[blocks].source {
        TableSource::Blocks { of, .. } => Some(of),
        _ => None,
    }
}

/// Takes rows away from the last groups, until the blocks that are made from these counts hold the others.
fn fit(plan: &Plan, counts: TabId, min: i32, values: &mut [i32]) {
    for table in plan.tables.values() {
        let TableSource::Blocks { of, rows } = table.source else { continue };
        if of != counts {
            continue;
        }
        let least = needed(&[min], rows);
        let mut free = table.shape.first().map_or(0, |n| i64::from(*n));
        let mut behind = values.len() as i64;
        for value in &mut *values {
            behind -= 1;
            let room = (free - least * behind).max(0).saturating_mul(i64::from(rows));
            *value = i64::from(*value).min(room).max(i64::from(min)) as i32;
            free -= needed(&[*value], rows);
        }
    }
}

/// Tables with contents of the caller's, and of derived ones, and places that `pick(rank, table, entry, rows)` takes
/// from the filled rows.
fn complete(
    plan: &Plan,
    given: impl Fn(usize, TabId) -> Vec<i32>,
    instead: impl Fn(usize, TabId) -> Option<Vec<i32>>,
    pick: impl Fn(usize, TabId, usize, u64) -> u64,
) -> TableSet {
    let blocks = |id: TabId| match plan.tables[id].source {
        TableSource::Places { of } => Some(of),
        _ => None,
    };
    let none = |rank, id| blocks(id).map_or_else(|| given(rank, id), |_| Vec::new());
    let set = TableSet::with(plan, none, &instead);
    if places(plan).next().is_none() {
        return set;
    }
    let with = |rank, id| {
        let Some(of) = blocks(id) else { return given(rank, id) };
        let near = Nodes::of(plan).of_table(&plan.tables[id]);
        let rows = set.filled(plan, of).of_ranks(|other| near.near(rank, other));
        let n = entries(&plan.tables[id]) / 2;
        let row = |i| rows.get(pick(rank, id, i, rows.len().max(1))).unwrap_or_default();
        (0..n).map(row).flat_map(|(rank, row)| [rank, row]).collect()
    };
    TableSet::with(plan, with, &instead)
}

/// Tables in which every group has `count` of rows, as far as its range goes: where `counts` has a table that comes
/// with a launch, its entries; where it has one of blocks, the rows of each. Some tables have entries of a flag's
/// value, others their least ones.
///
/// Where there are places and no rows, one row is left in each node, in another block in each set.
pub(super) fn uniform(
    plan: &Plan,
    counts: &BTreeSet<usize>,
    count: i64,
    (flags, flag): (&BTreeSet<usize>, i32),
) -> Vec<TableSet> {
    let value = |id: TabId| {
        let (_, min, max) = bounds(plan, id);
        let count = count.clamp(i64::from(min), i64::from(max)) as i32;
        match (counts.contains(&id.index()), flags.contains(&id.index())) {
            (true, _) => count,
            (_, true) => flag.clamp(min, max),
            _ => min,
        }
    };
    let nodes = Nodes::of(plan);
    let set = |row: Option<End>| {
        let instead = |rank: usize, id: TabId| {
            let n = entries(&plan.tables[id]) / 2;
            let groups = counted(plan, id).filter(|_| counts.contains(&id.index()));
            let groups = groups.map(|of| entries(&plan.tables[of]).max(1))?;
            let kept = |block| match row {
                Some(End::First) => nodes.first(rank) && block == 0,
                Some(End::Last) => nodes.last(rank) && block == n - 1,
                None => false,
            };
            let most = bounds(plan, id).2;
            let rows = |block| value(id).max(i32::from(kept(block)).min(most));
            Some((0..n).flat_map(|block| [(block % groups) as i32, rows(block)]).collect())
        };
        let given = |_, id| vec![value(id); bounds(plan, id).0];
        complete(plan, given, instead, |_, _, i, of| i as u64 % of)
    };
    match places(plan).next() {
        Some(_) if count <= 0 => vec![set(Some(End::First)), set(Some(End::Last))],
        _ => vec![set(None)],
    }
}

/// A block that keeps a row.
#[derive(Clone, Copy)]
enum End {
    First,
    Last,
}

/// Whether a table counts rows of tokens, of which this launch has none.
fn counts_nobody(plan: &Plan, id: TabId) -> bool {
    let routed = plan.tables[id].routed.filter(|r| r.part == RoutePart::Counts);
    let stored = routed.and_then(|r| plan.tables.get(r.ids)?.stored);
    let Some(rows) = stored.and_then(|b| plan.buffers.get(b)?.shape.first()) else { return false };
    let dims: Vec<i64> = plan.dims.values().map(|d| i64::from(d.value)).collect();
    let of =
        |rank: u32| rows.eval(&Env { dims: &dims, vars: &[i64::from(rank)], tables: &no_tables });
    (0..plan.mesh.size()).all(|rank| of(rank) == Ok(0))
}

/// Entries of a table, and the range of its counts, if it has any.
pub(super) fn bounds(plan: &Plan, id: TabId) -> (usize, i32, i32) {
    let table = &plan.tables[id];
    let n = entries(table);
    match table.source {
        TableSource::Runtime { min, .. } if counts_nobody(plan, id) => (n, min, min),
        TableSource::Blocks { of, .. } if counts_nobody(plan, of) => (n, 0, 0),
        TableSource::Runtime { min, max } => (n, min, max.max(min)),
        TableSource::Blocks { rows, .. } => (n, 0, rows),
        TableSource::Meets { .. } => (n, 0, 1),
        TableSource::Const(_)
        | TableSource::Prefix { .. }
        | TableSource::Bounds { .. }
        | TableSource::Places { .. } => (n, 0, 0),
    }
}
