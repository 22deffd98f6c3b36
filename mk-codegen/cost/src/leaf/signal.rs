//! Tasks without data.

use super::{Cost, Done};
use crate::{unroller::Unroller, work::Kind};
use mk_plan::{
    Task,
    leaf::{Enter, Signal},
};

macro_rules! signals {
    ($($leaf:ty),*) => {$(
        impl Cost for $leaf {
            fn jobs(&self, u: &mut Unroller<'_>, task: &Task, _: f64) -> Done {
                                let x = u.family(task);
                                u.job(task, x, 1, Kind::Signal, 0.0, u.work.flows.len())
            }
        }
    )*};
}

signals!(Signal, Enter);
