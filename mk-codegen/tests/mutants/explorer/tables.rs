//! Contents of run-time tables: a few fillings that stay in the declared ranges, another for each epoch.

use mk_codegen::ir::{Plan, TableSet, TableSource};

/// Fillings 0 (all greatest) and 1 (least or greatest) come before the random ones.
const RANDOM: usize = 2;

/// Fillings to explore, each a list of tables by epoch; one without contents if the plan has no run-time tables.
pub fn tables(plan: &Plan) -> Vec<Vec<TableSet>> {
    let run_time = plan.tables.values().any(|t| matches!(t.source, TableSource::Runtime { .. }));
    if !run_time {
        return vec![vec![TableSet::new(plan, |_, _| Vec::new())]];
    }
    let ranks = plan.mesh.size() as usize;
    let fill = |kind: usize, epoch: u64| {
        TableSet::new(plan, |rank, id| {
            use mk_codegen::ir::Entity;
            let table = &plan.tables[id];
            let TableSource::Runtime { min, max } = table.source else { return Vec::new() };
            let n: u32 = table.shape.iter().product();
            let entry = |i: u32| {
                let place = [kind as u64, epoch, rank as u64, id.index() as u64, u64::from(i)];
                let h = place.into_iter().fold(0, |h, x| mix(h ^ x));
                match kind {
                    0 => max,
                    1 if h % 2 == 0 => min,
                    1 => max,
                    // A rank that gets little runs as far ahead as the plan lets it.
                    _ if kind == RANDOM + rank => min,
                    _ => min + (h % (u64::from(max.abs_diff(min)) + 1)) as i32,
                }
            };
            (0..n).map(entry).collect()
        })
    };
    (0..=RANDOM + ranks).map(|kind| (1..=4).map(|e| fill(kind, e)).collect()).collect()
}

/// The finaliser of splitmix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
