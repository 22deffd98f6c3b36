//! Routings of a launch, each worked out once.

use mk_syntax::ValueId;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Expert and token of each row, where it has some.
pub(super) type Packed = Vec<Option<(usize, usize)>>;

/// Routings of the launch, worked out once. A reference makes a few rows at a time; each time it needs the routing of
/// all rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
pub(super) struct Known {
    /// The experts of all tokens, by the tensor of them.
    pub(super) ids: BTreeMap<ValueId, Arc<Vec<i32>>>,
    /// The same as rows, by capacity.
    pub(super) packed: BTreeMap<(ValueId, usize), Arc<Packed>>,
}

/// The value of a key; made where there is none yet.
pub(super) fn known<K: Ord, V>(
    routes: &Routes,
    of: impl Fn(&mut Known) -> &mut BTreeMap<K, Arc<V>>,
    key: K,
    make: impl FnOnce() -> V,
) -> Arc<V> {
    let lock = || routes.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(value) = of(&mut lock()).get(&key) {
        return Arc::clone(value);
    }
    // Not while others wait: two may make the same.
    let value = Arc::new(make());
    of(&mut lock()).insert(key, Arc::clone(&value));
    value
}
