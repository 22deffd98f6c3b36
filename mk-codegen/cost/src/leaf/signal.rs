//! Tasks without data.

use super::Cost;
use crate::{error::CostError, unroller::Unroller, work::Kind};
use mk_plan::{
    Family, Task,
    leaf::{Enter, Signal},
};

macro_rules! signals {
    ($($leaf:ty),*) => {$(
        impl Cost for $leaf {
            fn jobs(
                &self,
                u: &mut Unroller<'_>,
                task: &Task,
                x: &Family,
                _: f64,
            ) -> Result<(), CostError> {
                u.job(task, x, 1, Kind::Signal, 0.0, u.work.flows.len())
            }
        }
    )*};
}

signals!(Signal, Enter);
