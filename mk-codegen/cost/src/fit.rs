//! Figures of a machine from times of plans that ran on it.
//!
//! Coordinate descent on the mean relative error: each figure is raised and lowered by steps that shrink, and kept
//! where the plans' times fit better. What no plan depends on stays as it was.

use super::{
    model::{DeviceModel, Mover},
    predict,
};
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
    let mut add = |f: fn(&mut DeviceModel) -> &mut f64| {
        all.push(Figure(Box::new(move |m| Some(f(m)))));
    };
    add(|m| &mut m.launch_s);
    add(|m| &mut m.engine_begin_s);
    add(|m| &mut m.link_bytes_per_s);
    add(|m| &mut m.carry_bytes_per_s);
    add(|m| &mut m.operand_bytes_per_s);
    add(|m| &mut m.save_bytes_per_s);
    add(|m| &mut m.hbm_bytes_per_s);
    add(|m| &mut m.hbm_slices_bytes_per_s);
    add(|m| &mut m.hbm_once_bytes_per_s);
    add(|m| &mut m.line_s);
    add(|m| &mut m.exchange_s);
    add(|m| &mut m.exchange_bytes_per_s);
    add(|m| &mut m.fill_s);
    add(|m| &mut m.flag_peer_s);
    add(|m| &mut m.flag_local_s);
    add(|m| &mut m.written_s);
    add(|m| &mut m.ping_pong);
    for i in 0..model.tiles.len() {
        all.push(Figure(Box::new(move |m| Some(&mut m.tiles.get_mut(i)?.step_s))));
        all.push(Figure(Box::new(move |m| Some(&mut m.tiles.get_mut(i)?.tile_s))));
    }
    let movers: [fn(&mut DeviceModel) -> &mut Mover; 11] = [
        |m| &mut m.movers.bulk_local,
        |m| &mut m.movers.bulk_push,
        |m| &mut m.movers.bulk_pull,
        |m| &mut m.movers.ldst_local,
        |m| &mut m.movers.ldst_push,
        |m| &mut m.movers.ldst_pull,
        |m| &mut m.movers.sum_local,
        |m| &mut m.movers.sum_push,
        |m| &mut m.movers.sum_pull,
        |m| &mut m.movers.tile_push,
        |m| &mut m.movers.engine,
    ];
    for mover in movers {
        all.push(Figure(Box::new(move |m| Some(&mut mover(m).bytes_per_s))));
        all.push(Figure(Box::new(move |m| Some(&mut mover(m).task_s))));
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
