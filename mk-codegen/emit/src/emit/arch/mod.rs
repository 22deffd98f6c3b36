//! Architectures: a folder each, with one record ([`Arch`]).
//!
//! A leaf that feeds tensor cores is carried out in another way on each architecture; loads, stores and waits are the
//! same on all ([`crate::emit::leaf`]). Outside its folder nothing in `emit/` names an architecture.

mod record;
mod sm90;
#[cfg(test)]
mod tests;

use super::{
    EmitError, Result,
    leaf::{self, Carrier, LeafEmission},
};
use mk_plan::{FamId, Family, Plan};

pub(super) use record::Arch;

/// All of them.
pub(super) const ALL: &[&Arch] = &[
    &sm90::ARCH,
    #[cfg(test)]
    &tests::ARCH,
];

/// File names and texts of the device library for [`mk_plan::target::SM_90A`].
pub const SM90_LIBRARY: &[(&str, &str)] = sm90::ARCH.library;

impl Arch {
    /// That of a plan's target.
    ///
    /// # Errors
    /// [`EmitError::Refused`] for a target without one.
    pub fn of(plan: &Plan) -> Result<&'static Arch> {
        ALL.iter().copied().find(|a| a.target.name == plan.target).ok_or_else(|| {
            let known: Vec<_> = ALL.iter().map(|a| a.target.name).collect();
            let what = format!("no kernels are made for it, but for {}", known.join(", "));
            EmitError::unsupported(format!("target {}", plan.target), what)
        })
    }

    /// Who carries out the leaf of a family.
    pub fn carrier(&self, f: &Family) -> Carrier {
        (self.core)(f).map_or_else(|| leaf::carrier(f), Carrier::Agents)
    }

    /// Every leaf that agents of a CTA carry out.
    pub fn all_leaves(&self) -> impl Iterator<Item = &'static LeafEmission> {
        self.leaves.iter().chain(leaf::ALL).copied()
    }
}

/// [`Arch::carrier`] of a family's plan; nobody, if its target has no architecture.
pub(super) fn carrier(plan: &Plan, f: &Family) -> Carrier {
    Arch::of(plan).map_or(Carrier::Nobody, |arch| arch.carrier(f))
}

/// The record of a family that runs on CTAs.
///
/// # Errors
/// [`EmitError::Refused`], naming the family, if agents of a CTA do not carry its leaf out.
pub(super) fn emission(plan: &Plan, family: FamId) -> Result<&'static LeafEmission> {
    let f = &plan.families[family];
    match Arch::of(plan)?.carrier(f) {
        Carrier::Agents(emission) => Ok(emission),
        Carrier::Frame | Carrier::Host | Carrier::Nobody => {
            let what = format!("no agents of a CTA carry out {}", f.leaf.name());
            EmitError::refuse(format!("{family} {:?}", f.name), what)
        }
    }
}
