//! Rule 6, what a leaf takes for granted of its operands: one product's depth in both factors, a copy's size at both ends.
//!
//! A template reads the size of a task off one of its operands; here, all of them say the same. Extents of 1 in front of an operand's
//! own dimensions only choose where it lies. A result has something that it is made of: a sum at least one summand, a product both
//! factors, though they may be empty, attention keys.

use super::{
    grad_shapes,
    touched::{Touched, area, last_three, made_of, matrix, of, one_place, plain, text},
};
use mk_plan::{
    ALayout, BLayout, EPILOGUE_OPERANDS, EpilogueOp, Factors, Family, LIST_TOKENS, Leaf, Operand,
    RoutePart, Tabulation, gated, list_width, saves_gates,
};
use std::collections::{BTreeMap, BTreeSet};

/// Why the operands of a task do not fit each other.
pub(super) fn misfit(family: &Family, touched: &[Touched<'_>]) -> Option<String> {
    match &family.leaf {
        Leaf::Signal | Leaf::Enter => None,
        Leaf::Tabulate { of: Tabulation::Blocks { .. } } => pairs(touched),
        Leaf::Tabulate { of: Tabulation::Route { part, experts, ranks, rows, blocks, .. } } => {
            let own = experts.div_ceil((*ranks).max(1));
            route(*part, [*experts, own, *blocks, *rows].map(i64::from), touched)
        }
        Leaf::CopyTile { .. } | Leaf::HostCopy | Leaf::NicSend => copy(touched),
        Leaf::ReduceTile { epilogue } => sum(epilogue, family.factors(), touched),
        Leaf::MmaTile { a_layout, b_layout, epilogue, .. } => {
            product(*a_layout, *b_layout, epilogue, touched)
        }
        Leaf::AttendTile { block, .. } => attend(*block, touched),
        Leaf::StatsTile { block } => grad_shapes::statistics(*block, touched).err(),
        Leaf::AttendGradTile { of, block, .. } => grad_shapes::grad(*of, *block, touched).err(),
    }
}

/// Group and rows of each block.
fn pairs(touched: &[Touched<'_>]) -> Option<String> {
    let dst = of(touched, Operand::Dst).find_map(|t| Some((t, t.extents?)))?;
    let wide = matches!(dst.1, [(0, n), (0, 2)] if *n > 0);
    (!wide).then(|| format!("`dst` is {}: it has group and rows of each block", text(dst.1)))
}

/// What follows from a routing: as [`Tabulation::Route`] has it. Chunks may be empty on some ranks. Of which tokens operands are, and where they
/// belong, is `origins`' business.
fn route(
    part: RoutePart,
    [experts, own, blocks, rows]: [i64; 4],
    touched: &[Touched<'_>],
) -> Option<String> {
    let extents = |operand: Operand| -> Vec<Vec<i64>> {
        let lens = |t: &Touched<'_>| t.extents.unwrap_or_default().iter().map(|d| d.1).collect();
        of(touched, operand).map(lens).collect()
    };
    let (src, dst) = (extents(Operand::Src), extents(Operand::Dst));
    let src: Vec<&[i64]> = src.iter().map(Vec::as_slice).collect();
    let dst: Vec<&[i64]> = dst.iter().map(Vec::as_slice).collect();
    let (width, most) = (list_width(experts.max(0) as usize) as i64, LIST_TOKENS as i64);
    let fits = match (part, &src[..], &dst[..]) {
        (RoutePart::Lists, [[n, _]], [[1, w]]) => *n <= most && *w == width,
        (RoutePart::Lists, [[]], [[1, w]]) => *w == width,
        (RoutePart::Wanted, [[n, _]], [[m]]) => n <= m,
        (RoutePart::Wanted, [[]], [[_]]) => true,
        (RoutePart::Counts, [[c, w]], [[n], [bases, e], [b, 2]]) => {
            *w == width && *bases == c + 1 && *e == experts && *n == own && *b == blocks
        }
        (RoutePart::Sources, [[b, 2], [c, w], [bases, e]], [[n]]) => {
            *w == width && *bases == c + 1 && *e == experts && *n == b * rows
        }
        (RoutePart::Places, [[n, k], [1, w], [1, e]], [[m, l, 2]]) => {
            *n <= most && *w == width && *e == experts && (n, k) == (m, l)
        }
        (RoutePart::Places, [[], [1, _], [1, _]], [[]]) => true,
        (RoutePart::Places, [[n, k], [1, w], [1, e], [1, of]], [[m, l, 2], [o, p]]) => {
            let same = [(n, k); 2] == [(m, l), (o, p)];
            *n <= most && *w == width && [*e, *of] == [experts; 2] && same
        }
        (RoutePart::Places, [[], [1, _], [1, _], [1, _]], [[], []]) => true,
        _ => false,
    };
    let say = |all: &[&[i64]]| all.iter().map(|e| format!("{e:?}")).collect::<Vec<_>>().join(", ");
    (!fits).then(|| format!("`src` is {}, and `dst` {}: these are no {part}", say(&src), say(&dst)))
}

/// Sources and destinations that both repeat are pairs by the value of `each`; otherwise all sources, one after the other, go to every
/// destination. A single source has the extents of its destination, and not only as many elements.
fn copy(touched: &[Touched<'_>]) -> Option<String> {
    let paired = of(touched, Operand::Src).any(|s| s.each.is_some());
    of(touched, Operand::Dst).find_map(|dst| {
        let mine = |s: &&Touched<'_>| !(paired && dst.each.is_some()) || s.each == dst.each;
        let sources: Vec<_> = of(touched, Operand::Src).filter(mine).collect();
        let same = match sources[..] {
            [src] if src.extents.is_some() && dst.extents.is_some() => plain(src) == plain(dst),
            _ => sources.iter().map(|s| area(s)).sum::<i64>() == area(dst),
        };
        let from: Vec<_> = sources.iter().map(|s| text(s.extents.unwrap_or(&[(0, 0)]))).collect();
        let to = text(dst.extents.unwrap_or(&[(0, 0)]));
        (!same).then(|| format!("`src` is {}, and `dst` {to}", from.join(" and ")))
    })
}

/// Summands, sums and matrices of the epilogue have the same extents; a bias has one row of as many columns.
fn sum(epilogue: &[EpilogueOp], weighted: Factors, touched: &[Touched<'_>]) -> Option<String> {
    let made = of(touched, Operand::Dst).filter(|t| t.extents.is_some());
    // In an inner loop, sums of what is read in it.
    let inner = of(touched, Operand::Dst).map(|t| t.step).collect::<BTreeSet<_>>().len() > 1;
    let there = |d: &Touched<'_>| {
        of(touched, Operand::Src).any(|s| if inner { s.step == d.step } else { s.step <= d.step })
    };
    if made.into_iter().any(|d| !there(d)) {
        return Some("`dst` is a sum of nothing: no `src` comes before it".into());
    }
    let mut all = touched.iter().filter(|t| matches!(t.operand, Operand::Src | Operand::Dst));
    let first = all.next()?;
    if let Some(what) = factors(weighted, touched).or_else(|| tails(epilogue, touched).err()) {
        return Some(what);
    }
    let columns = |t: &Touched<'_>| t.extents.and_then(|d| d.last()).map(|d| d.1);
    let other = touched.iter().find(|t| {
        if t.operand == Operand::W {
            return false;
        }
        if of_epilogue(epilogue, t.operand) == Some(EpilogueOp::Bias) {
            let row = columns(t).is_none_or(|n| area(t) == n);
            return !row || first.extents.is_some() && columns(t) != columns(first);
        }
        t.extents.is_some() != first.extents.is_some() || plain(t) != plain(first)
    })?;
    let [a, b] = [first, other].map(|t| text(t.extents.unwrap_or(&[(0, 0)])));
    Some(format!("a summand is {a}, and `{}` {b}", other.operand))
}

/// Each summand has a factor of one element, or at most one, or none has.
fn factors(weighted: Factors, touched: &[Touched<'_>]) -> Option<String> {
    let least = match weighted {
        Factors::None => return None,
        Factors::Some => 0,
        Factors::All => 1,
    };
    let lacking = of(touched, Operand::Src).find(|s| {
        let same = |w: &Touched<'_>| (w.step, w.each) == (s.step, s.each) && area(w) == 1;
        !(least..=1).contains(&of(touched, Operand::W).filter(|w| same(w)).count())
    })?;
    let which = lacking.each.map_or(String::new(), |n| format!(" number {n}"));
    Some(format!("summand{which} has no factor `w` of one element"))
}

/// Operations of an epilogue have their operands.
fn tails(epilogue: &[EpilogueOp], touched: &[Touched<'_>]) -> Result<(), String> {
    let n = epilogue.iter().filter(|op| op.operand().is_some()).count();
    made_of(touched, &EPILOGUE_OPERANDS[..n.min(EPILOGUE_OPERANDS.len())])
}

fn product(
    a_layout: ALayout,
    b_layout: BLayout,
    epilogue: &[EpilogueOp],
    touched: &[Touched<'_>],
) -> Option<String> {
    // Ranks without rows or columns load what they have, and multiply nothing.
    if of(touched, Operand::C).all(|c| c.extents.is_none()) {
        return None;
    }
    let gated = gated(epilogue);
    let halves = if gated { 2 } else { 1 };
    let check = || -> Result<(), String> {
        one_place(touched, &[Operand::A, Operand::B])?;
        made_of(touched, &[Operand::A, Operand::B])?;
        tails(epilogue, touched)?;
        let left = |a: &Touched<'_>| -> Result<Option<[i64; 2]>, String> {
            let found = matrix(a)?;
            Ok(found.map(|[x, y]| if a_layout == ALayout::Km { [x, y] } else { [y, x] }))
        };
        let right = |b: &Touched<'_>| factor(b_layout, gated, b);
        // Rows, and columns (gates and ups).
        let (mut rows, mut columns) = (None, None);
        let same = |known: &mut Option<i64>, n: i64, what: &str, t: &Touched<'_>| {
            let found = *known.get_or_insert(n);
            if found == n {
                return Ok(());
            }
            Err(format!("`{}` has {n} {what}, and others {found}", t.operand))
        };
        for a in of(touched, Operand::A) {
            let Some([depth, m]) = left(a)? else { continue };
            same(&mut rows, m, "rows", a)?;
            meets(depth, a, touched, Operand::B, |b| right(b).map(|f| f.map_or(0, |f| f[0])))?;
        }
        for b in of(touched, Operand::B) {
            let Some([depth, n]) = right(b)? else { continue };
            same(&mut columns, n, "columns", b)?;
            meets(depth, b, touched, Operand::A, |a| left(a).map(|f| f.map_or(0, |f| f[0])))?;
        }
        for t in touched {
            match t.operand {
                Operand::A | Operand::B => {}
                Operand::C | Operand::AccIn => {
                    let Some([m, n]) = matrix(t)? else { continue };
                    same(&mut rows, m, "rows", t)?;
                    same(&mut columns, n * halves, "columns", t)?;
                }
                Operand::E0 if saves_gates(epilogue) => {
                    let Some([m, two, n]) = last_three(t)? else { continue };
                    gates_and_ups(t.operand, two)?;
                    same(&mut rows, m, "rows", t)?;
                    same(&mut columns, n * halves, "columns", t)?;
                }
                e => {
                    let which = of_epilogue(epilogue, e);
                    let Some([m, n]) = matrix(t)? else { continue };
                    same(&mut columns, n * halves, "columns", t)?;
                    if which == Some(EpilogueOp::Bias) {
                        if m != 1 {
                            return Err(format!("`{e}` has {m} rows: a bias has one"));
                        }
                    } else {
                        same(&mut rows, m, "rows", t)?;
                    }
                }
            }
        }
        Ok(())
    };
    check().err()
}

/// A factor meets the latest part of the other one, as deep as it is. One that comes first meets it later.
fn meets(
    depth: i64,
    t: &Touched<'_>,
    touched: &[Touched<'_>],
    other: Operand,
    depth_of: impl Fn(&Touched<'_>) -> Result<i64, String>,
) -> Result<(), String> {
    let theirs = match of(touched, other).filter(|o| o.step <= t.step).last() {
        Some(o) => depth_of(o)?,
        None if of(touched, other).next().is_some() => return Ok(()),
        None => 0,
    };
    if theirs == depth {
        return Ok(());
    }
    Err(format!("`{}` has a depth of {depth}, and `{other}` of {theirs}", t.operand))
}

/// Depth and columns (gates and ups) of a right operand.
fn factor(layout: BLayout, gated: bool, b: &Touched<'_>) -> Result<Option<[i64; 2]>, String> {
    if !gated {
        let found = matrix(b)?;
        return Ok(found.map(|[x, y]| if layout == BLayout::Nk { [y, x] } else { [x, y] }));
    }
    let Some([x, y, z]) = last_three(b)? else { return Ok(None) };
    let (depth, two, n) = if layout == BLayout::Nk { (z, x, y) } else { (x, y, z) };
    gates_and_ups(b.operand, two)?;
    Ok(Some([depth, 2 * n]))
}

fn gates_and_ups(operand: Operand, n: i64) -> Result<(), String> {
    if n == 2 {
        return Ok(());
    }
    Err(format!("`{operand}` has {n} of gates and ups, which are 2"))
}

/// The operation whose operand this is.
fn of_epilogue(epilogue: &[EpilogueOp], operand: Operand) -> Option<EpilogueOp> {
    let place = EPILOGUE_OPERANDS.iter().position(|e| *e == operand)?;
    epilogue.iter().filter(|op| op.operand().is_some()).nth(place).copied()
}

/// Keys have values at each step, and values keys.
fn paired(touched: &[Touched<'_>]) -> Result<(), String> {
    let steps = |operand| -> BTreeSet<u32> {
        of(touched, operand).filter(|t| t.extents.is_some()).map(|t| t.step).collect()
    };
    match steps(Operand::K) == steps(Operand::V) {
        true => Ok(()),
        false => Err("`k` and `v` are not read at the same steps".into()),
    }
}

fn attend([tile, _, depth]: [u32; 3], touched: &[Touched<'_>]) -> Option<String> {
    let check = || -> Result<(), String> {
        one_place(touched, &[Operand::Q, Operand::K, Operand::V])?;
        let result = |t: &Touched<'_>| matches!(t.operand, Operand::O | Operand::AccOut);
        if touched.iter().any(|t| result(t) && t.extents.is_some()) {
            made_of(touched, &[Operand::Q, Operand::K, Operand::V])?;
        }
        paired(touched)?;
        let (mut rows, mut keys, mut width) = (None, BTreeMap::new(), BTreeMap::new());
        for t in touched.iter().filter(|t| t.operand != Operand::Lse) {
            let Some([x, y]) = matrix(t)? else { continue };
            if t.operand == Operand::Q && (x > i64::from(tile) || y != i64::from(depth)) {
                return Err(format!("`q` is {x} x {y}, and a tile {tile} x {depth}"));
            }
            let wrong = |what: &str, n: i64, other: i64| {
                Err(format!("`{}` has {n} {what}, and others {other}", t.operand))
            };
            // Keys and values of one step are as many; queries are as wide as keys, results as values.
            let (of_rows, of_width) = match t.operand {
                Operand::K => (keys.entry(t.step).or_insert(x), width.entry(false).or_insert(y)),
                Operand::V => (keys.entry(t.step).or_insert(x), width.entry(true).or_insert(y)),
                Operand::Q => (rows.get_or_insert(x), width.entry(false).or_insert(y)),
                Operand::StatIn | Operand::StatOut => {
                    if y != 2 {
                        return wrong("columns", y, 2);
                    }
                    let of_rows = rows.get_or_insert(x);
                    if *of_rows != x {
                        return wrong("rows", x, *of_rows);
                    }
                    continue;
                }
                _ => (rows.get_or_insert(x), width.entry(true).or_insert(y)),
            };
            if *of_rows != x {
                return wrong("rows", x, *of_rows);
            }
            if *of_width != y {
                return wrong("columns", y, *of_width);
            }
        }
        for lse in of(touched, Operand::Lse).filter(|t| t.extents.is_some()) {
            let rows = rows.unwrap_or(0);
            if area(lse) != rows {
                return Err(format!("`lse` has {} elements, and others {rows} rows", area(lse)));
            }
        }
        Ok(())
    };
    check().err()
}
