//! The values of the kernel template.

use super::{Result, arch::Arch, context::Emitter, layout::At, spans, trace};
use minijinja::{Value, context};
use mk_plan::{C_PRELUDE, Entity, Family};

/// The values of the kernel template, with those of its roles.
///
/// # Errors
/// [`EmitError::Internal`](super::EmitError::Internal) where records and plan contradict each other.
pub(super) fn kernel(
    e: &Emitter<'_>,
    arch: &Arch,
    roles: Vec<Value>,
    threads: u32,
    gate: Option<Value>,
) -> Result<Value> {
    let dims: Vec<_> = e
        .plan
        .dims
        .values()
        .map(|d| {
            let (name, runtime) = (d.name.clone(), d.runtime_max.is_some());
            context! { name, value => d.value, runtime }
        })
        .collect();
    let signals: Vec<_> = e
        .plan
        .signals
        .iter()
        .map(|(id, s)| context! { id => id.index(), name => s.name.clone(), word => e.layout.signals[id] })
        .collect();
    let buffers: Vec<_> = e
        .plan
        .buffers
        .iter()
        .map(|(id, b)| {
            let (kind, offset) = match e.layout.buffers[id].at {
                At::Tensor(i) => ("tensor", u64::from(i)),
                At::Symmetric(o) => ("symmetric", o),
                At::Scratch(o) => ("scratch", o),
                At::Net(o) => ("net", o),
            };
            context! { id => id.index(), name => b.name.clone(), kind, offset }
        })
        .collect();
    let mut edges: Vec<_> = e.plan.families.values().flat_map(Family::edge_ids).collect();
    edges.sort_unstable();
    edges.dedup();
    let edges: Vec<_> = edges.iter().map(|e| e.index()).collect();
    let enter = e
        .plan
        .families
        .values()
        .filter(|f| f.leaf.enters())
        .flat_map(|f| &f.posts)
        .map(|p| {
            let traced = if e.options.trace { Some(spans::enter(e.plan, p.edge)?) } else { None };
            Ok(context! { edge => p.edge.to_string(), signal => p.signal.index(), traced })
        })
        .collect::<Result<Vec<_>>>()?;
    let stalls = if e.options.trace { trace::stalls(e.plan)? } else { Vec::new() };
    Ok(context! {
        name => e.plan.name.clone(),
        prelude => C_PRELUDE,
        world => e.plan.mesh.size(),
        n_maps => e.maps.len(),
        n_tensors => e.layout.tensors.len(),
        maps => e.maps.comments(),
        smem_bytes => e.smem_bytes(),
        block => threads,
        regs_at_entry => match threads {
            384 => "kRegsAtEntry".to_string(),
            _ => format!("kRegsAtEntryOf<{threads}>"),
        },
        regs_release => arch.registers[0],
        regs_claim => arch.registers[1],
        trace => e.options.trace,
        counts => e.options.counts(e.plan),
        gate,
        entered => e.entered().map_or("kNoEntry".into(), |s| format!("kSig{}", s.index())),
        dims, signals, buffers, edges, enter, roles, stalls,
    })
}
