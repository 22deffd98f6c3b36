//! Compares an emitted kernel with its plan, edge by edge.
//!
//! The library part must be the library, word for word. In the generated part every edge of the plan must be used by
//! exactly one primitive: a wait or post by its call, an internal edge by the barrier set that carries it. So a
//! synchronisation line that is missing, doubled or foreign is found by reading, before anything runs.

use super::{
    Options, library,
    role::{runs, template_of},
    signal::several,
    trace,
};
use crate::ir::{
    Agent, EdgeId, Entity, FamId, Leaf, Plan, Proxy, RoleId, RoleKind, Schedule, Scope,
};
use std::collections::BTreeMap;
use thiserror::Error;

/// A kernel that does not synchronise as its plan says.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The device library was changed.
    #[error("line {line} of the kernel differs from the device library: `{text}`")]
    Library {
        /// Line in the kernel, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// An edge of the plan is not there as often as it should be.
    #[error("edge {edge} ({what}) appears {found} times in the kernel instead of {want}")]
    Edge {
        /// The edge.
        edge: EdgeId,
        /// What it is in the plan.
        what: String,
        /// How often its primitive appears.
        found: usize,
        /// How often it should: once, or also in the gate of captured launches.
        want: usize,
    },
    /// What surrounds the edges (entry, exit, barriers, agents) is not there as often as it should be.
    #[error("`{text}` appears {found} times in the kernel instead of {want}")]
    Frame {
        /// The call.
        text: &'static str,
        /// How often it appears.
        found: usize,
        /// How often the plan's roles and leaves need it.
        want: usize,
    },
    /// The kernel names an edge that the plan does not have.
    #[error(
        "line {line} of the kernel synchronises on {edge}, which the plan does not have there: `{text}`"
    )]
    Foreign {
        /// The edge.
        edge: String,
        /// Line in the kernel, from 1.
        line: usize,
        /// The line.
        text: String,
    },
}

/// Edges that a gate has, too: announcements, and the waits of copy engines.
fn in_gate(plan: &Plan) -> Vec<EdgeId> {
    let engines = || plan.families.values().filter(|f| f.leaf == Leaf::HostCopy);
    let enter = plan.families.values().filter(|f| f.leaf == Leaf::Enter);
    let posts = enter.flat_map(|f| &f.posts).filter(|_| engines().next().is_some());
    posts.map(|p| p.edge).chain(engines().flat_map(|f| &f.waits).map(|w| w.edge)).collect()
}

/// The call or member that an edge must appear in.
fn primitives(plan: &Plan) -> BTreeMap<EdgeId, (String, String)> {
    let mut out = BTreeMap::new();
    let entry = |signal| {
        let enter = plan.families.values().filter(|f| f.leaf == Leaf::Enter);
        enter.flat_map(|f| &f.posts).any(|p| p.signal == signal)
    };
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
            let text = if entry(w.signal) {
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
            let text = if f.leaf == Leaf::Enter {
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

fn scope(scope: Scope) -> &'static str {
    if scope == Scope::Gpu { "Gpu" } else { "Sys" }
}

/// Calls that every role and every leaf needs, and how often.
fn frame(plan: &Plan, options: Options) -> Vec<(&'static str, usize)> {
    let with_ctas = plan.roles.iter().filter(|(_, r)| r.ctas > 0).map(|(id, _)| id);
    let heads: Vec<Vec<FamId>> =
        with_ctas.map(|role| runs(plan, role).iter().map(|run| run[0]).collect()).collect();
    let template = |id: &FamId| template_of(&plan.families[*id].leaf);
    let runs: Vec<Vec<&str>> =
        heads.iter().map(|role| role.iter().map(template).collect()).collect();
    let dynamic = |id: &&FamId| plan.families[**id].schedule == Schedule::Dynamic;
    let queues = heads.iter().flatten().filter(dynamic).count();
    let calls = |template| runs.iter().flatten().filter(|t| **t == template).count();
    let rings = |template| runs.iter().filter(|r| r.contains(&template)).count();
    let (mma, bulk, rows) = (calls("mma_tile"), calls("copy_bulk"), calls("copy_rows"));
    let roles = plan.roles.values().filter(|r| r.ctas > 0).count();
    let gate = usize::from(plan.families.values().any(|f| f.leaf == Leaf::HostCopy));
    // Of loaders, those read the epoch that wait for something.
    let waits = |role: RoleId| {
        let mut mine = plan.families.values().filter(|f| f.role == role);
        mine.any(|f| f.waits.iter().any(|w| w.by == Agent::Loader))
    };
    let loaders = plan.roles.iter().filter(|(id, r)| r.ctas > 0 && waits(*id)).count();
    let staged = rings("mma_tile") + rings("copy_bulk");
    let mut out = vec![
        ("launch_begin(ctx);", roles + gate),
        ("launch_begin_sync();", 2 * roles + gate),
        ("ctx.past = ctx.read_past();", 2 * roles + loaders + gate),
        ("launch_engines(ctx);", gate),
        ("launch_gate_begin(ctx);", gate),
        ("launch_gate_end(ctx);", gate),
        ("sm90_regs_release<", roles),
        ("sm90_regs_claim<", roles),
        ("launch_count_in(ctx);", roles),
        ("launch_end(ctx);", roles),
        ("smem.init_barriers();", staged),
        ("if (warp_index() == 0 && elect_one()) {", staged),
        ("if (warp_index() == 1 && elect_one()) {", staged),
        ("smem.init_staging_barriers();", rings("mma_tile")),
        (
            "staging_full = staged, staging_free = drained, turn = kWithinAgent, tile_full = kWithinAgent, tile_empty = kWithinAgent;",
            rings("mma_tile"),
        ),
        ("sm90_gemm_loader<", mma),
        ("sm90_gemm_storer<", mma),
        ("sm90_gemm_consumer<", mma),
        ("bulk_copy_loader<", bulk),
        ("bulk_copy_storer<", bulk),
        ("copy_rows<", rows),
        ("reduce_rows<", calls("reduce_rows")),
        ("static constexpr bool kDynamic = true;", queues),
    ];
    let fences = |scope: Scope| {
        let posts = plan.families.values().filter(|f| f.leaf != Leaf::Enter).flat_map(|f| &f.posts);
        posts.filter(|p| several(p) && p.scope == scope && p.by != Agent::Engine).count()
    };
    out.extend([
        ("fence_acq_rel<Scope::Sys>(); for (", fences(Scope::Sys)),
        ("fence_acq_rel<Scope::Gpu>(); for (", fences(Scope::Gpu)),
    ]);
    if options.trace {
        out.extend([
            ("trace_begin();", roles),
            ("trace_mark(params.header);", roles),
            ("trace_end(ctx);", roles),
            (") { trace_mbarrier_wait<", trace::stalls(plan).len()),
        ]);
    }
    out
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
    let library = library::text_with(options.trace.then(|| trace_records(cuda)));
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
    for (edge, (text, what)) in &wanted {
        let found = generated.iter().map(|l| code(l).matches(text.as_str()).count()).sum();
        let want = if in_gate.contains(edge) { 2 } else { 1 };
        if found != want {
            return Err(AuditError::Edge { edge: *edge, what: what.clone(), found, want });
        }
    }
    for (text, want) in frame(plan, options) {
        let found = generated.iter().map(|l| code(l).matches(text).count()).sum::<usize>();
        if found != want {
            return Err(AuditError::Frame { text, found, want });
        }
    }
    for (i, line) in generated.iter().enumerate() {
        for (at, _) in code(line).match_indices("edge::") {
            let name: String =
                line[at + 6..].chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
            let id = name
                .strip_prefix('e')
                .and_then(|n| n.parse::<u32>().ok())
                .map(|n| EdgeId::new(n as usize));
            if id.is_none_or(|id| !wanted.contains_key(&id)) {
                let line_no = begin + library_lines.len() + i + 1;
                return Err(AuditError::Foreign {
                    edge: name,
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

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}
