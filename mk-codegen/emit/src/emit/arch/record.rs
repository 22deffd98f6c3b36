//! What is said of an architecture.

use crate::emit::leaf::LeafEmission;
use mk_plan::{Family, target::Target};

/// How kernels are made for one target.
pub(in crate::emit) struct Arch {
    /// Its name in plans, and its limits.
    pub target: &'static Target,
    /// File names and texts of the device library, in order; each uses only what stands before it.
    pub library: &'static [(&'static str, &'static str)],
    /// Leaves that are its own.
    pub leaves: &'static [&'static LeafEmission],
    /// The record of one of them, for a leaf that it carries out.
    pub core: fn(&Family) -> Option<&'static LeafEmission>,
    /// Function templates of the library over a number of registers, by which the threads of a warpgroup give all
    /// others back, and take more.
    pub registers: [&'static str; 2],
}
