//! Tiles of attention: a lane brings queries, keys and values, two warpgroups attend and store, a lane makes the posts.

use crate::emit::{
    EmitError, Result,
    context::Emitter,
    leaf::{
        AgentEmission, Group, LeafEmission, Prepared, RingEmission, Seat, Spills, Warpgroups,
        heads::{bounds, logarithms, rows_at, rows_of, sink, whole_heads},
    },
    maps::View,
    types::Slice,
};
use minijinja::{Value, context};
use mk_plan::{
    Access, Agent, AttendTile, Carry, Expr, FamId, Family, Leaf, Mask, Operand, Point, Store, Var,
};

pub(in crate::emit) const EMISSION: LeafEmission = LeafEmission {
    template: "attend_tile",
    texts: &[
        ("attend_tile", include_str!("../../../../templates/leaf/attend_tile.cu.j2")),
        ("schedule", include_str!("../../../../templates/leaf/schedule.cu.j2")),
    ],
    warpgroups: Warpgroups { issuing_registers: 56, computing_registers: 224, computing: 2 },
    ring: Some(&RingEmission {
        comment: "The blocks of keys and values that the role's attention shares.",
        config: "AttendConfig<AttendOptions{.block_m = @{ block_m }@, .block_n = @{ block_n }@, .dim = @{ dim }@, \
            .stages = @{ stages }@@{ bounded }@@{ values }@}>",
        smem: "AttendSmem",
        asserts: &[],
        inner_edges: Some(
            "within = kWithinAgent, tile_full = kWithinAgent, tile_empty = kWithinAgent;",
        ),
        inits: &[(0, "smem.init_barriers();")],
        stalls: &[
            ("q_full", 0),
            ("q_empty", 1),
            ("kv_full", 0),
            ("kv_empty", 0),
            ("staged", 0),
            ("drained", 1),
        ],
        values: ring,
    }),
    agents: &[
        AgentEmission {
            agent: Agent::Loader,
            seat: Seat::Lane(0),
            state: &[AT],
            function: "sm90_attend_loader",
            arguments: "<@{ name }@Config, @{ ring }@Edges>(ctx, smem.of<@{ name }@Config>(), @{ name \
                }@Hooks{params}, at);",
        },
        AgentEmission {
            agent: Agent::Consumers,
            seat: Seat::Computing,
            state: &[AT],
            function: "sm90_attend_consumer",
            arguments: "<@{ name }@Config, @{ ring }@Edges>(ctx, smem.of<@{ name }@Config>(), @{ name \
                }@Hooks{params}, warpgroup - 1, at);",
        },
        AgentEmission {
            agent: Agent::Storer,
            seat: Seat::Lane(1),
            state: &[AT],
            function: "sm90_attend_storer",
            arguments: "<@{ name }@Config, @{ ring }@Edges>(ctx, smem.of<@{ name }@Config>(), @{ name \
                }@Hooks{params}, at);",
        },
    ],
    // What tracing counts of a ring's steps takes registers of the loader.
    spills: Spills { several_loops: 0, traced_inner_loop: 64, promoted: 0 },
    prepare,
};

/// The same with three consumers, for heads that leave room for few registers.
const THREE: LeafEmission = LeafEmission {
    warpgroups: Warpgroups { issuing_registers: 32, computing_registers: 160, computing: 3 },
    ..EMISSION
};

/// The record for tiles of so many queries.
pub(in crate::emit) fn emission([queries, ..]: [u32; 3]) -> &'static LeafEmission {
    if queries > QUERIES[0] { &THREE } else { &EMISSION }
}

const AT: &str = "AttendCursor<@{ ring }@Config::kStages> at;";

/// Queries of a tile: 64 for each of two warpgroups, or of three.
const QUERIES: [u32; 2] = [128, 192];

/// Most keys of a block: scores, weights and results are in registers, and queries, keys and values in shared memory.
fn most_keys(queries: u32, heads: [u32; 2]) -> u32 {
    match (queries, heads) {
        (128, [64, 64] | [128, 128]) => 176,
        (128, [192, 128]) => 128,
        (128, [192, 192]) => 96,
        (128, [256, 256]) => 80,
        (192, [64, 64]) => 128,
        _ => 0,
    }
}

fn ring(leaves: &[&Leaf]) -> Result<Value> {
    let Some(Leaf::AttendTile(AttendTile {
        block: [block_m, block_n, dim],
        values,
        stages,
        mask,
        ..
    })) = leaves.first()
    else {
        return Err(EmitError::internal("emit/arch/sm90/attend.rs", "the ring of another leaf"));
    };
    let (bounded, values) = (bounded(*mask), values_option(*values));
    Ok(context! { block_m, block_n, dim, stages, bounded, values })
}

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let families = g.slices.iter().map(|s| family(e, *s)).collect::<Result<Vec<_>, _>>()?;
    let hooks = context! { tile => tile(e, g)? };
    Ok(Prepared { families, hooks, call: context! {}, workers: g.ctas, choices: vec![] })
}

/// The options of a loop's tiles.
fn tile(e: &Emitter<'_>, g: &Group) -> Result<Value> {
    let (id, f) = (g.slices[0].id, g.head(e));
    let refuse = |what: String| EmitError::unsupported(f.name.clone(), what);
    let Leaf::AttendTile(AttendTile {
        block: [block_m, block_n, dim],
        values,
        heads: together,
        carry,
        scale,
        stages,
        mask,
        cap,
        store,
    }) = f.leaf
    else {
        return Err(EmitError::internal(
            "emit/arch/sm90/attend.rs",
            format!("{id} attends to nothing"),
        ));
    };
    if carry != Carry::Registers || store != Store::Direct {
        return Err(refuse("attention is emitted with carry=registers and store=direct".into()));
    }
    let heads = [dim, values.unwrap_or(dim)];
    let widths = [48, 64, 80, 96, 128, 160, 176];
    if !widths.contains(&block_n) || block_n > most_keys(block_m, heads) || stages < 2 {
        return Err(refuse(format!(
            "tiles of attention have 128 queries and {widths:?} keys at a time, with heads of 64 or 128, up to 96 with \
             heads of 192 (128, if those of values have 128), up to 80 with heads of 256; or 192 queries and up to 128 \
             keys, with heads of 64; and 2 stages or more"
        )));
    }
    let factor = f32::from_bits(scale);
    if !factor.is_finite() || factor <= 0.0 {
        return Err(refuse(format!("the factor on scores is positive and finite, not {factor}")));
    }
    let f32s = [Operand::Lse, Operand::Sinks, Operand::AccOut, Operand::StatOut];
    let dtype = e.one_dtype(id, |o| !f32s.contains(&o) && !o.looks_up())?;
    let sinks = f.accesses.iter().any(|a| a.operand == Operand::Sinks);
    let parts = f.accesses.iter().any(|a| a.operand == Operand::AccOut);
    if parts && (sinks || f.accesses.iter().any(|a| a.operand == Operand::O)) {
        return Err(refuse(
            "partial results, of a part of the keys, are merged by another task: they have no `o` and no sink".into(),
        ));
    }
    if together == 0 || together > block_m || together != 1 && !parts {
        let what = "heads of a query that are rows are as many as rows at most, and have parts";
        return Err(refuse(what.into()));
    }
    let together = if together == 1 { String::new() } else { format!(", .heads = {together}") };
    let parts = if parts { ", .parts = true" } else { "" };
    let sinks = if sinks { ", .sinks = true" } else { "" };
    Ok(context! {
        block_m, block_n, dim, stages, dtype,
        scale => format!("0x{scale:08x}u"),
        mask => name_of(mask),
        windowed => mask.window().is_some(),
        more => more_options(mask, cap).map_err(refuse)? + parts + sinks + &values_option(values) + &together,
    })
}

/// The option of heads of values that have other elements.
pub(super) fn values_option(values: Option<u32>) -> String {
    values.map_or(String::new(), |wide| format!(", .values = {wide}"))
}

/// The option of a ring that has room for bounds.
pub(super) fn bounded(mask: Mask) -> &'static str {
    if mask == Mask::Bounds { ", .mask = Mask::Bounds" } else { "" }
}

pub(super) fn name_of(mask: Mask) -> &'static str {
    match mask {
        Mask::Full => "Full",
        Mask::Bounds => "Bounds",
        Mask::Causal | Mask::Window(_) => "Causal",
    }
}

/// Options that few tiles have, or what is wrong with them.
pub(super) fn more_options(mask: Mask, cap: Option<u32>) -> Result<String, String> {
    let mut text = mask.window().map_or(String::new(), |keys| format!(", .window = {keys}"));
    if let Some(bits) = cap {
        let cap = f32::from_bits(bits);
        if !cap.is_normal() || cap < 0.0 {
            return Err(format!("the cap of scores is positive and finite, not {cap}"));
        }
        text += &format!(", .cap_bits = 0x{bits:08x}u");
    }
    Ok(text)
}

/// Template values of one family.
fn family(e: &mut Emitter<'_>, s: Slice) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let Leaf::AttendTile(x) = &f.leaf else {
        return Err(EmitError::internal("emit/arch/sm90/attend.rs", format!("{} attends", s.id)));
    };
    let ([queries, keys, dim], wide, together) = (x.block, x.value_dim(), x.heads.max(1));
    let storers = f.posts.iter().all(|p| p.by == Agent::Storer);
    if !storers || f.waits.iter().any(|w| w.by != Agent::Loader) {
        let what = "in attention the loader waits and the storer posts";
        return EmitError::refuse(&f.name, what);
    }
    let q = e.access(f, Operand::Q)?;
    let count = |e: &Emitter<'_>, a: &Access, row: usize| e.c(f, None, &a.region[row].1);
    let rows = queries_of(f, q, together)?;
    let q_rows = head_rows(e, s.id, q, [queries / together, together], [dim, 64])?;
    let queries_read = q.region[rows].1.clone();
    let q_count = count(e, q, rows);
    let q_count = if together == 1 { q_count } else { format!("({q_count}) * {together}") };
    let mut sources = |operand| -> Result<Vec<Value>> {
        let mut out = Vec::new();
        for a in f.accesses.iter().filter(|a| a.operand == operand) {
            let dim = if operand == Operand::V { wide } else { dim };
            let text = head_rows(e, s.id, a, [keys, 1], [dim, 64])?;
            let row = rows_of(f, a)?;
            let (condition, count) = (e.condition(f, a), count(e, a, row));
            out.push(context! { condition, rows => text, count });
        }
        Ok(out)
    };
    let (keys, values) = (sources(Operand::K)?, sources(Operand::V)?);
    let position = |of: fn(&mk_plan::Positions) -> &Expr| match &f.positions {
        Some(at) => e.c(f, None, of(at)),
        None => "0".into(),
    };
    let made = |o: Operand| f.accesses.iter().any(|a| a.operand == o);
    let ((o, o_pitch), lse, stat_pitch) = if made(Operand::AccOut) {
        let stat = e.access(f, Operand::StatOut)?;
        let (at, pitch) = first_row(e, s.id, stat, [2, together])?;
        (results(e, s.id, Operand::AccOut, &queries_read, [wide, together])?, at, Some(pitch))
    } else {
        (results(e, s.id, Operand::O, &queries_read, [wide, 1])?, logarithms(e, s.id)?, None)
    };
    let value = context! {
        q => q_rows,
        rows => q_count,
        chunks => f.inner.as_ref().map_or("1".into(), |(_, n)| e.c(f, None, n)),
        inner => f.inner.as_ref().map(|(name, _)| name.clone()),
        keys, values,
        q_position => position(|at| &at.q),
        k_position => position(|at| &at.k),
        o, o_pitch, lse, stat_pitch,
        bounds => bounds(e, s.id)?,
        sink => sink(e, s.id)?,
        load_waits => e.waits(f, Agent::Loader, Point::Start)?,
        chunk_waits => e.waits(f, Agent::Loader, Point::Inner)?,
        posts => e.posts(f),
    };
    Ok(context! { ..value, ..e.slice(s) })
}

/// The dimension of queries, of each of which so many heads are rows.
fn queries_of(f: &Family, a: &Access, together: u32) -> Result<usize> {
    match a.region.len().checked_sub(3) {
        _ if together == 1 => rows_of(f, a),
        Some(row) if a.region[row + 1].1 == Expr::from(together as i32) => Ok(row),
        _ => {
            EmitError::refuse(&f.name, format!("`{}` is {together} heads of each query", a.operand))
        }
    }
}

/// Address of a tile's first row, and the bytes from one to the next, as C: of several heads of a query, these are all
/// that there are.
fn first_row(
    e: &Emitter<'_>,
    id: FamId,
    a: &Access,
    [dim, together]: [u32; 2],
) -> Result<(String, String)> {
    if together == 1 {
        return rows_at(e, id, a, dim);
    }
    let f = &e.plan.families[id];
    let heads = queries_of(f, a, together)? + 1;
    let own = a.each.is_none() && a.rank == Expr::Var(Var::RANK);
    let all = a.region[heads].0 == Expr::Const(0)
        && e.points.shape(a.buffer, 0)?.get(heads) == Some(&i64::from(together));
    if !own || !all || !whole_heads(e, a, dim)? {
        let what = format!("`{}` is whole heads of the own rank, all of a query", a.operand);
        return EmitError::refuse(&f.name, what);
    }
    e.check_lines(id, a)?;
    let pitch = e.own_pitch_bytes(a.buffer);
    let (base, first) = (e.base(a.buffer, "params.header.rank"), e.c(f, None, &e.row(a)));
    Ok((format!("{base} + static_cast<u64>({first}) * {pitch}"), format!("u64{{{pitch}}}")))
}

/// Rows of one head, or of some, as the loader asks TMA for them, in boxes of so many rows, of as many heads each, and
/// `wide` of `dim` elements: `[.., rows, heads, d]`, or `[.., .., rows, d]` of one head. What lies past a tensor's last
/// row reads as zeros.
pub(super) fn head_rows(
    e: &mut Emitter<'_>,
    id: FamId,
    a: &Access,
    [box_rows, together]: [u32; 2],
    [dim, wide]: [u32; 2],
) -> Result<String> {
    let f = &e.plan.families[id];
    let refuse = |what: String| EmitError::refuse(&f.name, what);
    let (n, row) = (a.region.len(), queries_of(f, a, together)?);
    if a.each.is_some() || a.rank != Expr::Var(Var::RANK) {
        return refuse(format!("`{}` is read on the own rank", a.operand));
    }
    if !whole_heads(e, a, dim)? {
        return refuse(format!("`{}` is read in whole heads, `0 : {dim}`", a.operand));
    }
    e.check_starts(id, a)?;
    // Rows are a dimension of the map, with one before and one behind it; or with two before it.
    let behind = row + 2 < n;
    let first = if behind { row } else { row.saturating_sub(1) };
    if first == 0 {
        let what = format!("`{}` is [.., rows, heads, {dim}] or [.., .., rows, {dim}]", a.operand);
        return refuse(what);
    }
    let cuts = [first, first + 1, n - 1];
    let box_dims = if behind { [1, box_rows, together, wide] } else { [1, 1, box_rows, wide] };
    let map = e.maps.index(e.plan, a.buffer, &View::cut(cuts), &box_dims)?;
    let at = |from, to| e.c(f, None, &e.flat(a, from, to));
    let (w, z, y) = (at(0, first), at(first, first + 1), at(first + 1, n - 1));
    Ok(format!("AttendRows{{&params.maps[kMap{map}], {y}, {z}, {w}, {behind}}}"))
}

/// Address of a tile's first row of results, and the bytes from one to the next, as C.
fn results(
    e: &Emitter<'_>,
    id: FamId,
    operand: Operand,
    queries: &Expr,
    [dim, together]: [u32; 2],
) -> Result<(String, String)> {
    let f = &e.plan.families[id];
    let o = e.access(f, operand)?;
    if o.region[queries_of(f, o, together)?].1 != *queries {
        return EmitError::refuse(&f.name, "results are as many as queries");
    }
    first_row(e, id, o, [dim, together])
}
