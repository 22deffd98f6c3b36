//! Tables that a task fills.

use super::{Compute, Regions, Values, Write, broadcast};
use crate::{
    context::{Context, misfit},
    math::Tile,
};
use mk_plan::{
    Axis, NodeRanks, Operand, Parts, RouteError, RoutePart, Tabulate, Tabulation, block_table,
    bounds_table, check_documents, kept, listed, meets_table, own_experts, prefix, route_bases,
    route_coming, route_crossing, route_dropped, route_leaving, route_list, route_places,
    route_slots, route_sources, route_wanted,
};

impl Compute for Tabulate {
    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        match &self.of {
            Tabulation::Blocks { rows } => {
                let counts: Vec<i32> = context.all(Operand::Src).flat_map(integers).collect();
                broadcast(regions, |r| {
                    let blocks = (r.len() / 2) as usize;
                    let table = block_table(&counts, *rows as i32, blocks);
                    let table = table.map_err(|e| misfit(e.to_string()))?;
                    Ok(table.into_iter().map(|x| x as f32).collect())
                })
            }
            Tabulation::Begins { rows } => {
                let counts: Vec<i32> = context.all(Operand::Src).flat_map(integers).collect();
                broadcast(regions, |_| {
                    Ok(prefix(&counts, *rows as i32).into_iter().map(|x| x as f32).collect())
                })
            }
            Tabulation::Bounds { rows, side, mask } => {
                let begins: Vec<i32> = context.all(Operand::Src).flat_map(integers).collect();
                broadcast(regions, |r| {
                    let first = r.dims.first().map_or(0, |d| d.0) as i32;
                    let n = (r.len() / 2) as usize;
                    let table = bounds_table(&begins, (first, n), *rows as i32, (*side, *mask));
                    let table = table.map_err(|e| misfit(e.to_string()))?;
                    Ok(table.into_iter().map(|x| x as f32).collect())
                })
            }
            Tabulation::Meets { rows, part, side, mask } => {
                let begins: Vec<i32> = context.all(Operand::Src).flat_map(integers).collect();
                broadcast(regions, |r| {
                    let [places, count] = [0, 1].map(|d| r.dims.get(d).map_or(0, |d| d.1) as i32);
                    let parts = Parts { tokens: *rows as i32, rows: *part as i32, count, places };
                    check_documents(&begins, parts.tokens).map_err(|e| misfit(e.to_string()))?;
                    let table = meets_table(&begins, parts, *side, *mask);
                    Ok(table.into_iter().map(|x| x as f32).collect())
                })
            }
            Tabulation::Route { part, experts, ranks, stride, rows, blocks, keep, local } => {
                let sources: Vec<(usize, Vec<i32>)> =
                    context.all(Operand::Src).map(|t| (t.cols, integers(t).collect())).collect();
                let over = Axis { stride: *stride, size: *ranks };
                let [count, ranks] = [*experts, *ranks].map(|n| n as usize);
                let none = Vec::new();
                let src = |i: usize| sources.get(i).map_or(&none, |s| &s.1).as_slice();
                let cols = |i: usize| sources.get(i).map_or(1, |s| s.0);
                let (rows, blocks, keep) = (*rows as i32, *blocks as usize, *keep as i32);
                let made = || to.family.accesses.iter().filter(|a| a.operand == Operand::Dst);
                broadcast(regions, |r| {
                    let at = |d: usize| r.dims.get(d).map_or(0, |d| d.0.max(0)) as usize;
                    let rank = over.place(r.rank);
                    let table = match part {
                        RoutePart::Lists => {
                            let experts = i32::try_from(count).unwrap_or(i32::MAX);
                            let first = context.first_row();
                            route_list(src(0), cols(0), experts, first, r.len() as usize)
                        }
                        RoutePart::Wanted => {
                            let own = own_experts(count, ranks);
                            Ok(route_wanted(src(0), cols(0), own, rank, r.len().max(0) as usize))
                        }
                        RoutePart::Counts => {
                            let bases =
                                route_bases(src(0), cols(0), count, ranks, (rows, keep), blocks);
                            let own = own_experts(count, ranks);
                            let of = |e: usize| {
                                let lists = src(0).chunks_exact(cols(0).max(1));
                                // The last rank may have fewer.
                                let e = Some(rank * own + e).filter(|e| *e < count);
                                kept(
                                    e.map_or(0, |e| lists.map(|l| listed(l, count, e)).sum()),
                                    keep,
                                )
                            };
                            let counts: Vec<i32> = (0..own).map(of).collect();
                            match made().position(|a| a.buffer == r.buffer) {
                                Some(0) => bases.map(|_| counts),
                                Some(1) => bases,
                                _ => block_table(&counts, rows, blocks).map_err(RouteError::Blocks),
                            }
                        }
                        RoutePart::Sources => {
                            let first = (at(0) / rows.max(1) as usize, rows.max(0) as usize);
                            let own = rank * own_experts(count, ranks);
                            Ok(route_sources(src(0), first, own, count, src(1), cols(1), src(2)))
                        }
                        RoutePart::Dropped => {
                            let of = (count, ranks, keep);
                            Ok(vec![route_dropped(src(0), cols(0), of, rank, src(1))])
                        }
                        RoutePart::Slots => {
                            let of = (rows.max(0) as usize, rank * own_experts(count, ranks));
                            Ok(route_slots(src(0), cols(0), src(1), of, src(2)))
                        }
                        RoutePart::Places => {
                            let of = (count, ranks, keep);
                            let node = NodeRanks::of(rank, *local as usize);
                            let (places, kept) =
                                route_places(src(0), cols(0), of, node, src(1), src(2), src(3));
                            Ok(if r.dims.len() == 2 { kept } else { places })
                        }
                        RoutePart::Leaving | RoutePart::Coming => {
                            let local = (*local as usize).max(1);
                            let (own, nodes) = (own_experts(count, ranks) * local, ranks / local);
                            let n = r.len().max(0) as usize;
                            let counts =
                                made().position(|a| a.buffer == r.buffer).is_none_or(|i| i == 0);
                            Ok(match part {
                                _ if counts => route_crossing(src(0), cols(0), own, nodes),
                                RoutePart::Leaving => {
                                    route_leaving(src(0), cols(0), own, nodes, n / nodes.max(1))
                                }
                                _ => route_coming(src(0), cols(0), own, rank / local, n),
                            })
                        }
                        RoutePart::Kept | RoutePart::Crossing => {
                            return Err(misfit("what is made with other tables"));
                        }
                    };
                    let table = table.map_err(|e| misfit(e.to_string()))?;
                    Ok(table.into_iter().map(|x| x as f32).collect())
                })
            }
        }
    }
}

fn integers(tile: &Tile) -> impl Iterator<Item = i32> {
    tile.data.iter().map(|x| *x as i32)
}
