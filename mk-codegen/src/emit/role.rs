//! Roles as CUDA functions: which agents run which families, on which warps.

use super::{
    EmitError,
    context::Emitter,
    tasks::{Slice, dtype_name},
};
use crate::ir::{
    ALayout, Agent, BLayout, Consumers, CopyVia, EPILOGUE_OPERANDS, EpilogueOp, FamId, Leaf, Mode,
    Operand, Plan, RoleId, Schedule, Store, Var, carry_last, gated, mma_panel_columns, mma_panels,
    mma_staging_bytes, mma_staging_panels, saves_gates,
};
use crate::target;
use minijinja::{Environment, Value, context};
use mk_abi::DType;

/// Families of a role that one set of agents runs on end: same leaf, consecutive tasks.
struct Group {
    leaf: Leaf,
    slices: Vec<Slice>,
}

/// Renders every role that has CTAs.
///
/// # Errors
/// If a role's families do not fit its agents.
pub(super) fn roles(e: &mut Emitter<'_>, env: &Environment<'_>) -> Result<Vec<Value>, EmitError> {
    let mut out = Vec::new();
    let mut first_cta = 0;
    for (id, role) in e.plan.roles.iter().filter(|(_, r)| r.ctas > 0) {
        let kind = role.kind.name();
        let groups = groups(e, id)?;
        let families: Vec<_> =
            groups.iter().flat_map(|g| &g.slices).map(|s| e.family(*s)).collect();
        let mut rendered = Vec::new();
        for (n, g) in groups.iter().enumerate() {
            let name = format!("{}{n}", camel(kind));
            rendered.push(group(e, env, &name, g, first_cta, role.ctas)?);
        }
        let rings: Vec<_> = ring(e, kind, &groups)?.into_iter().collect();
        out.push(
            context! { kind, first_cta, ctas => role.ctas, families, groups => rendered, rings },
        );
        first_cta += role.ctas;
    }
    Ok(out)
}

/// Template of a leaf's hooks.
pub(super) fn template_of(leaf: &Leaf) -> &'static str {
    match leaf {
        Leaf::MmaTile { .. } => "mma_tile",
        Leaf::CopyTile { via: CopyVia::Bulk, .. } => "copy_bulk",
        Leaf::ReduceTile { .. } => "reduce_rows",
        _ => "copy_rows",
    }
}

/// Whether two families can be one group: the same leaf on the same types, used alike, and an epilogue that reads the same tensors.
fn same_body(plan: &Plan, a: FamId, b: FamId) -> bool {
    let extras = |f: FamId| {
        let reads =
            plan.families[f].accesses.iter().filter(|x| EPILOGUE_OPERANDS.contains(&x.operand));
        reads.map(|x| x.buffer).collect::<Vec<_>>()
    };
    let types = |f: FamId| {
        let all = plan.families[f]
            .accesses
            .iter()
            .map(|x| (x.operand, x.mode, plan.buffers[x.buffer].dtype));
        all.collect::<Vec<_>>()
    };
    let computes = matches!(plan.families[a].leaf, Leaf::MmaTile { .. } | Leaf::ReduceTile { .. });
    let schedule = |f: FamId| plan.families[f].schedule;
    plan.families[a].leaf == plan.families[b].leaf
        && schedule(a) == schedule(b)
        && extras(a) == extras(b)
        && (!computes || types(a) == types(b))
}

/// A role's families, cut where the leaf or what its epilogue reads changes.
pub(super) fn runs(plan: &Plan, role: RoleId) -> Vec<Vec<FamId>> {
    let mut out: Vec<Vec<FamId>> = Vec::new();
    for (id, _) in plan.families.iter().filter(|(_, f)| f.role == role) {
        match out.last_mut() {
            Some(run) if same_body(plan, run[0], id) => run.push(id),
            _ => out.push(vec![id]),
        }
    }
    out
}

fn groups(e: &Emitter<'_>, role: RoleId) -> Result<Vec<Group>, EmitError> {
    let mut out = Vec::new();
    let mut first = 0;
    for run in runs(e.plan, role) {
        let mut slices = Vec::new();
        for id in &run {
            let domain = &e.plan.families[*id].domain;
            let nested = |(_, n): &(String, _)| {
                let n: &crate::ir::Expr = n;
                (0..domain.len()).any(|v| n.mentions(Var::domain(v)))
            };
            if domain.iter().any(nested) {
                return Err(EmitError::unsupported(id.to_string(), "loops depend on each other"));
            }
            let slice = Slice { id: *id, first, tasks: e.n_tasks(*id)? };
            first += slice.tasks;
            slices.push(slice);
        }
        out.push(Group { leaf: e.plan.families[run[0]].leaf.clone(), slices });
    }
    Ok(out)
}

/// The ring of shared-memory stages that a role's groups use one after the other.
fn ring(e: &Emitter<'_>, kind: &str, groups: &[Group]) -> Result<Option<Value>, EmitError> {
    let staged =
        || groups.iter().filter(|g| matches!(template_of(&g.leaf), "mma_tile" | "copy_bulk"));
    let Some(first) = staged().next() else { return Ok(None) };
    let head = &e.plan.families[first.slices[0].id];
    for (g, s) in staged().flat_map(|g| g.slices.iter().map(move |s| (g, s))) {
        let other = &e.plan.families[s.id];
        if !first.leaf.shares_ring(&g.leaf) {
            let what = "two kinds of tiles would share one shared memory";
            return Err(EmitError::unsupported(other.name.clone(), what));
        }
        if other.edges != head.edges {
            let ids: Vec<_> = head.edges.iter().map(|x| format!("{} {}", x.edge, x.name)).collect();
            let what = format!(
                "its tiles share the barriers of {:?}, and need its internal edges: {}",
                head.name,
                ids.join(", ")
            );
            return Err(EmitError::unsupported(format!("{} {:?}", s.id, other.name), what));
        }
    }
    let edges: Vec<_> = head
        .edges
        .iter()
        .map(|x| context! { name => x.name.clone(), edge => x.edge.to_string() })
        .collect();
    let name = format!("{}Ring", camel(kind));
    // A stage has room for the widest tiles.
    let columns = |g: &Group| match g.leaf {
        Leaf::MmaTile { block, .. } => block[1],
        _ => 0,
    };
    Ok(Some(match &first.leaf {
        Leaf::MmaTile { block, stages, consumers, .. } => context! {
            kind => "mma",
            name, edges, stages,
            ping_pong => *consumers == Consumers::PingPong,
            block_m => block[0],
            block_n => groups.iter().map(columns).max(),
            staging => mma_staging_bytes([block[0], block[1]]),
        },
        Leaf::CopyTile { stages, .. } => context! { kind => "bulk", name, edges, stages },
        _ => return Ok(None),
    }))
}

fn group(
    e: &mut Emitter<'_>,
    env: &Environment<'_>,
    name: &str,
    g: &Group,
    first_cta: u32,
    ctas: u32,
) -> Result<Value, EmitError> {
    let template = template_of(&g.leaf);
    let mut families = Vec::new();
    // Along k, of the shallowest tile.
    let mut steps = i64::MAX;
    // Of each sum.
    let mut destinations = None;
    for s in &g.slices {
        families.push(match template {
            "mma_tile" => {
                let (value, least) = e.mma(*s)?;
                steps = steps.min(least);
                value
            }
            "reduce_rows" => {
                let (value, places) = e.reduce(*s)?;
                if *destinations.get_or_insert(places) != places {
                    let what = "sums of one group have as many destinations";
                    return Err(EmitError::unsupported(name, what));
                }
                value
            }
            _ => e.copy(*s, template == "copy_bulk")?,
        });
    }
    let (chain, operands) = match template {
        "reduce_rows" => e.sum_chain(g.slices[0].id)?,
        _ => (Vec::new(), 0),
    };
    let posts = g.slices.iter().any(|s| !e.plan.families[s.id].posts.is_empty());
    let loader_waits =
        g.slices.iter().any(|s| e.plan.families[s.id].waits.iter().any(|w| w.by == Agent::Loader));
    let (first, last) = (g.slices[0], g.slices[g.slices.len() - 1]);
    let tile = match &g.leaf {
        Leaf::MmaTile { .. } => Some(tile(e, g, first.id, steps)?),
        _ => None,
    };
    let (dtype, dtype_to) = match template {
        "reduce_rows" => {
            let of = |operand| one_dtype(e, first.id, |o| o == operand);
            (of(Operand::Src)?, of(Operand::Dst)?)
        }
        _ => ("Bf16", "Bf16"),
    };
    // With one sum for each CTA, all of its threads work on that.
    let teams = if last.first + last.tasks - first.first > ctas { 2 } else { 1 };
    // Of a dynamic schedule: the word that counts what has been taken, and how many have a task to begin with.
    let taken = match e.plan.families[first.id].schedule {
        Schedule::Dynamic => match e.layout.taken.get(&first.id) {
            None => return Err(EmitError::unsupported(name, "nothing counts what has been taken")),
            counter => counter,
        },
        Schedule::Static => None,
    };
    let workers = if template == "reduce_rows" { teams * ctas } else { ctas };
    let hooks = env.get_template(template)?.render(context! {
        name, families, chain, operands, destinations, taken, workers, posts, first_cta, ctas, teams,
        ping_pong => matches!(g.leaf, Leaf::MmaTile { consumers: Consumers::PingPong, .. }),
        trace => e.options.trace,
        locals => e.locals(),
        first => first.first,
        end => last.first + last.tasks,
    })?;
    Ok(context! { name, template, hooks, dtype, dtype_to, tile, teams, loader_waits })
}

/// What the tiles of a matrix-product group are, beyond the ring; `steps` is how many along k each has at least.
fn tile(e: &Emitter<'_>, g: &Group, id: FamId, steps: i64) -> Result<Value, EmitError> {
    let Leaf::MmaTile { block, stages, a_layout, b_layout, store, consumers, epilogue } = &g.leaf
    else {
        return Err(EmitError::unsupported(id.to_string(), "is not a matrix product"));
    };
    let dtype = one_dtype(e, id, |o| matches!(o, Operand::A | Operand::B))?;
    let out = one_dtype(e, id, |o| o == Operand::C)?;
    let saves_f32 = e.plan.families[id].accesses.iter().any(|a| {
        EPILOGUE_OPERANDS.contains(&a.operand)
            && a.mode == Mode::Write
            && e.plan.buffers[a.buffer].dtype == DType::F32
    });
    if dtype == "F32" || (out == "F32" || saves_f32) && block[1] % 64 != 0 {
        let what = "tiles multiply 16-bit elements, and store f32 in whole panels of 64 columns";
        return Err(EmitError::unsupported(e.plan.families[id].name.clone(), what));
    }
    let cache = target::by_name(&e.plan.target).map_or(0.0, |t| f64::from(t.l2_bytes));
    let mut once = true;
    for s in &g.slices {
        once &= e.points.streams(s.id, Operand::B, cache)?;
    }
    // Of the panels that there is no staging for, the last stage takes some: where a warp overwrites rows of A that its own part of
    // the wgmmas has read, 128 bytes each; and where no tile has fewer steps than there are stages, so that a consumer that has a tile
    // behind it knows that the storer is through with the one before.
    let panels = mma_panels(*block, g.leaf.out_columns(), out == "F32");
    let own_rows = *consumers == Consumers::Cooperative && *a_layout == ALayout::Mk;
    let whole = *store == Store::Tma && mma_panel_columns(block[1]) == 64;
    let enough = panels > mma_staging_panels(block[0]) && steps >= i64::from(*stages);
    let lends = own_rows && whole && enough && !carry_last(epilogue);
    Ok(context! {
        block_m => block[0],
        block_n => block[1],
        lends,
        stages,
        dtype,
        out,
        a => if *a_layout == ALayout::Mk { "KMajor" } else { "MMajor" },
        b => if *b_layout == BLayout::Kn { "NMajor" } else { "KMajor" },
        gated => if gated(epilogue) { "true" } else { "false" },
        adds => e.plan.families[id].accesses.iter().any(|a| a.mode == Mode::Accumulate),
        reads => *store == Store::Direct && epilogue.iter().any(|op| op.operand() == Some(Mode::Read)),
        saves => saves(epilogue),
        saves_gates => saves_gates(epilogue),
        carried => epilogue.contains(&EpilogueOp::Carry),
        carry_last => carry_last(epilogue),
        b_once => once,
        store => if *store == Store::Tma { "Tma" } else { "Direct" },
        ping_pong => *consumers == Consumers::PingPong,
    })
}

/// The element type that some operands of a family have in common.
fn one_dtype(
    e: &Emitter<'_>,
    id: FamId,
    of: impl Fn(Operand) -> bool,
) -> Result<&'static str, EmitError> {
    let f = &e.plan.families[id];
    let mut types =
        f.accesses.iter().filter(|a| of(a.operand)).map(|a| e.plan.buffers[a.buffer].dtype);
    let first = types.next().unwrap_or(DType::Bf16);
    if types.any(|t| t != first) {
        return Err(EmitError::unsupported(f.name.clone(), "operands have several dtypes"));
    }
    match first {
        DType::Bf16 | DType::F16 | DType::F32 => Ok(dtype_name(first)),
        other => Err(EmitError::unsupported(f.name.clone(), format!("no tile computes {other}"))),
    }
}

fn camel(name: &str) -> String {
    let word = |w: &str| {
        let mut c = w.chars();
        c.next().map(|f| f.to_ascii_uppercase().to_string() + c.as_str()).unwrap_or_default()
    };
    name.split('_').map(word).collect()
}

/// Matrices that an epilogue saves: gates and ups are two.
fn saves(epilogue: &[EpilogueOp]) -> usize {
    let saves = epilogue.iter().filter(|op| **op == EpilogueOp::Save).count();
    saves + usize::from(saves_gates(epilogue))
}
