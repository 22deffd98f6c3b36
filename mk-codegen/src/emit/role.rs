//! Roles as CUDA functions: which agents run which families, on which warps.

use super::{EmitError, context::Emitter, tasks::Slice};
use crate::ir::{CopyVia, FamId, Leaf, RoleId, Store};
use minijinja::{Environment, Value, context};
use mk_abi::DType;

/// Families of a role that one set of agents runs: same leaf, tasks numbered on end.
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
            let name = format!("{}{}", camel(kind), n);
            rendered.push(group(e, env, &name, g, first_cta, role.ctas)?);
        }
        let ring = groups.iter().position(|g| template_of(&g.leaf) != "copy_rows");
        let ring = ring.map(|n| context! { name => format!("{}{n}", camel(kind)) });
        let has = |template: &str| groups.iter().any(|g| template_of(&g.leaf) == template);
        out.push(context! {
            kind, first_cta, ctas => role.ctas, families,
            groups => rendered, ring,
            mma => has("mma_tile"),
            bulk => has("copy_bulk"),
            rows => has("copy_rows"),
        });
        first_cta += role.ctas;
    }
    Ok(out)
}

fn template_of(leaf: &Leaf) -> &'static str {
    match leaf {
        Leaf::MmaTile { .. } => "mma_tile",
        Leaf::CopyTile { via: CopyVia::Bulk, .. } => "copy_bulk",
        _ => "copy_rows",
    }
}

fn groups(e: &Emitter<'_>, role: RoleId) -> Result<Vec<Group>, EmitError> {
    let mut out: Vec<Group> = Vec::new();
    let mut first = 0;
    for (id, f) in e.plan.families.iter().filter(|(_, f)| f.role == role) {
        if f.domain
            .iter()
            .any(|(_, n)| (0..f.domain.len()).any(|v| n.mentions(crate::ir::Var::domain(v))))
        {
            return Err(EmitError::unsupported(id.to_string(), "loops depend on each other"));
        }
        let slice = Slice { id, first, tasks: e.n_tasks(id)? };
        first += slice.tasks;
        match out.iter().position(|g| g.leaf == f.leaf) {
            Some(n) if n + 1 == out.len() => out[n].slices.push(slice),
            None => out.push(Group { leaf: f.leaf.clone(), slices: vec![slice] }),
            Some(_) => {
                return Err(EmitError::unsupported(
                    id.to_string(),
                    "families of one leaf stand apart",
                ));
            }
        }
    }
    // One ring of stages in shared memory, used by one group.
    if out.iter().filter(|g| template_of(&g.leaf) != "copy_rows").count() > 1 {
        let what = "two kinds of tiles would share one shared memory";
        return Err(EmitError::unsupported(role.to_string(), what));
    }
    Ok(out)
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
    let slices = g.slices.clone();
    let mut families = Vec::new();
    for s in &slices {
        families.push(match template {
            "mma_tile" => e.mma(*s)?,
            _ => e.copy(*s, template == "copy_bulk")?,
        });
    }
    let head = &e.plan.families[slices[0].id];
    let edges: Vec<_> = head
        .edges
        .iter()
        .map(|x| context! { name => x.name.clone(), edge => x.edge.to_string() })
        .collect();
    let posts = slices.iter().any(|s| !e.plan.families[s.id].posts.is_empty());
    let (first, last) = (slices[0], slices[slices.len() - 1]);
    let mut ctx = context! {
        name, families, edges, posts, first_cta, ctas,
        first => first.first,
        end => last.first + last.tasks,
    };
    match &g.leaf {
        Leaf::MmaTile { block, stages, store, .. } => {
            ctx = context! {
                block_m => block[0],
                block_n => block[1],
                stages,
                store => if *store == Store::Tma { "Tma" } else { "Direct" },
                dtype => dtype(e, slices[0].id)?,
                ..ctx
            };
        }
        Leaf::CopyTile { stages, .. } => ctx = context! { stages, ..ctx },
        _ => {}
    }
    let hooks = env.get_template(template)?.render(&ctx)?;
    Ok(context! { name, template, hooks })
}

/// Element type of a matrix product, the same for all its operands.
fn dtype(e: &Emitter<'_>, id: FamId) -> Result<&'static str, EmitError> {
    let f = &e.plan.families[id];
    let mut types = f.accesses.iter().map(|a| e.plan.buffers[a.buffer].dtype);
    let first = types.next().unwrap_or(DType::Bf16);
    let name = match first {
        DType::Bf16 => "Bf16",
        DType::F16 => "F16",
        other => {
            return Err(EmitError::unsupported(
                f.name.clone(),
                format!("no tile multiplies {other}"),
            ));
        }
    };
    if types.any(|t| t != first) {
        return Err(EmitError::unsupported(f.name.clone(), "operands have several dtypes"));
    }
    Ok(name)
}

fn camel(name: &str) -> String {
    let word = |w: &str| {
        let mut c = w.chars();
        c.next().map(|f| f.to_ascii_uppercase().to_string() + c.as_str()).unwrap_or_default()
    };
    name.split('_').map(word).collect()
}
