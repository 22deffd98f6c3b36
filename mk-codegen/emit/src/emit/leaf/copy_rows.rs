//! Copies through registers: rows of any length and pitch, by all computing threads.

use super::{
    moves,
    record::{Group, LeafEmission, Prepared, by_all_threads},
};
use crate::emit::{context::Emitter, error::Result};
use minijinja::context;

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "copy_rows",
    "copy_rows",
    "2 * kWarpgroupThreads, 2, @{ name }@Edges@{ \", 1\" if bytes else (\", 2\" if own or few else \"\") \
     }@@{ \", true\" if own else (\", false, kFewUnroll\" if few else \"\") }@"
);

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let own = moves::of_own_rows(e, g);
    let families =
        g.slices.iter().map(|s| moves::copy(e, *s, (false, own))).collect::<Result<_, _>>()?;
    let (hooks, call) = (
        context! {},
        context! { bytes => moves::of_bytes(e, g), own, few => moves::few_registers(e, g) },
    );
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices: vec![] })
}
