//! From a verified plan to one CUDA translation unit.
//!
//! The used files of the device library come first, word for word; then constants, one struct per family with the
//! plan's own index expressions, hooks for each leaf, one function per role, and the kernel. Deterministic; no IO; no
//! GPU.
//!
//! Imports among the files go one way: `types`, `error`, `library`, then `nodes`, `layout`, `maps`, `context`, then
//! what says parts of a family (`boxes`, `chain`, `signal`, `spans`, `tasks`), then `leaf`, then `role`, `trace`,
//! `audit`, `check`, `kernel`.

mod arch;
mod audit;
mod boxes;
mod chain;
mod check;
mod context;
mod engine;
mod environment;
mod error;
mod kernel;
mod layout;
mod leaf;
mod left_over;
pub mod library;
mod lookup;
mod maps;
mod nodes;
mod role;
mod rows;
mod signal;
mod spans;
mod spills;
mod tasks;
mod trace;
mod types;

use context::Emitter;
use error::Refused;
use mk_abi::{EdgeInfo, KernelSource, RankBinding, RoleInfo};
use mk_plan::{Entity, Plan, Points, TableSet};
use sha2::{Digest, Sha256};

pub use audit::{audit, audit_with};
use error::Result;
pub use error::{AuditError, EmitError, Refusal, Refusals};
pub use types::Options;

/// The kernel of a plan. The plan must verify: `mk_prove::valid::verify`.
///
/// # Errors
/// [`EmitError::Refused`] for plans outside what the templates implement: everything in them that is.
pub fn emit(plan: &Plan) -> Result<KernelSource> {
    emit_with(plan, Options::default())
}

/// [`emit`], with options.
///
/// # Errors
/// As [`emit`].
pub fn emit_with(plan: &Plan, options: Options) -> Result<KernelSource> {
    let tables = TableSet::example(plan);
    let points = Points::new(plan, &tables);
    let mut refused = Refused::default();
    check::check(plan, &mut refused)?;
    // What follows takes all of that for granted.
    refused.settle()?;
    let arch = arch::Arch::of(plan)?;
    let env = environment::environment(arch)?;
    let mut e = Emitter::new(plan, (&points, arch.target), options)?;
    let trace = if options.trace { Some(trace::layout(&e)?) } else { None };
    let threads = role::threads(plan)?;
    let (roles, choices) = role::roles(&mut e, &env, threads)?;
    let kernel = kernel::kernel(&e, arch, roles, threads, engine::gate(&e)?)?;
    let generated = env.get_template("kernel")?.render(kernel)?;
    let spill_bytes = spills::spill_bytes(plan, options);
    let choices = choices.join("\n");
    let header = format!(
        "{plan}\n{threads} threads, which spill at most {spill_bytes} bytes each\n{choices}\n"
    );
    let header: String = header.lines().map(|l| format!("// {l}\n")).collect();
    let header = header.replace("// \n", "//\n");
    let cuda = format!(
        "{header}\n{}\n{generated}",
        library::text_for(
            &generated,
            arch.library,
            trace.as_ref().map(|t| t.records),
            nodes::nodes(plan, e.layout.net.as_ref()),
            spills::indices_anew(plan)
        ),
    );
    audit_with(plan, &cuda, options)?;
    let ranks = (0..plan.mesh.size() as usize)
        .map(|rank| RankBinding {
            tensor_shapes: e.tensor_shapes(rank),
            maps: e.maps.on_rank(&e.layout, rank),
        })
        .collect();
    Ok(KernelSource {
        name: plan.name.clone(),
        cuda,
        entry: "mk_kernel".into(),
        arch: arch.target.arch.into(),
        // A plan uses part of the library: constants and functions that it does not need are no news.
        options: vec!["--diag-suppress=177".into()],
        world_size: plan.mesh.size(),
        grid: plan.roles.values().map(|r| r.ctas).sum(),
        cooperative: plan.waits(),
        cluster: cluster(plan)?,
        block: threads,
        smem_bytes: e.smem_bytes(),
        workspace: e.layout.workspace.clone(),
        tensors: e.layout.tensors.clone(),
        runtime_dims: rows::runtime_dims(plan)?,
        meets: e.entered().is_some(),
        ranks,
        roles: role_infos(plan),
        edges: edge_infos(plan),
        spill_bytes,
        plan_hash: plan_hash(plan, options),
        trace,
        host: engine::program(&e)?,
        net: e.layout.net.as_ref().map(|net| net.layout.clone()),
    })
}

/// CTAs of a cluster of the launch.
///
/// # Errors
/// [`EmitError::Refused`] where roles have clusters of several sizes: a launch has one.
fn cluster(plan: &Plan) -> Result<u32> {
    let roles = || plan.roles.iter().filter(|(_, r)| r.ctas > 0).map(|(id, _)| plan.cluster(id));
    let most = roles().max().unwrap_or(1);
    if roles().any(|n| n != most) {
        let what = "the CTAs of a kernel are in clusters of one size";
        return EmitError::refuse(&plan.name, what);
    }
    Ok(most)
}

/// First 32 bits of the SHA-256 of the plan's text and of what else decides the kernel.
pub fn plan_hash(plan: &Plan, options: Options) -> u32 {
    let mut text = plan.to_string();
    if options.trace {
        text.push_str("\ntrace\n");
    }
    let digest = Sha256::digest(text);
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

fn role_infos(plan: &Plan) -> Vec<RoleInfo> {
    let mut first_cta = 0;
    let mut out = Vec::new();
    for r in plan.roles.values().filter(|r| r.ctas > 0) {
        out.push(RoleInfo { name: r.kind.name().into(), first_cta, ctas: r.ctas });
        first_cta += r.ctas;
    }
    out
}

/// Every wait and internal edge, as the plan prints it.
fn edge_infos(plan: &Plan) -> Vec<EdgeInfo> {
    let mut out: Vec<EdgeInfo> = Vec::new();
    for (id, f) in plan.families.iter() {
        for w in &f.waits {
            let signal = &plan.signals[w.signal];
            let index: Vec<_> = w
                .index
                .iter()
                .map(|e| plan.text(Some(f), w.each.as_ref(), e).to_string())
                .collect();
            let count = plan.text(Some(f), w.each.as_ref(), &w.count);
            let text = format!(
                "{id} {:?}, {}: wait {} {:?}[{}] >= {count} per epoch",
                f.name,
                w.by,
                w.signal,
                signal.name,
                index.join(", ")
            );
            out.push(EdgeInfo { id: w.edge.index() as u32, text });
        }
    }
    out.sort_by_key(|e| e.id);
    out
}
