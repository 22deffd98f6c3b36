//! Tables that a kernel fills: by ordinary loads and stores of all computing threads, in phases.

use super::record::{Group, LeafEmission, Prepared, by_all_threads};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{
    Access, Agent, Expr, Family, Leaf, Mask, Operand, Point, RoutePart, Side, Tabulate, Tabulation,
    Var,
};

pub(in crate::emit) const EMISSION: LeafEmission =
    by_all_threads!("tabulate", "tabulate_tasks", "2 * kWarpgroupThreads, 2, @{ name }@Edges");

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let family = |s: &Slice| {
        let f = &e.plan.families[s.id];
        Ok(context! {
            values => values(e, f)?,
            load_waits => e.waits(f, Agent::Copier, Point::Start)?,
            posts => e.posts(f),
            ..e.slice(*s)
        })
    };
    let families = g.slices.iter().map(family).collect::<Result<Vec<Value>>>()?;
    let (task, phases) = match &g.head(e).leaf {
        Leaf::Tabulate(Tabulate { of: Tabulation::Route { part, local, .. } }) => match part {
            RoutePart::Lists => ("ListTask", 3),
            RoutePart::Wanted => ("WantedTask", 1),
            RoutePart::Counts => ("BasesTask", 3),
            RoutePart::Sources => ("SourcesTask", 1),
            RoutePart::Places if *local > 0 => ("NodePlacesTask", 1),
            RoutePart::Places => ("PlacesTask", 1),
            RoutePart::Slots => ("SlotsTask", 1),
            RoutePart::Dropped => ("DroppedTask", 2),
            RoutePart::Leaving => ("LeavingTask", 1),
            RoutePart::Coming => ("ComingTask", 1),
            RoutePart::Kept | RoutePart::Crossing => {
                let what = "which rows are kept, and how many cross, is made with other tables";
                return EmitError::refuse(&g.name, what);
            }
        },
        Leaf::Tabulate(Tabulate { of: Tabulation::Begins { .. } }) => ("BeginsTask", 1),
        Leaf::Tabulate(Tabulate { of: Tabulation::Bounds { .. } }) => ("BoundsTask", 1),
        Leaf::Tabulate(Tabulate { of: Tabulation::Meets { .. } }) => ("MeetsTask", 1),
        _ => ("BlocksTask", 1),
    };
    let (hooks, call) = (context! { task, phases }, context! {});
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices: vec![] })
}

/// Operands of a table, in their order, each of this rank; as many as `N`.
fn operands<'p, const N: usize>(
    e: &Emitter<'p>,
    f: &'p Family,
    operand: Operand,
) -> Result<[&'p Access; N]> {
    let all: Vec<_> = f.accesses.iter().filter(|a| a.operand == operand).collect();
    let close = |a: &&Access| {
        let own = a.rank == Expr::Var(Var::RANK) && a.each.is_none() && a.when.is_none();
        own && e.plan.buffers[a.buffer].pitch.is_none()
    };
    let found = all.iter().all(close).then_some(all).and_then(|all| all.try_into().ok());
    found.ok_or_else(|| {
        let what = "what tables are made of, and tables, are of the own rank, row by row";
        EmitError::unsupported(f.name.clone(), what)
    })
}

/// The `N` sources of a task that fills tables, and its `M` tables.
fn ends<'p, const N: usize, const M: usize>(
    e: &Emitter<'p>,
    f: &'p Family,
) -> Result<([&'p Access; N], [&'p Access; M])> {
    Ok((operands(e, f, Operand::Src)?, operands(e, f, Operand::Dst)?))
}

/// The members of a task in C, behind its number and its family's.
fn values(e: &Emitter<'_>, f: &Family) -> Result<Vec<String>> {
    let Leaf::Tabulate(Tabulate { of }) = f.leaf else {
        let what = format!("{} is no table", f.name);
        return Err(EmitError::internal("emit/leaf/tabulate.rs", what));
    };
    // Where an operand begins. Dimensions behind the first are whole.
    let at = |a: &Access| {
        let base = e.base(a.buffer, "params.header.rank");
        let row = (1..a.region.len()).fold(a.region[0].0.clone(), |n, d| n * e.extent(a.buffer, d));
        match row {
            Expr::Const(0) => base,
            row => {
                let bytes = e.plan.buffers[a.buffer].dtype.size_bytes();
                format!("{base} + static_cast<u64>({}) * {bytes}", e.c(f, None, &row))
            }
        }
    };
    let whole = |a: &Access| {
        let behind = a.region.iter().enumerate().skip(1);
        behind.into_iter().all(|(d, (base, n))| {
            *base == Expr::Const(0) && e.number(n) == e.number(&e.extent(a.buffer, d))
        })
    };
    if let Some(a) = f.accesses.iter().find(|a| !whole(a)) {
        let what = format!("a table takes and makes whole rows: {} {}", a.operand, a.buffer);
        return EmitError::refuse(&f.name, what);
    }
    // How many there are in a dimension of an operand; none where it is empty.
    let n = |a: &Access, d: usize| {
        format!("static_cast<u32>(max_i(0, {}))", e.c(f, None, &a.region[d].1))
    };
    let wide = |all: &[(&Access, usize)]| match all.iter().all(|(a, n)| a.region.len() == *n) {
        true => Ok(()),
        false => EmitError::refuse(&f.name, "a table of other dimensions"),
    };
    match of {
        Tabulation::Blocks { rows } => {
            let ([counts], [blocks]) = ends(e, f)?;
            wide(&[(counts, 1), (blocks, 2)])?;
            let starts = [counts, blocks].iter().all(|a| a.region[0].0 == Expr::Const(0));
            if blocks.region[1].1 != Expr::Const(2) || !starts {
                return EmitError::refuse(&f.name, "a block has a group and rows");
            }
            let [groups, count] = [counts, blocks].map(|a| e.c(f, None, &a.region[0].1));
            Ok(vec![at(counts), at(blocks), groups, count, rows.to_string()])
        }
        Tabulation::Begins { rows } => {
            let ([counts], [begins]) = ends(e, f)?;
            wide(&[(counts, 1), (begins, 1)])?;
            if [counts, begins].iter().any(|a| a.region[0].0 != Expr::Const(0)) {
                let what = "where rows begin is known of all groups";
                return EmitError::refuse(&f.name, what);
            }
            let groups = e.c(f, None, &counts.region[0].1);
            Ok(vec![at(counts), at(begins), groups, rows.to_string()])
        }
        Tabulation::Bounds { rows, side, mask } => {
            let ([begins], [bounds]) = ends(e, f)?;
            wide(&[(begins, 1), (bounds, 2)])?;
            if bounds.region[1].1 != Expr::Const(2) || begins.region[0].0 != Expr::Const(0) {
                let what = "bounds are two of each row, of all documents";
                return EmitError::refuse(&f.name, what);
            }
            let first = format!("static_cast<u32>({})", e.c(f, None, &bounds.region[0].0));
            let mut all = vec![at(begins), at(bounds), n(begins, 0), first, n(bounds, 0)];
            all.extend([
                rows.to_string(),
                (side == Side::Keys).to_string(),
                (mask != Mask::Full).to_string(),
                mask.window().unwrap_or(0).to_string(),
            ]);
            Ok(all)
        }
        Tabulation::Meets { rows, part, side, mask } => {
            let ([begins], [meets]) = ends(e, f)?;
            wide(&[(begins, 1), (meets, 2)])?;
            if [begins, meets].iter().any(|a| a.region[0].0 != Expr::Const(0)) {
                let what = "which parts meet is made of all documents, whole";
                return EmitError::refuse(&f.name, what);
            }
            let mut all = vec![at(begins), at(meets), n(begins, 0), n(meets, 0), n(meets, 1)];
            all.extend([
                rows.to_string(),
                part.to_string(),
                (side == Side::Keys).to_string(),
                (mask != Mask::Full).to_string(),
                mask.window().unwrap_or(0).to_string(),
            ]);
            Ok(all)
        }
        Tabulation::Route { part, experts, ranks, stride, rows, blocks, keep, local } => {
            let own = experts.div_ceil(ranks.max(1));
            // The place of the rank among those that share the experts.
            let place = match (stride, ranks) {
                (1, ranks) if ranks == e.plan.mesh.size() => "static_cast<u32>(rank)".to_string(),
                _ => format!("static_cast<u32>(rank / {stride} % {ranks})"),
            };
            let width = |list: &Access| n(list, 1);
            let says = |n: u32| n.to_string();
            let words =
                |ids: &Access| (e.plan.buffers[ids.buffer].dtype.size_bytes() / 4).to_string();
            Ok(match part {
                RoutePart::Lists => {
                    let ([ids], [list]) = ends(e, f)?;
                    wide(&[(ids, 2), (list, 2)])?;
                    let first = format!("static_cast<u32>({})", e.c(f, None, &ids.region[0].0));
                    let mut all = vec![at(ids), at(list), words(ids), n(ids, 0), n(ids, 1)];
                    all.extend([says(experts), first]);
                    all
                }
                RoutePart::Wanted => {
                    let ([ids], [wanted]) = ends(e, f)?;
                    wide(&[(ids, 2), (wanted, 1)])?;
                    let mut all = vec![at(ids), at(wanted), words(ids), n(ids, 0), n(ids, 1)];
                    all.extend([says(own), place, n(wanted, 0)]);
                    all
                }
                RoutePart::Counts => {
                    let ([lists], [counts, bases, entries]) = ends(e, f)?;
                    wide(&[(lists, 2), (entries, 2)])?;
                    let mut all = vec![at(lists), at(counts), at(bases), at(entries)];
                    all.extend([n(lists, 0), width(lists)]);
                    all.extend([says(experts), says(own), place]);
                    all.extend([rows, blocks, keep].map(says));
                    all
                }
                RoutePart::Sources => {
                    let ([entries, lists, bases], [sources]) = ends(e, f)?;
                    wide(&[(entries, 2), (lists, 2)])?;
                    let first = format!("static_cast<u32>({})", e.c(f, None, &entries.region[0].0));
                    let expert = format!("{place} * {own}");
                    let mut all = vec![at(entries), at(lists), at(bases), at(sources)];
                    all.extend([n(lists, 0), width(lists), says(experts), expert, first]);
                    all.extend([n(entries, 0), says(rows)]);
                    all
                }
                RoutePart::Dropped => {
                    let ([lists, bases], [dropped]) = ends(e, f)?;
                    wide(&[(lists, 2), (dropped, 1)])?;
                    let mut all = vec![at(lists), at(bases), at(dropped), n(lists, 0)];
                    all.extend([width(lists), says(experts), says(own), place, says(ranks)]);
                    all.push(says(keep));
                    all
                }
                RoutePart::Slots => {
                    let ([ids, entries, sources], [slots]) = ends(e, f)?;
                    wide(&[(ids, 2), (entries, 2)])?;
                    let expert = format!("{place} * {own}");
                    let mut all = vec![at(ids), at(entries), at(sources), at(slots), words(ids)];
                    all.extend([n(ids, 0), n(ids, 1), expert, n(entries, 0), says(rows)]);
                    all
                }
                RoutePart::Kept | RoutePart::Crossing => Vec::new(),
                RoutePart::Leaving | RoutePart::Coming => {
                    let ([ids], [counts, rows]) = ends(e, f)?;
                    wide(&[(ids, 2), (counts, 2)])?;
                    let (local, last) = (local.max(1), rows.region.len() - 1);
                    let mut all = vec![at(ids), at(counts), at(rows), words(ids), n(ids, 0)];
                    all.extend([n(ids, 1), says(own * local), n(counts, 1), n(rows, last)]);
                    all.push(format!("{place} / {local}"));
                    all
                }
                RoutePart::Places => {
                    let none = "0".to_string();
                    let (ids, list, bases, begins, places, kept) = if keep == 0 {
                        let ([ids, list, bases], [places, kept]) = ends(e, f)?;
                        (ids, list, bases, none, places, at(kept))
                    } else {
                        let ([ids, list, bases, begins], [places, kept]) = ends(e, f)?;
                        (ids, list, bases, at(begins), places, at(kept))
                    };
                    wide(&[(ids, 2), (list, 2)])?;
                    let mut all =
                        vec![at(ids), at(list), at(bases), begins, at(places), kept, words(ids)];
                    all.extend([n(ids, 0), n(ids, 1)]);
                    all.extend([says(experts), says(own), says(keep)]);
                    if local > 0 {
                        all.extend([format!("{place} / {local} * {local}"), says(local)]);
                    }
                    all
                }
            })
        }
    }
}
