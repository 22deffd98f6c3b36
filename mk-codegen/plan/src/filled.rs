//! What tasks that fill tables write, for those who follow a launch.

use super::{
    Axis, NodeRanks, Parts, RouteError, RoutePart, Tabulation, block_table, bounds_table,
    check_documents, kept, listed, meets_table, own_experts, prefix, route_bases, route_coming,
    route_crossing, route_dropped, route_leaving, route_list, route_places, route_slots,
    route_sources, route_wanted,
};
use std::borrow::Cow;

/// One source that a task reads; empty where its region is.
#[derive(Default)]
pub struct Source<'m> {
    /// Integers, row by row.
    pub data: Cow<'m, [i32]>,
    /// Integers of a row.
    pub columns: usize,
    /// The first row of the region.
    pub first_row: usize,
}

impl Tabulation {
    /// What a task on a rank writes to a region of one result of its family, by number.
    ///
    /// # Errors
    /// Where a kernel ends with a fault.
    pub fn filled(
        &self,
        src: &[Source<'_>],
        region: &[(i32, i32)],
        rank: usize,
        result: Option<usize>,
    ) -> Result<Vec<i32>, RouteError> {
        let len = region.iter().map(|d| d.1 as usize).product::<usize>();
        let none = Source::default();
        let src = |i: usize| src.get(i).unwrap_or(&none);
        let data = |i: usize| &*src(i).data;
        let columns = |i: usize| src(i).columns.max(1);
        let over = self.over().unwrap_or(Axis { stride: 1, size: 1 });
        let (part, experts, ranks, rows, blocks, keep, local) = match self {
            Tabulation::Blocks { rows } => {
                return block_table(data(0), *rows as i32, len / 2).map_err(RouteError::Blocks);
            }
            Tabulation::Bounds { rows, side, mask } => {
                let first = region.first().map_or(0, |d| d.0);
                let all = bounds_table(data(0), (first, len / 2), *rows as i32, (*side, *mask));
                return all.map_err(RouteError::Documents);
            }
            Tabulation::Meets { rows, part, side, mask } => {
                let [places, count] = [0, 1].map(|d| region.get(d).map_or(0, |d| d.1));
                let parts = Parts { tokens: *rows as i32, rows: *part as i32, count, places };
                check_documents(data(0), parts.tokens).map_err(RouteError::Documents)?;
                return Ok(meets_table(data(0), parts, *side, *mask));
            }
            Tabulation::Begins { rows } => return Ok(prefix(data(0), *rows as i32)),
            Tabulation::Route { part, experts, ranks, rows, blocks, keep, local, .. } => {
                let [experts, ranks, blocks] = [*experts, *ranks, *blocks].map(|n| n as usize);
                (*part, experts, ranks, *rows as i32, blocks, *keep as i32, *local as usize)
            }
        };
        let (rank, own) = (over.place(rank), own_experts(experts, ranks));
        let width = region.last().map_or(0, |d| d.1 as usize);
        match part {
            RoutePart::Lists => {
                let count = i32::try_from(experts).unwrap_or(i32::MAX);
                route_list(data(0), columns(0), count, src(0).first_row, width)
            }
            RoutePart::Wanted => Ok(route_wanted(data(0), columns(0), own, rank, len)),
            RoutePart::Counts => {
                let rows_of = |e: usize| {
                    let lists = data(0).chunks_exact(columns(0));
                    // The last rank may have fewer.
                    let e = Some(rank * own + e).filter(|e| *e < experts);
                    kept(e.map_or(0, |e| lists.map(|l| listed(l, experts, e)).sum()), keep)
                };
                let counts: Vec<i32> = (0..own).map(rows_of).collect();
                let bases =
                    || route_bases(data(0), columns(0), experts, ranks, (rows, keep), blocks);
                match result {
                    // A rank without room refuses all of them.
                    Some(0) => bases().map(|_| counts),
                    Some(1) => bases(),
                    _ => block_table(&counts, rows, blocks).map_err(RouteError::Blocks),
                }
            }
            RoutePart::Sources => {
                let first = region.first().map_or(0, |d| d.0 as usize) / rows.max(1) as usize;
                let first = (first, rows.max(0) as usize);
                let lists = (data(1), columns(1));
                Ok(route_sources(data(0), first, rank * own, experts, lists.0, lists.1, data(2)))
            }
            RoutePart::Dropped => {
                let of = (experts, ranks, keep);
                Ok(vec![route_dropped(data(0), columns(0), of, rank, data(1))])
            }
            RoutePart::Slots => {
                let of = (rows.max(0) as usize, rank * own);
                Ok(route_slots(data(0), columns(0), data(1), of, data(2)))
            }
            RoutePart::Leaving | RoutePart::Coming | RoutePart::Crossing => {
                let local = local.max(1);
                let (own, nodes) = (own * local, ranks / local);
                Ok(match part {
                    _ if result == Some(0) => route_crossing(data(0), columns(0), own, nodes),
                    RoutePart::Leaving => {
                        route_leaving(data(0), columns(0), own, nodes, len / nodes.max(1))
                    }
                    _ => route_coming(data(0), columns(0), own, rank / local, len),
                })
            }
            RoutePart::Places | RoutePart::Kept => {
                let of = (experts, ranks, keep);
                let node = NodeRanks::of(rank, local);
                let (places, kept) =
                    route_places(data(0), columns(0), of, node, data(1), data(2), data(3));
                Ok(if result == Some(1) { kept } else { places })
            }
        }
    }
}
