//! The mistakes found so far, and what is known of the plan.

use crate::{
    entity::Entity,
    leaf::{CopyVia, Leaf},
    plan::Plan,
};
use std::collections::HashSet;
use thiserror::Error;

/// A plan that is not well formed: where, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {message}")]
pub struct StructureError {
    /// The entity.
    pub place: String,
    /// What is wrong, and what would be right.
    pub message: String,
    /// Whether nothing is wrong but that there is more of it than anybody unrolls.
    pub too_large: bool,
}

pub(super) struct Checker<'a> {
    pub plan: &'a Plan,
    /// Names of dimensions.
    pub dims: HashSet<&'a str>,
    /// Of each role, the cluster size of its first family, and whether others have another one.
    pub clusters: Vec<OfRole>,
    pub errors: Vec<StructureError>,
}

/// Clusters of the families of a role.
#[derive(Clone, Copy, Default)]
pub(super) struct OfRole {
    /// Of the first of them.
    pub first: Option<u32>,
    /// Whether others have other ones.
    pub mixed: bool,
}

impl<'a> Checker<'a> {
    pub fn new(plan: &'a Plan) -> Checker<'a> {
        let dims = plan.dims.values().map(|d| d.name.as_str()).collect();
        Checker { plan, dims, clusters: of_roles(plan), errors: Vec::new() }
    }

    pub fn error(&mut self, place: impl Into<String>, message: impl Into<String>) {
        let (place, message) = (place.into(), message.into());
        self.errors.push(StructureError { place, message, too_large: false });
    }

    pub fn too_large(&mut self, place: impl Into<String>, message: impl Into<String>) {
        let (place, message) = (place.into(), message.into());
        self.errors.push(StructureError { place, message, too_large: true });
    }
}

/// Of each role. Copies through registers are the first CTA's of a cluster.
fn of_roles(plan: &Plan) -> Vec<OfRole> {
    let mut all = vec![OfRole::default(); plan.roles.len()];
    for x in plan.families.values() {
        if let Some(of) = all.get_mut(x.role.index()) {
            if matches!(&x.leaf, Leaf::CopyTile(copy) if copy.via == CopyVia::Ldst) {
                continue;
            }
            let cluster = x.leaf.cluster();
            of.mixed |= *of.first.get_or_insert(cluster) != cluster;
        }
    }
    all
}
