//! What the cost model says of configs.

use crate::{Bound, Program};
use mk_codegen::{
    cost::{self, CostError, DeviceModel, Prediction},
    passes::{self, Config, LowerError},
};
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};
use thiserror::Error;

/// Why a config has no prediction.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Unpredicted {
    /// It has no plan.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The model does not know its plan.
    #[error(transparent)]
    Cost(#[from] CostError),
}

/// How long a launch takes with this config, as the model has it. The plan is lowered, not verified.
///
/// # Errors
/// [`Unpredicted`].
pub fn predict(
    program: &Program,
    bound: &Bound,
    config: &Config,
    model: &DeviceModel,
) -> Result<Prediction, Unpredicted> {
    let plan = passes::lower(program, bound, config)?;
    Ok(cost::predict(&plan, model)?)
}

/// [`predict`] for many configs, side by side.
pub fn predict_all(
    program: &Program,
    bound: &Bound,
    configs: &[Config],
    model: &DeviceModel,
) -> Vec<Result<Prediction, Unpredicted>> {
    in_parallel(configs, |config| predict(program, bound, config, model))
}

/// Applies `f` to every item, on as many threads as there are cores; results in the order of the items.
pub(super) fn in_parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { break };
            let made = f(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((i, made));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, made)| made).collect()
}
