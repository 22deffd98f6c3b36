//! Figures of a machine from times of plans that ran on it.
//!
//! Coordinate descent on the mean relative error: each figure is raised and lowered by steps that shrink, and kept
//! where the plans' times fit better. What no plan depends on stays as it was.

use super::{model::DeviceModel, predict};
use mk_plan::Plan;
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// A plan that was measured.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The plan.
    pub plan: Plan,
    /// Its time, in seconds.
    pub seconds: f64,
}

/// Where a figure of a model is.
type Find = dyn Fn(&mut DeviceModel) -> Option<&mut f64>;

/// A figure of a model.
struct Figure(Box<Find>);

fn figures(model: &DeviceModel) -> Vec<Figure> {
    let mut all: Vec<Figure> = Vec::new();
    macro_rules! add {
        ($($figure:ident)*) => {
            $(all.push(Figure(Box::new(|m| Some(&mut m.$figure))));)*
        };
    }
    add!(launch_s engine_begin_s link_bytes_per_s carry_bytes_per_s operand_bytes_per_s save_bytes_per_s);
    add!(hbm_bytes_per_s hbm_slices_bytes_per_s hbm_once_bytes_per_s line_s exchange_s exchange_bytes_per_s);
    add!(fill_s flag_peer_s flag_local_s written_s ping_pong);
    for i in 0..model.tiles.len() {
        all.push(Figure(Box::new(move |m| Some(&mut m.tiles.get_mut(i)?.step_s))));
        all.push(Figure(Box::new(move |m| Some(&mut m.tiles.get_mut(i)?.tile_s))));
    }
    for i in 0..model.movers.all().len() {
        all.push(Figure(Box::new(move |m| Some(&mut m.movers.at(i)?.bytes_per_s))));
        all.push(Figure(Box::new(move |m| Some(&mut m.movers.at(i)?.task_s))));
    }
    all
}

/// Changes the figures of a model until it fits; `rounds` over all of them. The result is a function of the arguments.
pub fn fit(start: &DeviceModel, samples: &[Sample], rounds: usize) -> DeviceModel {
    let mut model = start.clone();
    let mut least = error(&model, samples);
    let figures = figures(&model);
    // 20 %, 10 %, 5 %, and finer.
    for round in 0..rounds {
        let step = 1.0 + 0.2 / f64::from(1u32 << round.min(4));
        for Figure(figure) in &figures {
            for factor in [step, 1.0 / step] {
                let mut changed = model.clone();
                let Some(value) = figure(&mut changed) else { continue };
                *value *= factor;
                let now = error(&changed, samples);
                if now < least * (1.0 - 1e-6) {
                    (model, least) = (changed, now);
                    break;
                }
            }
        }
    }
    model
}

/// The mean of `|ln(predicted / measured)|`. A plan without a prediction counts as nothing.
pub fn error(model: &DeviceModel, samples: &[Sample]) -> f64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let errors = Mutex::new(vec![None; samples.len()]);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(sample) = samples.get(i) else { break };
            let Ok(p) = predict(&sample.plan, model) else { continue };
            let e = (p.total_s / sample.seconds).ln().abs();
            errors.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some(e);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(samples.len()) {
            scope.spawn(work);
        }
        work();
    });
    // In the order of the samples, so that the sum is the same whatever thread was first.
    let errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (sum, n) = errors.iter().flatten().fold((0.0, 0.0f64), |(s, n), e| (s + e, n + 1.0));
    sum / n.max(1.0)
}
