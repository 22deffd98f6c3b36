//! Hopper: GEMMs and attention by `wgmma`, which warpgroups issue; TMA feeds them; registers move between warpgroups.

mod attend;
mod attend_grad;
mod library;
mod mma;

use super::record::Arch;
use crate::emit::leaf::LeafEmission;
use mk_plan::{AttendGradTile, AttendTile, Carry, Family, GradOf, Leaf, target};

pub(super) const ARCH: Arch = Arch {
    target: &target::SM_90A,
    library: library::FILES,
    leaves: &[&mma::EMISSION, &attend::EMISSION, &attend_grad::OF_QUERIES, &attend_grad::OF_KEYS],
    core,
    registers: ["sm90_regs_release", "sm90_regs_claim"],
};

fn core(f: &Family) -> Option<&'static LeafEmission> {
    match &f.leaf {
        Leaf::MmaTile(tile) => Some(mma::emission(tile)),
        Leaf::AttendTile(AttendTile { carry: Carry::Registers, block, .. }) => {
            Some(attend::emission(*block))
        }
        Leaf::AttendGradTile(AttendGradTile { of: GradOf::Queries, .. }) => {
            Some(&attend_grad::OF_QUERIES)
        }
        Leaf::AttendGradTile(tile) => Some(attend_grad::of_keys(f, tile)),
        _ => None,
    }
}
