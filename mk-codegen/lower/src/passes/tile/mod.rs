//! Tiles a kernel, operation by operation: families of tasks with their accesses, and flows of data between them.
//!
//! Assumes claimed operations and settings that fit them. Leaves: tiles of each GEMM in an L2-friendly order, those
//! with local operands first, then those whose rows arrive from peers; a GEMM that another one reads goes to scratch
//! (or to the caller, who wants it, too), with a flow per block of rows; a GEMM that is summed goes where its reduction
//! wants it; operands whose rows TMA cannot take (pitch not a multiple of 16 bytes) are repacked first; attention; rows
//! of experts, and what is made of them.

mod alone;
mod attend_steps;
mod attention;
mod blocks;
mod dispatch;
mod documents;
mod ends;
mod exchange;
mod gradients;
mod grouped;
mod key_parts;
mod last_wave;
mod maps;
mod operands;
mod product;
mod products;
mod tiler;
mod ulysses;
mod wgrad;

use super::{
    draft::Draft,
    error::LowerError,
    shape::kernel::{Kernel, Op},
    world::World,
};
use crate::settings::Config;
use tiler::Tiler;

pub(super) use ends::check as check_ends;

/// Runs the pass.
///
/// # Errors
/// [`LowerError::Internal`] for operations that nobody claims so.
pub(super) fn families(
    kernel: &Kernel,
    config: &Config,
    world: &World,
) -> Result<Draft, LowerError> {
    let is_alone = kernel.is_collective();
    let mut t = Tiler::new(kernel, config, world);
    for (id, op) in kernel.ops.iter().enumerate() {
        let made = match op {
            Op::Operand(operand) if is_alone => alone::gather(&mut t, id, *operand),
            Op::Map(map) => maps::families(&mut t, map),
            Op::Operand(operand) => operands::source(&mut t, id, *operand)?,
            Op::Product(g) => products::product(&mut t, id, g)?,
            Op::Sum(sum) => alone::reduce(&mut t, sum),
            Op::AllToAll(x) => exchange::families(&mut t, x)?,
            Op::Attention(a) => attention::families(&mut t, a)?,
            Op::Dsinks(x) => gradients::of_sinks(&mut t, x),
            Op::Ragged(rows) => grouped::rows(&mut t, rows)?,
            Op::Grouped(g) => grouped::gemm(&mut t, g)?,
            Op::Grads(x) => grouped::grads(&mut t, x)?,
            Op::Wgrad(w) => wgrad::families(&mut t, w)?,
            Op::Combine(combine) => grouped::combine(&mut t, combine)?,
        };
        t.made.push(made);
    }
    for (id, operand) in kernel.operands().filter(|_| !is_alone) {
        if let Some(r) = kernel.result_of(id) {
            products::collect(&mut t, id, operand.param, r)?;
        }
    }
    Ok(t.draft)
}
