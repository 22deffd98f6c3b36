//! From a verified plan to one CUDA translation unit.
//!
//! The device library comes first, word for word; then constants, one struct per family with the plan's own index
//! expressions, hooks for each leaf, one function per role, and the kernel. Deterministic; no IO; no GPU.

mod audit;
mod boxes;
mod chain;
mod check;
mod context;
mod engine;
mod layout;
pub mod library;
mod maps;
mod moves;
mod role;
mod signal;
mod tasks;
mod trace;

use crate::ir::{DimId, Entity, Expr, Leaf, Plan, PointError, Points, Space, TableSet, Var};
use context::Emitter;
use minijinja::{Environment, UndefinedBehavior, syntax::SyntaxConfig};
use mk_abi::{EdgeInfo, KernelSource, RankBinding, RoleInfo, RuntimeDim, RuntimeRows};
use sha2::{Digest, Sha256};
use thiserror::Error;

pub use audit::{AuditError, audit, audit_with};

/// What decides a kernel beside its plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether the kernel records what its agents do, for [`crate::trace`]. Without it the text has no trace of it.
    /// Ranks with and without are different kernels, and do not run together. Default: false.
    pub trace: bool,
}

/// Why a plan that verifies has no kernel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The plan uses something that no template implements.
    #[error("{place}: {what}")]
    Unsupported {
        /// The family or role.
        place: String,
        /// What is missing.
        what: String,
    },
    /// An expression has no value.
    #[error(transparent)]
    Point(#[from] PointError),
    /// A template is wrong.
    #[error("internal error in a template: {0:#}")]
    Template(#[from] minijinja::Error),
    /// The emitted text does not carry the plan's edges.
    #[error("internal error: {0}")]
    Audit(#[from] AuditError),
}

impl EmitError {
    fn unsupported(place: impl Into<String>, what: impl Into<String>) -> EmitError {
        EmitError::Unsupported { place: place.into(), what: what.into() }
    }
}

/// Threads of every CTA: a warpgroup of single-lane agents and two that compute.
pub const BLOCK_THREADS: u32 = 384;
/// Bytes of registers that a thread of a chain of products may spill. Seen: 0 for most shapes, 4 to 8 for some, in the
/// epilogue where it was looked at (docs/decisions.md, 36).
const CHAIN_SPILL_BYTES: u32 = 32;
/// The same of a kernel that is traced where rows come in slices. Seen: 4 to 84, none of it in the loop of wgmmas.
const TRACED_LOOP_SPILL_BYTES: u32 = 128;
/// Shared memory beside a leaf's contract: mbarriers, at most.
const BARRIER_BYTES: u32 = 1024;

const TEMPLATES: &[(&str, &str)] = &[
    ("kernel", include_str!("../../../templates/kernel.cu.j2")),
    ("mma_tile", include_str!("../../../templates/leaf/mma_tile.cu.j2")),
    ("schedule", include_str!("../../../templates/leaf/schedule.cu.j2")),
    ("chain", include_str!("../../../templates/leaf/chain.cu.j2")),
    ("copy_bulk", include_str!("../../../templates/leaf/copy_bulk.cu.j2")),
    ("copy_rows", include_str!("../../../templates/leaf/copy_rows.cu.j2")),
    ("reduce_rows", include_str!("../../../templates/leaf/reduce_rows.cu.j2")),
];

/// Jinja's own delimiters clash with inline PTX and with CUDA's attributes.
fn environment() -> Result<Environment<'static>, EmitError> {
    let mut env = Environment::new();
    env.set_syntax(
        SyntaxConfig::builder()
            .block_delimiters("@%", "%@")
            .variable_delimiters("@{", "}@")
            .comment_delimiters("@#", "#@")
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(true)
            .build()?,
    );
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    for (name, text) in TEMPLATES {
        env.add_template(name, text)?;
    }
    Ok(env)
}

/// The kernel of a plan. The plan must verify: [`crate::valid::verify`].
///
/// # Errors
/// [`EmitError::Unsupported`] for plans outside what the templates implement.
pub fn emit(plan: &Plan) -> Result<KernelSource, EmitError> {
    emit_with(plan, Options::default())
}

/// [`emit`], with options.
///
/// # Errors
/// As [`emit`].
pub fn emit_with(plan: &Plan, options: Options) -> Result<KernelSource, EmitError> {
    let tables = TableSet::new(plan, |_, _| Vec::new());
    let points = Points::new(plan, &tables);
    check::check(plan)?;
    let env = environment()?;
    let mut e = Emitter::new(plan, &points, options)?;
    let trace = match options.trace {
        true => Some(trace::layout(&e)?),
        false => None,
    };
    let roles = role::roles(&mut e, &env)?;
    let smem_bytes = e.smem_bytes();
    let kernel = e.kernel(roles, smem_bytes, engine::gate(&e)?);
    let generated = env.get_template("kernel")?.render(kernel)?;
    let header: String = plan.to_string().lines().map(|l| format!("// {l}\n")).collect();
    let header = header.replace("// \n", "//\n");
    let cuda =
        format!("{header}\n{}\n{generated}", library::text_with(trace.as_ref().map(|t| t.records)));
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
        arch: plan.target.clone(),
        // A plan uses part of the library: constants and functions that it does not need are no news.
        options: vec!["--diag-suppress=177".into()],
        world_size: plan.mesh.size(),
        grid: plan.roles.values().map(|r| r.ctas).sum(),
        cluster: 1,
        block: BLOCK_THREADS,
        smem_bytes,
        workspace: e.layout.workspace.clone(),
        tensors: e.layout.tensors.clone(),
        runtime_dims: runtime_dims(plan)?,
        meets: e.entered().is_some(),
        ranks,
        roles: role_infos(plan),
        edges: edge_infos(plan),
        spill_bytes: spill_bytes(plan, options),
        plan_hash: plan_hash(plan, options),
        trace,
        host: engine::program(&e)?,
    })
}

/// Which tensors' rows come with each launch.
fn runtime_dims(plan: &Plan) -> Result<Vec<RuntimeDim>, EmitError> {
    let mut out = Vec::new();
    for (dim, d) in plan.dims.iter() {
        let Some(max) = d.runtime_max else { continue };
        let caller = plan.buffers.iter().filter(|(_, b)| matches!(b.space, Space::In | Space::Out));
        let mut tensors = Vec::new();
        for (i, (id, b)) in caller.enumerate() {
            let (first, rest) = (&b.shape[0], &b.shape[1..]);
            let elsewhere = rest.iter().chain(&b.pitch).any(|e| e.names_dim(dim));
            let part = *first != Expr::Dim(dim);
            if elsewhere || part && first.names_dim(dim) && *first != chunk(plan, dim) {
                let what = format!("{} is more than its rows, or their part on each rank", d.name);
                return Err(EmitError::unsupported(id.to_string(), what));
            }
            if first.names_dim(dim) {
                tensors.push(RuntimeRows { tensor: i as u32, part });
            }
        }
        out.push(RuntimeDim { name: d.name.clone(), max: max.max(0) as u32, tensors });
    }
    Ok(out)
}

/// The part of a dimension that a rank holds, as `RuntimeDim::rows` computes it.
fn chunk(plan: &Plan, dim: DimId) -> Expr {
    let world = plan.mesh.size() as i32;
    let part = Expr::Dim(dim).ceil_div(world);
    let rest = Expr::Dim(dim) - Expr::Var(Var::RANK) * part.clone();
    Expr::Const(0).max(part.min(rest))
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

/// What ptxas may spill: with one product nothing, unless it is traced in an inner loop.
fn spill_bytes(plan: &Plan, options: Options) -> u32 {
    let traced_loop = options.trace && plan.families.values().any(|f| f.inner.is_some());
    let products = |role| {
        let runs = role::runs(plan, role);
        runs.iter().filter(|r| matches!(plan.families[r[0]].leaf, Leaf::MmaTile { .. })).count()
    };
    let chain = plan.roles.keys().any(|r| products(r) > 1);
    match (traced_loop, chain) {
        (true, _) => TRACED_LOOP_SPILL_BYTES,
        (false, true) => CHAIN_SPILL_BYTES,
        (false, false) => 0,
    }
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
