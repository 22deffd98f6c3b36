//! Rule 5: what is read was written in the same epoch and version, and every output is written exactly once.
//!
//! Assumes bounds (rule 6). Plain writes of one stamp are disjoint (the race rule reports those that are not), so that
//! their areas add up; those of several stamps, and accumulations, may lie over each other. An accumulation needs
//! something to add to: writes of a smaller version that cover it. Inputs are written by the caller and need no cover.
//!
//! Conversely, every write to memory that reductions read must be read in its epoch and version, or added to: a
//! reduction that omits a contribution leaves a write without a reader. Not checked where regions depend on run-time
//! tables.
//!
//! An output whose regions depend on run-time tables is *ragged*: tables decide how much of it is written.
//! There, every row that is touched must be complete in the dimensions that do not depend on tables, and where rows
//! begin at a prefix sum, exactly the rows that the table counts are written.

use super::{
    boxes::BoxId,
    leaf,
    races::{Group, Groups},
    region::{Dims, area, common_area, meet, text, uncovered},
    report::Violation,
    site,
    world::{AccRec, Class, World},
};
use mk_plan::{
    Access, BufId, Entity, Expr, Family, Mode, Plan, Space, TabId, TableSet, TableSource, Var,
};
use std::collections::{BTreeSet, HashSet};

/// Checks every class of epochs. `tables[i]` are the tables of class `i`.
pub(super) fn check(
    world: &World<'_>,
    groups: &[Groups],
    overlaps: &[Vec<BoxId>],
    tables: &[&TableSet],
) -> Vec<Violation> {
    let mut out = Vec::new();
    let mut told = HashSet::new();
    let tables_come = world.plan.tables.values().any(|t| t.source.comes());
    let summed = summed(world.plan);
    for (c, class) in world.classes.iter().enumerate() {
        let epoch = world.class_of.iter().position(|x| *x == c).unwrap_or(0) as u32 + 1;
        for (id, group) in groups[c].iter() {
            reads(world, class, epoch, id, group, &groups[c], overlaps, &mut told, &mut out);
        }
        if !tables_come {
            let of_sums = |id: BoxId| summed.contains(&world.boxes.all[id as usize].buffer);
            for (id, group) in groups[c].iter().filter(|g| of_sums(g.0)) {
                lost(world, c, epoch, id, group, groups, overlaps, &mut told, &mut out);
            }
        }
        for (id, b) in world.plan.buffers.iter().filter(|b| b.1.space == Space::Out) {
            let ragged = ragged_dims(world.plan, id);
            for rank in 0..world.ranks_looked_at() {
                let (mut version, mut disjoint) = (None, true);
                let boxes = world
                    .boxes
                    .all
                    .iter()
                    .enumerate()
                    .filter(|x| x.1.rank == rank && x.1.buffer == id);
                let writes: Vec<(Dims, usize)> = boxes
                    .map(|(i, x)| {
                        let g = groups[c].get(i as BoxId);
                        let mut n = 0;
                        for w in g.accs[..g.writers].iter().map(|a| &class.accs[*a as usize]) {
                            if w.mode == Mode::Write {
                                n += 1;
                                disjoint &= *version.get_or_insert(w.version) == w.version;
                            }
                        }
                        (x.dims.clone(), n)
                    })
                    .filter(|w| w.1 > 0)
                    .collect();
                let shape = &world.shapes[id.index()][rank];
                let message = match &ragged {
                    None => whole(shape, &writes, disjoint),
                    Some(dims) => {
                        rows(shape, &writes, dims, tables.get(c).copied(), rank, world.plan)
                    }
                };
                if let Some(message) = message
                    && told.insert((id.index() as u32, u32::MAX))
                {
                    out.push(Violation::Output { rank, buffer: id, name: b.name.clone(), message });
                }
            }
        }
    }
    out
}

/// Reads and accumulations of one box.
#[allow(clippy::too_many_arguments)]
fn reads(
    world: &World<'_>,
    class: &Class,
    epoch: u32,
    id: BoxId,
    group: Group<'_>,
    groups: &Groups,
    overlaps: &[Vec<BoxId>],
    told: &mut HashSet<(u32, u32)>,
    out: &mut Vec<Violation>,
) {
    let boxed = &world.boxes.all[id as usize];
    if world.plan.buffers[boxed.buffer].space == Space::In {
        return;
    }
    let mut seen: Vec<(i64, Mode)> = Vec::new();
    for a in group.accs.iter().map(|a| &class.accs[*a as usize]).filter(|a| a.mode != Mode::Write) {
        if seen.contains(&(a.version, a.mode)) {
            continue;
        }
        seen.push((a.version, a.mode));
        let counts = |w: &AccRec| match a.mode {
            Mode::Accumulate => w.mode == Mode::Write && w.version < a.version,
            _ => w.mode != Mode::Read && w.version == a.version,
        };
        let (mut parts, mut sum) = (Vec::new(), 0i128);
        // Only plain writes of one version are known to be disjoint.
        let (mut version, mut disjoint) = (None, true);
        for &other in &overlaps[id as usize] {
            let g = groups.get(other);
            let mut n = 0;
            for w in g.accs[..g.writers].iter().map(|w| &class.accs[*w as usize]) {
                if counts(w) {
                    n += 1;
                    disjoint &=
                        w.mode == Mode::Write && *version.get_or_insert(w.version) == w.version;
                }
            }
            if n > 0 {
                let dims = &world.boxes.all[other as usize].dims;
                sum += i128::from(common_area(&boxed.dims, dims)) * n as i128;
                parts.push(&dims[..]);
            }
        }
        if disjoint && sum == i128::from(area(&boxed.dims)) {
            continue;
        }
        let task = &class.tasks[a.task as usize];
        if let Some(missing) = uncovered(&boxed.dims, parts)
            && told.insert((task.family.index() as u32, a.line))
        {
            out.push(Violation::Uncovered {
                read: site::actor(world, epoch, a),
                missing: text(&missing),
            });
        }
    }
}

/// Whether an access of some version reads a write, or adds to it: one that adds takes the place of all versions before
/// its own.
pub(super) fn takes(w: &AccRec, r: &AccRec) -> bool {
    match r.mode {
        Mode::Read => r.version == w.version,
        Mode::Accumulate => r.version > w.version,
        Mode::Write => false,
    }
}

/// Memory of mk's own that sums read: contributions, sums that go on, and the state of attention between steps.
pub(super) fn summed(plan: &Plan) -> BTreeSet<BufId> {
    let mut out = BTreeSet::new();
    for x in plan.families.values() {
        let contributions = leaf::contributions(&x.leaf);
        let contribution = |a: &&Access| contributions.contains(&a.operand);
        out.extend(x.accesses.iter().filter(contribution).map(|a| a.buffer));
    }
    out.retain(|b| !matches!(plan.buffers[*b].space, Space::In | Space::Out));
    out
}

/// Writes of one box that nobody reads.
#[allow(clippy::too_many_arguments)]
fn lost(
    world: &World<'_>,
    c: usize,
    epoch: u32,
    id: BoxId,
    group: Group<'_>,
    groups: &[Groups],
    overlaps: &[Vec<BoxId>],
    told: &mut HashSet<(u32, u32)>,
    out: &mut Vec<Violation>,
) {
    let (class, boxed) = (&world.classes[c], &world.boxes.all[id as usize]);
    let mut seen: Vec<i64> = Vec::new();
    for w in group.accs[..group.writers].iter().map(|a| &class.accs[*a as usize]) {
        if seen.contains(&w.version) {
            continue;
        }
        seen.push(w.version);
        let taken = |g: Group<'_>| g.accs.iter().any(|r| takes(w, &class.accs[*r as usize]));
        if taken(group) {
            continue;
        }
        let others = overlaps[id as usize].iter().filter(|o| taken(groups[c].get(**o)));
        let parts = others.map(|o| &world.boxes.all[*o as usize].dims[..]);
        let line = (class.tasks[w.task as usize].family.index() as u32, w.line);
        if let Some(missing) = uncovered(&boxed.dims, parts)
            && told.insert(line)
        {
            let write = site::actor(world, epoch, w);
            out.push(Violation::Unread { write, missing: text(&missing) });
        }
    }
}

fn full(shape: &[i64]) -> Dims {
    shape.iter().map(|n| (0, *n)).collect()
}

/// Why an output is not written exactly once. Unless its writes are known to be disjoint, as many elements as there are
/// may be some of them twice.
fn whole(shape: &[i64], writes: &[(Dims, usize)], disjoint: bool) -> Option<String> {
    let want = i128::from(area(&full(shape)));
    let sum: i128 = writes.iter().map(|(d, n)| i128::from(area(d)) * *n as i128).sum();
    if sum == want && disjoint {
        return None;
    }
    match uncovered(&full(shape), writes.iter().map(|w| &w.0[..])) {
        Some(missing) if want > 0 => Some(format!("{} is never written", text(&missing))),
        _ if sum == want => None,
        _ => Some(format!("{sum} elements are written, of {want}: some of them more than once")),
    }
}

/// Why a ragged output is not written exactly where it should be.
fn rows(
    shape: &[i64],
    writes: &[(Dims, usize)],
    dims: &Ragged,
    tables: Option<&TableSet>,
    rank: usize,
    plan: &Plan,
) -> Option<String> {
    let strip = |b: &Dims| -> Dims {
        let one = |(d, n): (usize, &i64)| if dims.dims.contains(&d) { b[d] } else { (0, *n) };
        shape.iter().enumerate().map(one).collect()
    };
    let mut strips: BTreeSet<Dims> = writes.iter().map(|w| strip(&w.0)).collect();
    if let (Some((table, d)), Some(tables)) = (dims.prefix, tables)
        && let TableSource::Prefix { of, .. } = plan.tables[table].source
    {
        let (off, count) = (tables.values(rank, table), tables.values(rank, of));
        for (base, n) in off.iter().zip(count).filter(|x| *x.1 > 0) {
            let mut whole = full(shape);
            whole[d] = (i64::from(*base), i64::from(*n));
            strips.insert(whole);
        }
        let sum: i128 = writes.iter().map(|w| i128::from(area(&w.0)) * w.1 as i128).sum();
        let width = i128::from(area(&full(shape)) / shape[d].max(1));
        let rows: i128 = count.iter().map(|n| i128::from((*n).max(0))).sum();
        if sum > rows * width {
            return Some(format!(
                "{sum} elements are written, but the {rows} rows of the tables are {} elements",
                rows * width
            ));
        }
    }
    let missing = strips.iter().find_map(|s| {
        let near = writes.iter().map(|w| &w.0[..]).filter(|w| meet(w, s));
        uncovered(s, near)
    })?;
    Some(format!("{} is not written, but belongs to rows that are", text(&missing)))
}

/// How an output depends on run-time tables.
pub(super) struct Ragged {
    /// Dimensions whose base or length does.
    pub dims: Vec<usize>,
    /// The prefix table at whose entries rows begin, and in which dimension.
    pub prefix: Option<(TabId, usize)>,
}

/// Whether the value of an expression depends on run-time tables.
pub(super) fn run_time(plan: &Plan, e: &Expr) -> bool {
    e.any_table(|t| !matches!(root(plan, t), None | Some(TableSource::Const(_))))
}

/// The source of a table, through tables that are derived from it.
fn root(plan: &Plan, id: TabId) -> Option<&TableSource> {
    match &plan.tables.get(id)?.source {
        TableSource::Prefix { of, .. } | TableSource::Blocks { of, .. }
            if of.index() < id.index() =>
        {
            root(plan, *of)
        }
        s => Some(s),
    }
}

/// Whether how often or whether an access happens depends on run-time tables.
fn conditional(plan: &Plan, x: &Family, a: &Access) -> bool {
    let extents = x.domain.iter().chain(&x.inner).map(|d| &d.1);
    extents.chain(&a.when).chain(a.each.iter().map(|e| &e.extent)).any(|e| run_time(plan, e))
}

/// How the writes of a buffer depend on run-time tables, if they do.
pub(super) fn ragged_dims(plan: &Plan, buffer: BufId) -> Option<Ragged> {
    let (mut dims, mut prefix, mut any) = (BTreeSet::new(), None, false);
    for x in plan.families.values() {
        for a in x.accesses.iter().filter(|a| a.buffer == buffer && a.mode != Mode::Read) {
            any |= conditional(plan, x, a);
            // Of a row for each repetition, tables may decide which are written.
            let chosen = |base: &Expr| {
                let of = |v: Var| {
                    base.mentions(v)
                        && a.when.as_ref().is_some_and(|w| w.mentions(v) && run_time(plan, w))
                };
                of(Var::INNER) || of(Var::EACH)
            };
            for (d, (base, len)) in a.region.iter().enumerate() {
                if run_time(plan, base) || run_time(plan, len) || chosen(base) {
                    dims.insert(d);
                }
                base.visit(&mut |e| {
                    if let Expr::Table(t, _) = e
                        && matches!(plan.tables[*t].source, TableSource::Prefix { .. })
                        && run_time(plan, e)
                    {
                        prefix = Some((*t, d));
                    }
                });
            }
        }
    }
    (any || !dims.is_empty()).then(|| Ragged { dims: dims.into_iter().collect(), prefix })
}
