//! Roles as CUDA functions: which agents run which loops, on which threads.

use super::{
    EmitError, Result,
    arch::{Arch, emission},
    context::Emitter,
    error::Refused,
    leaf::{Group, IDLE_REGISTERS, LeafEmission, Prepared, RingEmission, Seat, Warpgroups},
    types::Slice,
};
use minijinja::{Environment, Value, context};
use mk_plan::{Agent, Expr, FamId, Leaf, Plan, RoleId, Schedule, Var};

/// A loop of a role, with its leaf's record and the values of its templates.
struct Loop {
    group: Group,
    emission: &'static LeafEmission,
    prepared: Prepared,
}

impl Loop {
    fn choices(&self, plan: &Plan, role: RoleId) -> String {
        let families: Vec<_> = self.group.slices.iter().map(|s| s.id.to_string()).collect();
        let w = self.emission.warpgroups;
        let leaf = plan.families[self.group.slices[0].id].leaf.name();
        let (issuing, computing) = (w.issuing_registers, w.computing_registers);
        let registers = format!("registers {issuing} + {} x {computing}", w.computing);
        let mut parts = vec![leaf.to_string(), registers];
        parts.extend(self.prepared.choices.iter().cloned());
        format!("{role}, {}: {}", families.join(", "), parts.join(", "))
    }
}

/// The ring of a role, with the name of its types.
struct Ring<'e> {
    name: String,
    emission: &'static RingEmission,
    leaves: Vec<&'e Leaf>,
    value: Value,
}

/// Renders every role that has CTAs; and lists, loop by loop, the choices that follow from the plan without being
/// written in it.
///
/// # Errors
/// If a role's families do not fit its agents.
pub(super) fn roles(
    e: &mut Emitter<'_>,
    env: &Environment<'_>,
    threads: u32,
) -> Result<(Vec<Value>, Vec<String>)> {
    let (mut out, mut choices) = (Vec::new(), Vec::new());
    let mut first_cta = 0;
    let plan = e.plan;
    // Of every role and loop, not of the first one that has something no template carries out.
    let mut refused = Refused::default();
    for (id, role) in plan.roles.iter().filter(|(_, r)| r.ctas > 0) {
        let kind = role.kind.name();
        let Some(groups) = refused.note(groups(e, id, &camel(kind), first_cta))? else { continue };
        let families: Vec<_> =
            groups.iter().flat_map(|g| &g.slices).map(|s| e.family(*s)).collect();
        let ring = refused.note(ring(plan, &format!("{}Ring", camel(kind)), &groups))?;
        let mut loops = Vec::new();
        for group in groups {
            let emission = emission(plan, group.slices[0].id)?;
            let prepared = refused.note((emission.prepare)(e, &group))?;
            loops.extend(prepared.map(|prepared| Loop { group, emission, prepared }));
        }
        let Some(mut ring) = ring.filter(|_| refused.is_empty()) else { continue };
        let mut hooks = Vec::new();
        for l in &loops {
            hooks.push(hooks_of(e, env, l, ring.as_ref())?);
        }
        // Undefined, a template that names it is an error.
        let ring_name = ring.as_ref().map_or(Value::UNDEFINED, |r| r.name.clone().into());
        let warpgroups = warpgroups(kind, &loops, threads)?;
        choices.extend(loops.iter().map(|l| l.choices(plan, id)));
        // Calls of the warp for tasks without rows.
        let left_over = loops.iter().filter(|l| left_over(&l.prepared));
        let left_over: Vec<_> = left_over
            .map(|l| format!("gemm_left_over(ctx, {}Hooks{{params}});", l.group.name))
            .collect();
        let mut lanes = Vec::new();
        for (seat, number) in seats(&loops) {
            let seated = seated(env, plan, &loops, seat, warpgroups, &ring_name)?;
            lanes.push(context! { warp => number, ..seated });
        }
        let computing = seated(env, plan, &loops, Seat::Computing, warpgroups, &ring_name)?;
        let ring = match ring.as_mut() {
            Some(ring) => Some(ring.print(env)?),
            None => None,
        };
        out.push(context! {
            kind, first_cta, ctas => role.ctas, cluster => plan.cluster(id), families, hooks, ring, lanes, computing,
            left_over,
            issuing_registers => warpgroups.issuing_registers,
            computing_registers => warpgroups.computing_registers,
            computing_warpgroups => warpgroups.computing,
            idle_warpgroups => (threads / 128).saturating_sub(1 + warpgroups.computing),
            idle_registers => IDLE_REGISTERS,
        });
        first_cta += role.ctas;
    }
    refused.settle()?;
    Ok((out, choices))
}

/// Threads of every CTA.
///
/// # Errors
/// [`EmitError::Refused`] where leaves of one kernel need different numbers.
pub(super) fn threads(plan: &Plan) -> Result<u32> {
    let mut threads = None;
    for (id, _) in plan.roles.iter().filter(|(_, r)| r.ctas > 0) {
        for run in plan.runs(id) {
            let leaf = emission(plan, run[0])?;
            if !leaf.computes() {
                continue;
            }
            // Movers leave further warpgroups idle.
            if leaf.warpgroups == Warpgroups::MOVING {
                continue;
            }
            // A second that computes, where one has nothing to do, is idle, too.
            let mine = leaf.warpgroups.threads().max(Warpgroups::MOVING.threads());
            if *threads.get_or_insert(mine) != mine {
                let what = "leaves of one kernel have CTAs of as many threads";
                return EmitError::refuse(plan.families[run[0]].name.clone(), what);
            }
        }
    }
    let threads = threads.unwrap_or(Warpgroups::MOVING.threads());
    let promised = Arch::of(plan)?.target.block_threads;
    if !promised.contains(&threads) {
        let what = format!("CTAs of {threads} threads, where the target says {promised:?}");
        return EmitError::refuse(format!("target {}", plan.target), what);
    }
    Ok(threads)
}

fn groups(e: &Emitter<'_>, role: RoleId, prefix: &str, first_cta: u32) -> Result<Vec<Group>> {
    let mut out = Vec::new();
    let mut first = 0;
    for (n, run) in e.plan.runs(role).into_iter().enumerate() {
        let mut slices = Vec::new();
        for id in run {
            let domain = &e.plan.families[id].domain;
            let nested = |(_, n): &(String, _)| {
                let n: &Expr = n;
                (0..domain.len()).any(|v| n.mentions(Var::domain(v)))
            };
            if domain.iter().any(nested) {
                return EmitError::refuse(id.to_string(), "loops depend on each other");
            }
            let slice = Slice { id, first, tasks: e.n_tasks(id)? };
            first += slice.tasks;
            slices.push(slice);
        }
        let ctas = e.plan.roles[role].ctas;
        let cluster = e.plan.cluster(role);
        out.push(Group { name: format!("{prefix}{n}"), slices, first_cta, ctas, cluster });
    }
    Ok(out)
}

/// The ring of shared-memory stages that a role's loops use one after the other.
fn ring<'e>(plan: &'e Plan, name: &str, groups: &[Group]) -> Result<Option<Ring<'e>>> {
    let mut found: Option<(Ring<'e>, FamId)> = None;
    for s in groups.iter().flat_map(|g| &g.slices) {
        let f = &plan.families[s.id];
        let Some(emission) = emission(plan, s.id)?.ring else { continue };
        let (ring, head) = found.get_or_insert_with(|| {
            let (name, leaves, value) = (name.to_string(), Vec::new(), Value::UNDEFINED);
            (Ring { name, emission, leaves, value }, s.id)
        });
        let head = &plan.families[*head];
        if !head.leaf.shares_ring(&f.leaf) {
            let what = "two kinds of tiles would share one shared memory";
            return EmitError::refuse(&f.name, what);
        }
        if f.edges != head.edges {
            let ids: Vec<_> = head.edges.iter().map(|x| format!("{} {}", x.edge, x.name)).collect();
            let what = format!(
                "its tiles share the barriers of {:?}, and need its internal edges: {}",
                head.name,
                ids.join(", ")
            );
            return EmitError::refuse(format!("{} {:?}", s.id, f.name), what);
        }
        ring.leaves.push(&f.leaf);
    }
    let Some((mut ring, head)) = found else { return Ok(None) };
    let edges: Vec<_> = plan.families[head]
        .edges
        .iter()
        .map(|x| context! { name => x.name.clone(), edge => x.edge.to_string() })
        .collect();
    let values = (ring.emission.values)(&ring.leaves)?;
    ring.value = context! { name => ring.name.clone(), edges, ..values };
    Ok(Some(ring))
}

impl Ring<'_> {
    /// Its values in the kernel template.
    fn print(&self, env: &Environment<'_>) -> Result<Value> {
        let r = self.emission;
        let config = env.render_str(r.config, &self.value)?;
        let asserts = r.asserts.iter().map(|a| env.render_str(a, &self.value));
        let asserts = asserts.collect::<Result<Vec<_>, _>>()?;
        let inits: Vec<_> = r
            .inits
            .iter()
            .map(|(thread, call)| context! { thread => *thread, call => *call })
            .collect();
        Ok(context! {
            comment => r.comment, smem => r.smem, inner_edges => r.inner_edges, config, asserts, inits,
            ..self.value.clone()
        })
    }
}

/// Whether a loop has tasks that a launch leaves without rows.
fn left_over(prepared: &Prepared) -> bool {
    prepared.hooks.get_attr("left_over").is_ok_and(|x| x.is_true())
}

/// The hooks of one loop.
fn hooks_of(
    e: &Emitter<'_>,
    env: &Environment<'_>,
    l: &Loop,
    ring: Option<&Ring<'_>>,
) -> Result<String> {
    let (g, p) = (&l.group, &l.prepared);
    let (first, last) = (g.slices[0], g.slices[g.slices.len() - 1]);
    // Of a dynamic schedule: the word that counts what has been taken.
    let taken = match e.plan.families[first.id].schedule {
        Schedule::Dynamic => match e.layout.taken.get(&first.id) {
            None => {
                let what = format!("nothing counts what has been taken of {}", g.name);
                return Err(EmitError::internal("emit/role.rs", what));
            }
            counter => counter,
        },
        Schedule::Static => None,
    };
    Ok(env.get_template(l.emission.template)?.render(context! {
        name => g.name.clone(),
        families => p.families.clone(),
        taken,
        workers => p.workers,
        first_cta => g.first_cta,
        ctas => g.ctas / g.cluster,
        cluster => g.cluster,
        // A cluster's tasks that its CTAs do not share are the first one's.
        leads => e.plan.families[first.id].leaf.cluster() < g.cluster,
        ring => ring.map(|r| r.value.clone()),
        posts => g.slices.iter().any(|s| !e.plan.families[s.id].posts.is_empty()),
        trace => e.options.trace,
        locals => e.locals(),
        first => first.first,
        end => last.first + last.tasks,
        ..p.hooks.clone()
    })?)
}

/// Lanes of the first warpgroup that some loop has an agent on, in order, with the number of the warp.
fn seats(loops: &[Loop]) -> Vec<(Seat, u32)> {
    let agents = loops.iter().flat_map(|l| l.emission.agents);
    let mut lanes: Vec<_> = agents
        .filter_map(|a| match a.seat {
            Seat::Lane(warp) => Some((a.seat, warp)),
            Seat::Computing => None,
        })
        .collect();
    lanes.sort_unstable();
    lanes.dedup();
    lanes
}

/// The values of a seat: state, whether its threads read the epoch by themselves, calls, loop by loop.
fn seated(
    env: &Environment<'_>,
    plan: &Plan,
    loops: &[Loop],
    seat: Seat,
    of_role: Warpgroups,
    ring: &Value,
) -> Result<Value> {
    let (mut state, mut calls, mut agents) = (Vec::<String>::new(), Vec::new(), Vec::new());
    for l in loops {
        for a in l.emission.agents.iter().filter(|a| a.seat == seat) {
            for line in a.state {
                let line = env.render_str(line, context! { ring })?;
                if !state.contains(&line) {
                    state.push(line);
                }
            }
            let name = &l.group.name;
            let call = context! { name, ring, ..l.prepared.call.clone() };
            let computing = l.emission.warpgroups.computing;
            let only = match seat == Seat::Computing && computing < of_role.computing {
                true => format!("if (warpgroup <= {computing}) "),
                false => String::new(),
            };
            calls.push(format!("{only}{}{}", a.function, env.render_str(a.arguments, call)?));
            agents.extend(l.group.slices.iter().map(|s| (s.id, a.agent)));
        }
    }
    // What warp 0 loads first would stand behind the answer: it reads the epoch only if it waits for something.
    let waits = |(id, by): &(_, Agent)| plan.families[*id].waits.iter().any(|w| w.by == *by);
    let reads_epoch = seat == Seat::Lane(0) && agents.iter().any(waits);
    Ok(context! { state, calls, reads_epoch })
}

/// Registers of a role's threads: as the loop wants that computes with the most. Where others only move rows, there may
/// be more warpgroups that do nothing.
fn warpgroups(role: &str, loops: &[Loop], threads: u32) -> Result<Warpgroups> {
    let all = || loops.iter().map(|l| l.emission.warpgroups).filter(|w| *w != Warpgroups::MOVING);
    let Some(most) = all().max_by_key(|w| w.computing_registers) else {
        return Ok(match loops.iter().any(|l| l.emission.computes()) {
            true => Warpgroups::beside_idle(threads),
            false => Warpgroups::moving(threads),
        });
    };
    if all().any(|w| w.computing != most.computing) {
        let what = "leaves of one role have as many computing warpgroups";
        return EmitError::refuse(role, what);
    }
    // Beside one that multiplies, another that only moves rows.
    let moves = |l: &Loop| l.emission.warpgroups == Warpgroups::MOVING && l.emission.computes();
    let least = if loops.iter().any(moves) { Warpgroups::MOVING.computing } else { 0 };
    Ok(Warpgroups { computing: most.computing.max(least), ..most })
}

fn camel(name: &str) -> String {
    let word = |w: &str| {
        let (first, rest) = w.split_at(w.chars().next().map_or(0, char::len_utf8));
        first.to_ascii_uppercase() + rest
    };
    name.split('_').map(word).collect()
}
