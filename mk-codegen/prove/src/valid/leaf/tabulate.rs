//! Tables that a task fills.

use super::Rules;
use crate::valid::touched::{Touched, of, text};
use mk_plan::{Family, LIST_TOKENS, Operand, RoutePart, Tabulate, Tabulation, list_width};

impl Rules for Tabulate {
    fn misfit(&self, _: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        let wrong = match self.of {
            Tabulation::Blocks { .. } => pairs(touched),
            Tabulation::Begins { .. } => one_more(touched),
            Tabulation::Bounds { .. } => bounds(touched),
            // Of all places and parts: that is the plan's structure.
            Tabulation::Meets { .. } => None,
            Tabulation::Route { part, experts, ranks, rows, blocks, local, .. } => {
                let (own, nodes) = (experts.div_ceil(ranks.max(1)), ranks / local.max(1));
                route(part, [experts, own, blocks, rows, nodes].map(i64::from), touched)
            }
        };
        wrong.map_or(Ok(()), Err)
    }
}

/// Group and rows of each block.
fn pairs(touched: &[Touched<'_>]) -> Option<String> {
    let dst = of(touched, Operand::Dst).find_map(|t| Some((t, t.extents?)))?;
    let wide = matches!(dst.1, [(0, n), (0, 2)] if *n > 0);
    (!wide).then(|| format!("`dst` is {}: it has group and rows of each block", text(dst.1)))
}

/// The first row of each group, and the one behind all of them.
fn one_more(touched: &[Touched<'_>]) -> Option<String> {
    let extents = |o| of(touched, o).find_map(|t| t.extents);
    let (src, dst) = (extents(Operand::Src)?, extents(Operand::Dst)?);
    let fits = matches!((src, dst), ([(0, n)], [(0, m)]) if *m == n + 1);
    (!fits).then(|| {
        format!("`dst` is {}: it has the first row of each group, and one more", text(dst))
    })
}

/// First and last of the other side of some rows.
fn bounds(touched: &[Touched<'_>]) -> Option<String> {
    let dst = of(touched, Operand::Dst).find_map(|t| t.extents)?;
    let wide = matches!(dst, [_, (0, 2)]);
    (!wide).then(|| format!("`dst` is {}: it has two bounds of each row", text(dst)))
}

/// What follows from a routing: as [`Tabulation::Route`] has it. Chunks may be empty on some ranks. Of which tokens
/// operands are, and where they belong, is `origins`' business.
fn route(
    part: RoutePart,
    [experts, own, blocks, rows, nodes]: [i64; 5],
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
        (RoutePart::Dropped, [[c, w], [bases, e]], [[1]]) => {
            *w == width && *bases == c + 1 && *e == experts
        }
        (RoutePart::Leaving, [[n, _]], [[1, m], [1, o, w]]) => {
            *n <= most && n <= w && (*m, *o) == (nodes, nodes)
        }
        (RoutePart::Leaving, [[]], [[1, m], [1, o, _]]) => (*m, *o) == (nodes, nodes),
        (RoutePart::Coming, [[n, _]], [[1, m], [1, w]]) => *n <= most && n <= w && *m == nodes,
        (RoutePart::Coming, [[]], [[1, m], [1, _]]) => *m == nodes,
        (RoutePart::Slots, [[_, _], [b, 2], [tokens]], [[n]]) => n == tokens && *n == b * rows,
        (RoutePart::Places, [[n, k], [1, w], begins @ ..], [[m, l, 2], [o, p]]) => {
            let same = [(n, k); 2] == [(m, l), (o, p)];
            let fits = matches!(begins, [[1, e]] | [[1, e], [1, _]] if *e == experts)
                && begins.iter().all(|b| b[1] == experts);
            *n <= most && *w == width && fits && same
        }
        (RoutePart::Places, [[], [1, _], [1, _]] | [[], [1, _], [1, _], [1, _]], [[], []]) => true,
        _ => false,
    };
    let say = |all: &[&[i64]]| all.iter().map(|e| format!("{e:?}")).collect::<Vec<_>>().join(", ");
    (!fits).then(|| format!("`src` is {}, and `dst` {}: these are no {part}", say(&src), say(&dst)))
}
