//! Tiles a kernel: families of tasks with their accesses, and flows of data between them.
//!
//! Assumes a selected kernel and settings that fit it. Leaves: tiles of each product in an L2-friendly order, those with local operands
//! first, then those whose rows arrive from peers; a product that another one reads goes to scratch (or to the caller, who wants it,
//! too), with a flow per block of rows; a product that is summed goes where its way to sum wants it; operands whose rows TMA cannot
//! take (pitch not a multiple of 16 bytes) are repacked first.

mod alone;
mod attend_steps;
pub(super) mod attention;
mod blocks;
mod dispatch;
mod ends;
mod gradients;
pub(super) mod grouped;
mod last_wave;
mod operands;
mod product;
mod products;
mod tiler;

use super::{draft::Draft, error::LowerError, shape::kernel::Kernel, world::World};
use crate::settings::Config;

pub(super) use ends::check as check_ends;

/// Runs the pass.
///
/// # Errors
/// [`LowerError::Internal`] for a kernel that selection does not make.
pub(super) fn families(
    kernel: &Kernel,
    config: &Config,
    world: &World,
) -> Result<Draft, LowerError> {
    match kernel.multiplies() {
        true => products::families(kernel, config, world),
        false => alone::families(kernel, config, world),
    }
}
