//! Which dimensions of the caller's tensors come with each launch.

use super::error::{EmitError, Result};
use mk_abi::{RuntimeDim, RuntimeRows, Share};
use mk_plan::{BufId, DimId, Entity, Env, Expr, Plan, Space, no_tables};

/// Most values of a dimension that a tensor's rows are computed at one by one.
const DENSE: i32 = 2048;

/// The dimensions, each with the tensors of which it decides an extent.
///
/// # Errors
/// [`EmitError::Refused`] where an extent is not the dimension, or a rank's part of it.
pub(super) fn runtime_dims(plan: &Plan) -> Result<Vec<RuntimeDim>> {
    let mut out = Vec::new();
    for (dim, d) in plan.dims.iter() {
        let Some(max) = d.runtime_max else { continue };
        let max = u32::try_from(max).map_err(|_| {
            EmitError::unsupported(dim.to_string(), format!("{} is at most {max}", d.name))
        })?;
        let (name, min) = (d.name.clone(), d.least() as u32);
        let mut found = RuntimeDim { name, min, max, tensors: Vec::new() };
        let caller = plan.buffers.iter().filter(|(_, b)| matches!(b.space, Space::In | Space::Out));
        for (i, (id, b)) in caller.enumerate() {
            let named: Vec<usize> =
                (0..b.shape.len()).filter(|d| b.shape[*d].names_dim(dim)).collect();
            let pitch = b.pitch.as_ref().is_some_and(|e| e.names_dim(dim));
            let rows = match named.as_slice() {
                [] if !pitch => continue,
                [at] if !pitch => rows(plan, dim, &found, (i as u32, id), *at)?,
                _ => None,
            };
            let Some(rows) = rows else {
                let what = format!("{} is more than its rows, or their part on each rank", d.name);
                return EmitError::refuse(id.to_string(), what);
            };
            found.tensors.push(rows);
        }
        out.push(found);
    }
    Ok(out)
}

/// Which of the ways that the runtime has gives the tensor's extent `at`, on every rank.
fn rows(
    plan: &Plan,
    dim: DimId,
    of: &RuntimeDim,
    (tensor, buffer): (u32, BufId),
    at: usize,
) -> Result<Option<RuntimeRows>> {
    let extent = &plan.buffers[buffer].shape[at];
    let is = |share| RuntimeRows { tensor, dim: at as u32, share };
    if *extent == Expr::Dim(dim) {
        return Ok(Some(is(Share::Whole)));
    }
    let world = plan.mesh.size();
    let mut dims: Vec<_> = plan.dims.values().map(|d| i64::from(d.value)).collect();
    let mut ways = Share::ALL.map(Some);
    for value in samples(of.max as i32, world as i32) {
        dims[dim.index()] = i64::from(value);
        for rank in 0..world {
            let vars = [i64::from(rank)];
            let env = Env { dims: &dims, vars: &vars, tables: &no_tables };
            let rows = extent.eval(&env).map_err(|e| {
                let what = format!("its rows on rank {rank}, where {} is {value}: {e}", of.name);
                EmitError::unsupported(buffer.to_string(), what)
            })?;
            for way in &mut ways {
                *way = way.filter(|way| way.of(value as u64, rank, world) as i64 == rows);
            }
        }
    }
    Ok(ways.into_iter().flatten().next().map(is))
}

/// Values of a dimension at which extents are compared: all, or, of many, those around the multiples of powers of two
/// and of the number of ranks, where parts begin and end.
fn samples(max: i32, world: i32) -> Vec<i32> {
    if max <= DENSE {
        return (1..=max).collect();
    }
    let mut out: Vec<i32> = (1..=DENSE / 2).chain(max - DENSE / 2..=max).collect();
    let mut step = DENSE / 2;
    while step < max {
        for at in [step, step / world * world] {
            out.extend([at - 1, at, at + 1].into_iter().filter(|v| (1..=max).contains(v)));
        }
        step = step.saturating_mul(2);
    }
    out.sort_unstable();
    out.dedup();
    out
}
