//! Clusters: CTAs that share tiles, or load together.

use super::checker::Checker;
use crate::{
    entity::Entity,
    epilogue::EpilogueOp,
    leaf::{Consumers, MmaTile, Store},
    plan::Family,
};

impl Checker<'_> {
    /// CTAs of a cluster share all that their role does, and nobody reads or hands on what only one of them has.
    pub(super) fn cluster(&mut self, place: &str, x: &Family, product: &MmaTile) {
        let MmaTile { cluster, store, consumers, .. } = *product;
        if !(1..=8).contains(&cluster) {
            self.error(place, "has clusters of 1 to 8 CTAs");
        }
        if cluster <= 1 {
            return;
        }
        if store != Store::Direct || consumers != Consumers::Cooperative {
            self.error(place, "tiles that a cluster shares are stored by their consumers, who work on each of them");
        }
        let saves = |op: &EpilogueOp| matches!(op, EpilogueOp::Save | EpilogueOp::Carry);
        if x.inner.is_some() || x.leaf.epilogue().iter().any(saves) {
            self.error(place, "tiles that a cluster shares have no inner loop, save nothing and go on with nothing");
        }
        self.one_cluster(place, x);
    }

    /// The CTAs of a role are in clusters of one size.
    fn one_cluster(&mut self, place: &str, x: &Family) {
        let cluster = x.leaf.cluster();
        let whole = self.plan.roles.get(x.role).is_none_or(|r| r.ctas.is_multiple_of(cluster));
        let mixed = self.clusters.get(x.role.index()).is_some_and(|of| of.mixed);
        if !whole || mixed {
            self.error(place, "the CTAs of a role are all in clusters of one size");
        }
    }

    /// CTAs that load together work in step, and wait for nobody else on the way.
    pub(super) fn multicast(&mut self, place: &str, x: &Family, product: &MmaTile) {
        let MmaTile { multicast, consumers, .. } = *product;
        if !matches!(multicast, [1 | 2, 1 | 2]) {
            self.error(place, "loads with 1 or 2 CTAs below, and beside");
        }
        if multicast == [1, 1] {
            return;
        }
        let other = |op: &EpilogueOp| {
            matches!(op, EpilogueOp::Save | EpilogueOp::Carry | EpilogueOp::Quantize(_))
        };
        let steps = x.inner.is_some() || x.leaf.epilogue().iter().any(other);
        if x.leaf.cluster() > 8
            || consumers != Consumers::Cooperative
            || steps
            || !x.waits.is_empty()
        {
            self.error(place, "CTAs that load together are at most 8 of a cluster, wait for nobody, work on each of \
                their tiles, have no inner loop, save nothing and go on with nothing");
        }
        self.one_cluster(place, x);
    }
}
