//! Compares an emitted kernel with its plan, edge by edge.
//!
//! The library part must be the library, word for word. In the generated part every edge of the plan must be used by
//! exactly one primitive: a wait or post by its call, an internal edge by the barrier set that carries it. So a
//! synchronisation line that is missing, doubled or foreign is found by reading, before anything runs.

use super::{
    arch::{Arch, carrier},
    error::AuditError,
    leaf::{Carrier, LeafEmission, Seat, Warpgroups},
    library, nodes,
    signal::several,
    spills,
    types::Options,
};
use mk_plan::{Agent, EdgeId, Entity, Family, Plan, Proxy, RoleId, RoleKind, Schedule, Scope};
use std::collections::{BTreeMap, BTreeSet};

/// Edges that a gate has, too: announcements, and the waits of copy engines.
fn in_gate(plan: &Plan) -> BTreeSet<EdgeId> {
    let engines = || plan.families.values().filter(|f| f.leaf.is_host_copy());
    let enter = plan.families.values().filter(|f| f.leaf.enters());
    let posts = enter.flat_map(|f| &f.posts).filter(|_| engines().next().is_some());
    posts.map(|p| p.edge).chain(engines().flat_map(|f| &f.waits).map(|w| w.edge)).collect()
}

/// The call or member that an edge must appear in.
fn primitives(plan: &Plan) -> BTreeMap<EdgeId, (String, String)> {
    let mut out = BTreeMap::new();
    let enter = plan.families.values().filter(|f| f.leaf.enters());
    let entries: BTreeSet<_> = enter.flat_map(|f| &f.posts).map(|p| p.signal).collect();
    let node_entry = nodes::entered(plan);
    for (id, f) in plan.families.iter() {
        for e in &f.edges {
            let text = format!("{} = edge::{};", e.name, e.edge);
            out.insert(e.edge, (text, format!("{} of {id}", e.name)));
        }
        // What the host does is not in the text: `engine.rs` makes it from the plan, task by task.
        if plan.roles[f.role].kind == RoleKind::Epilogue {
            continue;
        }
        for w in &f.waits {
            let reader = if w.proxy == Proxy::Async { "Async" } else { "Generic" };
            let text = if node_entry == Some(w.signal) {
                format!("wait_node<edge::{}, Reader::{reader}>(", w.edge)
            } else if plan.signals[w.signal].net {
                format!("wait_net<edge::{}, Reader::{reader}>(", w.edge)
            } else if entries.contains(&w.signal) {
                format!("wait_entered<edge::{}, Reader::{reader}>(", w.edge)
            } else {
                format!(
                    "wait_signal<edge::{}, Scope::{}, Reader::{reader}>(",
                    w.edge,
                    scope(w.scope)
                )
            };
            out.insert(w.edge, (text, format!("wait of {id}")));
        }
        for p in f.posts.iter().filter(|p| p.by != Agent::Engine) {
            let text = if f.leaf.sends() {
                format!("net_word<edge::{}>(", p.edge)
            } else if f.leaf.enters() {
                format!("post_entered<edge::{}>(", p.edge)
            } else {
                let post = if several(p) { "post_fenced" } else { "post_signal" };
                format!("{post}<edge::{}, Scope::{}>(", p.edge, scope(p.scope))
            };
            out.insert(p.edge, (text, format!("post of {id}")));
        }
    }
    out
}

/// Whether a post is a host's or a card's.
fn by_host(by: Agent) -> bool {
    matches!(by, Agent::Engine | Agent::Sender | Agent::Receiver)
}

fn scope(scope: Scope) -> &'static str {
    if scope == Scope::Gpu { "Gpu" } else { "Sys" }
}

/// The first family of each loop of a role, with its record.
fn loops(plan: &Plan, role: RoleId) -> Result<Vec<(&Family, &'static LeafEmission)>, AuditError> {
    let record = |run: Vec<_>| {
        let f = &plan.families[run[0]];
        match carrier(plan, f) {
            Carrier::Agents(emission) => Ok((f, emission)),
            Carrier::Frame | Carrier::Host | Carrier::Nobody => {
                Err(AuditError::Leaf { family: f.name.clone(), leaf: f.leaf.name() })
            }
        }
    };
    plan.runs(role).into_iter().map(record).collect()
}

fn arch(plan: &Plan) -> Result<&'static Arch, AuditError> {
    Arch::of(plan).map_err(|e| AuditError::Target(e.to_string()))
}

fn lane(warp: u32) -> String {
    format!("if (warp_index() == {warp} && elect_one()) {{")
}

/// Calls that the leaves need, by their records: those of the ring and of single lanes once for each role, those of
/// agents for each loop.
fn leaf_calls(plan: &Plan) -> Result<BTreeMap<String, usize>, AuditError> {
    let mut calls = BTreeMap::new();
    let inits = |l: &LeafEmission| l.ring.map_or(&[][..], |r| r.inits);
    // Calls that no loop needs must not be there.
    for l in arch(plan)?.all_leaves() {
        calls.extend(inits(l).iter().map(|(_, init)| (init.to_string(), 0)));
        calls.extend(l.ring.and_then(|r| r.inner_edges).map(|edges| (edges.to_string(), 0)));
        for a in l.agents {
            calls.insert(format!("{}<", a.function), 0);
            if let Seat::Lane(warp) = a.seat {
                calls.insert(lane(warp), 0);
            }
        }
    }
    for (id, _) in plan.roles.iter().filter(|(_, r)| r.ctas > 0) {
        let mut of_role = Vec::new();
        for (_, l) in loops(plan, id)? {
            of_role.extend(inits(l).iter().map(|(_, init)| init.to_string()));
            of_role.extend(l.ring.and_then(|r| r.inner_edges).map(str::to_string));
            for a in l.agents {
                *calls.entry(format!("{}<", a.function)).or_default() += 1;
                if let Seat::Lane(warp) = a.seat {
                    of_role.push(lane(warp));
                }
            }
        }
        of_role.sort_unstable();
        of_role.dedup();
        for call in of_role {
            *calls.entry(call).or_default() += 1;
        }
    }
    Ok(calls)
}

/// Edges whose barriers are specialised in a traced kernel.
fn stalls(plan: &Plan) -> usize {
    let rings = |f: &&Family| matches!(carrier(plan, f), Carrier::Agents(l) if l.ring.is_some());
    let mut edges: Vec<_> =
        plan.families.values().filter(rings).flat_map(|f| &f.edges).map(|e| e.edge).collect();
    edges.sort_unstable();
    edges.dedup();
    edges.len()
}

/// Calls that every role and every leaf needs, and how often.
fn frame(plan: &Plan, options: Options) -> Result<Vec<(String, usize)>, AuditError> {
    let [release, claim] = arch(plan)?.registers;
    let mut queues = 0;
    let with_ctas = || plan.roles.iter().filter(|(_, r)| r.ctas > 0).map(|(id, _)| id);
    for role in with_ctas() {
        let dynamic = |(f, _): &&(&Family, _)| f.schedule == Schedule::Dynamic;
        queues += loops(plan, role)?.iter().filter(dynamic).count();
    }
    let roles = with_ctas().count();
    let gate = usize::from(plan.families.values().any(|f| f.leaf.is_host_copy()));
    // Of agents of warp 0, those read the epoch that wait for something.
    let mut first_lanes = 0;
    for role in with_ctas() {
        let waits = |f: &Family| {
            let Carrier::Agents(l) = carrier(plan, f) else { return false };
            let seated = |by| l.agents.iter().any(|a| a.seat == Seat::Lane(0) && a.agent == by);
            f.waits.iter().any(|w| seated(w.by))
        };
        first_lanes += usize::from(plan.families.values().any(|f| f.role == role && waits(f)));
    }
    let mut out: Vec<_> = leaf_calls(plan)?.into_iter().collect();
    // Roles that compute with fewer warpgroups than a CTA has tell the rest to give up their registers.
    let mut computing = Vec::new();
    for role in with_ctas() {
        let loops = loops(plan, role)?;
        let all = || loops.iter().map(|(_, l)| *l).filter(|l| l.computes());
        let of = |l: &LeafEmission| (l.warpgroups != Warpgroups::MOVING, l.warpgroups.computing);
        let moves = all().filter(|l| l.warpgroups == Warpgroups::MOVING);
        let least = moves.map(|l| l.warpgroups.computing).max().unwrap_or(0);
        computing.extend(all().map(of).max().map(|(tiles, n)| (tiles, n.max(least))));
    }
    let there = computing.iter().map(|(_, n)| *n).max().max(Some(Warpgroups::MOVING.computing));
    let idle = computing.iter().filter(|(_, n)| Some(*n) < there).count();
    let fences = |scope: Scope| {
        let posts = plan.families.values().filter(|f| !f.leaf.enters()).flat_map(|f| &f.posts);
        posts.filter(|p| several(p) && p.scope == scope && !by_host(p.by)).count()
    };
    let clusters = with_ctas().filter(|role| plan.cluster(*role) > 1).count();
    let mut add = |text: &str, want: usize| out.push((text.to_string(), want));
    // Of launches that leave nothing behind there is no count.
    let (counted, uncounted) = if options.counts(plan) { (roles, 0) } else { (0, roles) };
    for (text, want) in [
        ("launch_begin(ctx);", counted + gate),
        ("launch_begin_uncounted(ctx);", uncounted),
        ("launch_begin_sync();", 2 * roles + gate),
        ("ctx.past = ctx.read_past();", 2 * counted + first_lanes + gate),
        ("launch_engines(ctx);", gate),
        ("launch_gate_begin(ctx);", gate),
        ("launch_gate_end(ctx);", gate),
        ("cluster_arrive();", 2 * clusters),
        (&format!("{release}<"), roles + idle),
        (&format!("{claim}<"), roles),
        ("launch_count_in(ctx);", counted),
        ("launch_end(ctx);", counted),
        ("static constexpr bool kDynamic = true;", queues),
        ("fence_acq_rel<Scope::Sys>(); for (", fences(Scope::Sys)),
        ("fence_acq_rel<Scope::Gpu>(); for (", fences(Scope::Gpu)),
    ] {
        add(text, want);
    }
    if options.trace {
        add("trace_begin();", roles);
        add("trace_mark(params.header);", roles);
        add("trace_end(ctx);", roles);
        add(") { trace_mbarrier_wait<", stalls(plan));
    }
    Ok(out)
}

/// Checks a kernel that was emitted without options against its plan.
///
/// # Errors
/// The first difference.
pub fn audit(plan: &Plan, cuda: &str) -> Result<(), AuditError> {
    audit_with(plan, cuda, Options::default())
}

/// [`audit`] for a kernel that was emitted with options.
///
/// # Errors
/// As [`audit`].
pub fn audit_with(plan: &Plan, cuda: &str, options: Options) -> Result<(), AuditError> {
    let own = cuda.split_once(library::END).map_or(cuda, |(_, own)| own);
    let library = library::text_for(
        own,
        arch(plan)?.library,
        options.trace.then(|| trace_records(cuda)),
        nodes::of(plan).unwrap_or(library::Nodes::ONE),
        spills::indices_anew(plan),
    );
    let library_lines: Vec<_> = library.lines().collect();
    let lines: Vec<_> = cuda.lines().collect();
    let head = lines.iter().take_while(|l| l.is_empty() || l.starts_with("//")).count();
    // The plan's comment ends where the library's first line stands.
    let begin = lines[..head].iter().position(|l| *l == library_lines[0]).unwrap_or(head);
    for (i, want) in library_lines.iter().enumerate() {
        let found = lines.get(begin + i).copied().unwrap_or("");
        if found != *want {
            return Err(AuditError::Library { line: begin + i + 1, text: found.into() });
        }
    }
    let generated = &lines[(begin + library_lines.len()).min(lines.len())..];
    let (wanted, in_gate) = (primitives(plan), in_gate(plan));
    // Lines by the edges that they name: every primitive names its own.
    let mut naming: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (i, line) in generated.iter().enumerate() {
        for name in edges(line) {
            naming.entry(name).or_default().insert(i);
        }
    }
    for (edge, (text, what)) in &wanted {
        let lines = naming.get(edge.to_string().as_str()).into_iter().flatten();
        let found = lines.map(|i| code(generated[*i]).matches(text.as_str()).count()).sum();
        let want = if in_gate.contains(edge) { 2 } else { 1 };
        if found != want {
            return Err(AuditError::Edge { edge: *edge, what: what.clone(), found, want });
        }
    }
    for (text, want) in frame(plan, options)? {
        let found = generated.iter().map(|l| code(l).matches(text.as_str()).count()).sum::<usize>();
        if found != want {
            return Err(AuditError::Frame { text, found, want });
        }
    }
    for (i, line) in generated.iter().enumerate() {
        for name in edges(line) {
            let id = name
                .strip_prefix('e')
                .and_then(|n| n.parse::<u32>().ok())
                .map(|n| EdgeId::new(n as usize));
            if id.is_none_or(|id| !wanted.contains_key(&id)) {
                let line_no = begin + library_lines.len() + i + 1;
                return Err(AuditError::Foreign {
                    edge: name.to_string(),
                    line: line_no,
                    text: line.to_string(),
                });
            }
        }
    }
    Ok(())
}

/// The size of the rings, as the kernel says it; 0 if it does not.
fn trace_records(cuda: &str) -> u32 {
    let line = cuda.lines().find_map(|l| l.strip_prefix(library::RECORDS));
    line.and_then(|l| l.strip_suffix(';')).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The edges that a line names, in its order.
fn edges(line: &str) -> impl Iterator<Item = &str> {
    let code = code(line);
    code.match_indices("edge::").map(|(at, found)| {
        let name = &code[at + found.len()..];
        let end = name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len());
        &name[..end]
    })
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}
