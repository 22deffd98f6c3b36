//! Contents of run-time tables: a few fillings that stay in the declared ranges, another for each epoch.

use mk_codegen::plan::{Axis, Entity, Plan, RoutePart, TabId, Table, TableSet, TableSource};

/// Fillings 0 (all greatest) and 1 (least or greatest) come before the random ones.
const RANDOM: usize = 2;

/// Fillings to explore, each a list of tables by epoch; one without contents if the plan has no run-time tables.
pub fn tables(plan: &Plan) -> Vec<Vec<TableSet>> {
    let run_time = plan.tables.values().any(|t| matches!(t.source, TableSource::Runtime { .. }));
    if !run_time {
        return vec![vec![TableSet::new(plan, |_, _| Vec::new())]];
    }
    let ranks = plan.mesh.size() as usize;
    (0..=RANDOM + ranks).map(|kind| (1..=4).map(|e| fill(plan, kind, e)).collect()).collect()
}

/// One filling for one epoch, which a launch could have.
fn fill(plan: &Plan, kind: usize, epoch: u64) -> TableSet {
    let hash = |rank: usize, id: TabId, i: u64| {
        let rank = over(plan).place(rank);
        let place = [kind as u64, epoch, rank as u64, id.index() as u64, i];
        place.into_iter().fold(0, |h, x| mix(h ^ x))
    };
    let counts = |rank: usize, id: TabId, least: i32| {
        let table = &plan.tables[id];
        let TableSource::Runtime { min, max } = table.source else { return Vec::new() };
        let n: u32 = table.shape.iter().product();
        // What crosses is the same on all ranks.
        let crosses = table.routed.is_some_and(|r| r.part == RoutePart::Crossing);
        let rank = if crosses { 0 } else { rank };
        let entry = |i: u32| {
            let h = hash(rank, id, u64::from(i));
            match kind {
                0 => max,
                1 if h % 2 == 0 => min,
                1 => max,
                // A rank that gets little runs as far ahead as the plan lets it.
                _ if kind == RANDOM + over(plan).place(rank) => min,
                _ => min + (h % (u64::from(max.abs_diff(min)) + 1)) as i32,
            }
        };
        let mut values: Vec<i32> = (0..n).map(entry).collect();
        if over(plan).place(rank).is_multiple_of(smallest(plan)) {
            values[0] = values[0].max(least.min(max));
        }
        into_blocks(plan, id, values)
    };
    // Where there are places, some rank has a row, of each node.
    let all = |least: i32| TableSet::new(plan, |rank, id| counts(rank, id, least));
    let places = plan.tables.values().filter_map(|t| match t.source {
        TableSource::Places { of } => Some(of),
        _ => None,
    });
    let lacks = |of: TabId| {
        let rows = all(0).filled(plan, of);
        (0..plan.mesh.size() as usize)
            .any(|rank| rows.of_ranks(near(plan, smallest(plan), rank)).is_empty())
    };
    let empty = places.into_iter().any(lacks);
    let least = i32::from(empty);
    let set = all(least);
    TableSet::new(plan, |rank, id| {
        let table = &plan.tables[id];
        let TableSource::Places { of } = table.source else { return counts(rank, id, least) };
        let rows = set.filled(plan, of).of_ranks(near(plan, node(plan, table), rank));
        let n: u32 = table.shape.iter().product();
        let at = |i: u32| hash(rank, id, u64::from(i)) % rows.len();
        let row = |i: u32| rows.get(at(i)).expect("a row");
        (0..n / 2).map(row).flat_map(|(rank, row)| [rank, row]).collect()
    })
}

/// The ranks that share a routing; ranks at one place of several groups have the same tables, as their tokens may be the
/// same.
fn over(plan: &Plan) -> Axis {
    let along = plan.tables.values().filter_map(|t| t.routed).find_map(|r| r.along);
    along.unwrap_or(Axis { stride: 1, size: plan.mesh.size() })
}

/// The ranks among which places of a table are: of a node, where it says so.
fn node(plan: &Plan, table: &Table) -> usize {
    match table.routed.map_or(0, |r| r.local as usize) {
        0 => over(plan).size as usize,
        local => local,
    }
}

/// The least of all tables.
fn smallest(plan: &Plan) -> usize {
    let places = plan.tables.values().filter(|t| matches!(t.source, TableSource::Places { .. }));
    places.map(|t| node(plan, t)).min().unwrap_or(over(plan).size as usize)
}

/// The numbers of ranks that are with one, so many together.
fn near(plan: &Plan, together: usize, rank: usize) -> impl Fn(usize) -> Option<usize> {
    let over = over(plan);
    let of = move |rank: usize| (over.group(rank), over.place(rank) / together);
    move |other| (of(other) == of(rank)).then(|| over.place(other))
}

/// Counts, of which those come to nothing that the blocks made of them have no room for.
fn into_blocks(plan: &Plan, counts: TabId, mut values: Vec<i32>) -> Vec<i32> {
    for table in plan.tables.values() {
        let TableSource::Blocks { of, rows } = table.source else { continue };
        let mut free = table.shape[0] as i32;
        for value in values.iter_mut().filter(|_| of == counts) {
            *value = (*value).min(free * rows);
            free -= (*value + rows - 1) / rows;
        }
    }
    values
}

/// The finaliser of splitmix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
