//! Tiles of attention's gradients: a lane brings what is held and what meets it, two warpgroups compute and store, a
//! lane makes the posts.

use super::attend::{bounded, head_rows, more_options, name_of, values_option};
use crate::emit::{
    EmitError, Result,
    context::Emitter,
    leaf::{
        AgentEmission, Group, LeafEmission, Prepared, RingEmission, Seat, Spills, Warpgroups,
        heads::{bounds, rows_at, rows_of},
    },
    types::Slice,
};
use minijinja::{Value, context};
use mk_plan::{
    Access, Agent, AttendGradTile, FamId, Family, GradOf, Leaf, Mask, Operand, Point, STATS,
};

const TEXTS: &[(&str, &str)] = &[
    ("attend_grad_tile", include_str!("../../../../templates/leaf/attend_grad_tile.cu.j2")),
    ("schedule", include_str!("../../../../templates/leaf/schedule.cu.j2")),
];

const INNER_EDGES: &str =
    "within = kWithinAgent, tile_full = kWithinAgent, tile_empty = kWithinAgent;";

const AT: &str = "AttendGradCursor<@{ ring }@Config::kStages> at;";

const ARGUMENTS: &str = "<@{ name }@Config, @{ ring }@Edges>(ctx, smem.of<@{ name }@Config>(), @{ name \
    }@Hooks{params}, at);";

const CONSUMER: &str = "<@{ name }@Config, @{ ring }@Edges>(ctx, smem.of<@{ name }@Config>(), @{ name \
    }@Hooks{params}, warpgroup - 1, at);";

/// Slots of the edges: what is waited for first, and the room for it.
const STALLS: &[(&str, u32)] = &[
    ("q_full", 0),
    ("q_empty", 1),
    ("kv_full", 0),
    ("kv_empty", 1),
    ("staged", 0),
    ("drained", 1),
];

const QUERIES_RING: RingEmission = RingEmission {
    comment: "The blocks of keys and values that the role's gradients of queries share.",
    config: "AttendDqConfig<AttendDqOptions{.block_m = @{ block_m }@, .block_n = @{ block_n }@, .dim = @{ dim }@, \
        .stages = @{ stages }@@{ bounded }@@{ values }@}>",
    smem: "AttendGradSmem",
    asserts: &[],
    inner_edges: Some(INNER_EDGES),
    inits: &[(0, "smem.init_barriers();")],
    stalls: STALLS,
    values: ring,
};

const KEYS_RING: RingEmission = RingEmission {
    comment: "The blocks of queries that the role's gradients of keys share.",
    config: "AttendDkvConfig<AttendDkvOptions{.block_m = @{ block_m }@, .block_n = @{ block_n }@, .dim = @{ dim }@, \
        .stages = @{ stages }@@{ bounded }@@{ values }@}>",
    ..QUERIES_RING
};

const fn agents(functions: [&'static str; 3]) -> [AgentEmission; 3] {
    let [loader, consumer, storer] = functions;
    [
        AgentEmission {
            agent: Agent::Loader,
            seat: Seat::Lane(0),
            state: &[AT],
            function: loader,
            arguments: ARGUMENTS,
        },
        AgentEmission {
            agent: Agent::Consumers,
            seat: Seat::Computing,
            state: &[AT],
            function: consumer,
            arguments: CONSUMER,
        },
        AgentEmission {
            agent: Agent::Storer,
            seat: Seat::Lane(1),
            state: &[AT],
            function: storer,
            arguments: ARGUMENTS,
        },
    ]
}

const QUERIES_AGENTS: &[AgentEmission] =
    &agents(["sm90_attend_dq_loader", "sm90_attend_dq_consumer", "sm90_attend_dq_storer"]);

const KEYS_AGENTS: &[AgentEmission] =
    &agents(["sm90_attend_dkv_loader", "sm90_attend_dkv_consumer", "sm90_attend_dkv_storer"]);

/// Gradients of queries.
pub(in crate::emit) const OF_QUERIES: LeafEmission = LeafEmission {
    template: "attend_grad_tile",
    texts: TEXTS,
    warpgroups: Warpgroups { issuing_registers: 72, computing_registers: 216, computing: 2 },
    ring: Some(&QUERIES_RING),
    agents: QUERIES_AGENTS,
    spills: Spills::NONE,
    prepare,
};

/// Gradients of keys and values: two sums take registers of the loader, whose expressions of a ring take many.
pub(in crate::emit) const OF_KEYS: LeafEmission = LeafEmission {
    warpgroups: Warpgroups { issuing_registers: 56, computing_registers: 224, computing: 2 },
    ring: Some(&KEYS_RING),
    agents: KEYS_AGENTS,
    ..OF_QUERIES
};

/// The same where documents mask and all queries come from one place: bounds take registers, which the loader has left.
const OF_KEYS_IN_PLACE: LeafEmission = LeafEmission {
    warpgroups: Warpgroups { issuing_registers: 40, computing_registers: 232, computing: 2 },
    ..OF_KEYS
};

/// The record for gradients of keys and values of a family.
pub(in crate::emit) fn of_keys(f: &Family, tile: &AttendGradTile) -> &'static LeafEmission {
    let places = f.accesses.iter().filter(|a| a.operand == Operand::Q).count();
    let in_place = tile.mask == Mask::Bounds && places == 1;
    if in_place { &OF_KEYS_IN_PLACE } else { &OF_KEYS }
}

fn ring(leaves: &[&Leaf]) -> Result<Value> {
    let Some(Leaf::AttendGradTile(AttendGradTile {
        of,
        block: [block_m, block_n, dim],
        values,
        stages,
        mask,
        ..
    })) = leaves.first()
    else {
        return Err(EmitError::internal(
            "emit/arch/sm90/attend_grad.rs",
            "the ring of another leaf",
        ));
    };
    let values = values_option(*values) + made_option(*of);
    Ok(context! { block_m, block_n, dim, stages, bounded => bounded(*mask), values })
}

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let tile = tile(e, g)?;
    let families = g.slices.iter().map(|s| family(e, *s)).collect::<Result<Vec<_>, _>>()?;
    let hooks = context! { tile };
    Ok(Prepared { families, hooks, call: context! {}, workers: g.ctas, choices: vec![] })
}

/// The option of one gradient of both, which the other side's memory does not depend on.
fn made_option(of: GradOf) -> &'static str {
    match of {
        GradOf::Queries | GradOf::Keys => "",
        GradOf::KeysAlone => ", .made = KeyGradients::Keys",
        GradOf::ValuesAlone => ", .made = KeyGradients::Values",
    }
}

/// Most rows of a block of the other side: scores, their gradients and sums are in registers, and both sides in shared
/// memory.
fn most_rows(of: GradOf, heads: [u32; 2]) -> u32 {
    match (of, heads) {
        (GradOf::Queries, [64, 64]) => 128,
        (GradOf::Queries, [128, 128]) | (GradOf::Keys, [64, 64]) => 96,
        (GradOf::Keys, [128, 128]) => 64,
        (GradOf::Keys, _) => 0,
        (_, [192, 128 | 192]) => 64,
        (_, [256, 256]) => 48,
        _ => 0,
    }
}

/// The options of a loop's tiles.
fn tile(e: &Emitter<'_>, g: &Group) -> Result<Value> {
    let (id, f) = (g.slices[0].id, g.head(e));
    let Leaf::AttendGradTile(AttendGradTile {
        of,
        block: [block_m, block_n, dim],
        values,
        scale,
        stages,
        mask,
        cap,
    }) = f.leaf
    else {
        return Err(EmitError::internal(
            "emit/arch/sm90/attend_grad.rs",
            format!("{id} is no gradient"),
        ));
    };
    let refuse = |what: String| EmitError::unsupported(f.name.clone(), what);
    let fits = block_m == 128 && matches!(block_n, 32 | 48 | 64 | 96 | 128);
    if !fits || block_n > most_rows(of, [dim, values.unwrap_or(dim)]) || stages < 2 {
        let most = [64, 128, 192, 256].map(|dim| (most_rows(of, [dim; 2]), dim));
        let most = most.into_iter().filter(|(rows, _)| *rows > 0);
        let most: Vec<_> = most.map(|(rows, dim)| format!("{rows} with heads of {dim}")).collect();
        return Err(refuse(format!(
            "{} has 128 rows, and 32, 48, 64, 96 or 128 rows of the other side at a time, up to {}; and 2 stages or \
                more",
            f.leaf.name(),
            most.join(" and "),
        )));
    }
    let factor = f32::from_bits(scale);
    if !factor.is_finite() || factor <= 0.0 {
        return Err(refuse(format!("the factor on scores is positive and finite, not {factor}")));
    }
    let dtype = e.one_dtype(id, |o| o != Operand::Stats && !o.looks_up())?;
    Ok(context! {
        of_queries => of == GradOf::Queries,
        block_m, block_n, dim, stages, dtype,
        scale => format!("0x{scale:08x}u"),
        mask => name_of(mask),
        more => more_options(mask, cap).map_err(refuse)? + &values_option(values) + made_option(of),
    })
}

fn member(operand: Operand) -> &'static str {
    // `do` is a word of C.
    if operand == Operand::Do { "d_o" } else { operand.name() }
}

/// Rows of an operand, as the loader asks TMA for them.
fn source(e: &mut Emitter<'_>, id: FamId, a: &Access, rows: u32, dim: u32) -> Result<String> {
    let stats = a.operand == Operand::Stats;
    let [dim, wide] = if stats { [STATS; 2] } else { [dim, 64] };
    head_rows(e, id, a, [rows, 1], [dim, wide])
}

/// Template values of one family.
fn family(e: &mut Emitter<'_>, s: Slice) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let Leaf::AttendGradTile(x) = &f.leaf else {
        let what = format!("{} is no gradient", s.id);
        return Err(EmitError::internal("emit/arch/sm90/attend_grad.rs", what));
    };
    let (of, [rows, others, dim]) = (x.of, x.block);
    let wide = |o: Operand| match o {
        Operand::V | Operand::Do | Operand::Dv => x.value_dim(),
        _ => dim,
    };
    let storers = f.posts.iter().all(|p| p.by == Agent::Storer);
    if !storers || f.waits.iter().any(|w| w.by != Agent::Loader) {
        let what = "in gradients of attention the loader waits and the storer posts";
        return EmitError::refuse(&f.name, what);
    }
    let mut held = Vec::new();
    for operand in of.held() {
        let a = e.access(f, *operand)?;
        let rows = source(e, s.id, a, rows, wide(*operand))?;
        held.push(context! { member => member(*operand), rows });
    }
    let mut moving = Vec::new();
    for a in f.accesses.iter().filter(|a| of.moving().contains(&a.operand)) {
        let rows = source(e, s.id, a, others, wide(a.operand))?;
        let row = rows_of(f, a)?;
        moving.push(context! {
            member => member(a.operand), rows,
            condition => e.condition(f, a),
            count => e.c(f, None, &a.region[row].1),
            first => a.operand == of.moving()[0],
        });
    }
    let first = e.access(f, of.held()[0])?;
    let row = rows_of(f, first)?;
    let mut made = Vec::new();
    let results: &[_] =
        if of == GradOf::Queries { &[Operand::Dq] } else { &[Operand::Dk, Operand::Dv] };
    for operand in results {
        let Some(a) = f.accesses.iter().find(|a| a.operand == *operand) else {
            made.push(context! { member => member(*operand), address => "0", pitch => "0" });
            continue;
        };
        if rows_of(f, a)? != row {
            let what = "gradients lie as what they are of";
            return EmitError::refuse(&f.name, what);
        }
        let (address, pitch) = rows_at(e, s.id, a, wide(*operand))?;
        made.push(context! { member => member(*operand), address, pitch });
    }
    let position = |queries: bool| match &f.positions {
        Some(at) => e.c(f, None, if queries { &at.q } else { &at.k }),
        None => "0".into(),
    };
    let queries = of == GradOf::Queries;
    let value = context! {
        held, moving, made,
        bounds => bounds(e, s.id)?,
        rows => e.c(f, None, &first.region[row].1),
        chunks => f.inner.as_ref().map_or("1".into(), |(_, n)| e.c(f, None, n)),
        inner => f.inner.as_ref().map(|(name, _)| name.clone()),
        held_position => position(queries),
        moving_position => position(!queries),
        load_waits => e.waits(f, Agent::Loader, Point::Start)?,
        chunk_waits => e.waits(f, Agent::Loader, Point::Inner)?,
        posts => e.posts(f),
    };
    Ok(context! { ..value, ..e.slice(s) })
}
