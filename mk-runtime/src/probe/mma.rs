//! GEMMs on tensor cores alone: how long they take, and whether they are right.

use super::kernels::{MMA_KEPT, MMA_STEPS, MMA_THREADS, Shape, enqueue};
use super::machine::{MAX_BYTES, Probe, unmeasured};
use crate::{Error, Result};
use std::fmt;
use std::ops::RangeInclusive;

/// GEMMs that run at once, one on each SM: bf16, 128 x 256 accumulators in f32, 64 of K a step, all operands
/// in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// SMs of rank 0's GPU that multiply.
    pub sms: u32,
    /// Steps of each: a multiple of [`Burst::STEPS`], and in [`Burst::RANGE`].
    pub steps: u32,
}

impl Burst {
    /// Sums are begun anew after so many steps.
    pub const STEPS: u32 = MMA_STEPS;
    /// The most take half a second.
    pub const RANGE: RangeInclusive<u32> = MMA_STEPS..=1 << 20;

    /// Multiplications and additions of all SMs.
    pub fn flop(&self) -> f64 {
        2.0 * 128.0 * 256.0 * 64.0 * f64::from(self.sms) * f64::from(self.steps)
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "products by {} SMs, {} steps", self.sms, self.steps)
    }
}

impl Probe {
    /// Seconds that GEMMs take on rank 0, without the launch and without what fills shared memory before them: those
    /// of the same kernel without GEMMs are taken off.
    ///
    /// # Errors
    /// [`Error::Shape`] for a burst that cannot be; [`Error::Unmeasured`] when sums are not those of the operands;
    /// [`Error::Cuda`].
    pub fn mma_s(&self, burst: &Burst) -> Result<f64> {
        let Burst { sms, steps } = *burst;
        let fits = (1..=self.sms()?).contains(&sms) && Burst::RANGE.contains(&steps);
        if !fits || !steps.is_multiple_of(Burst::STEPS) {
            return Err(Error::Shape { what: format!("a burst cannot be: {burst}") });
        }
        let what = burst.to_string();
        let (own, stream) = self.on(0)?;
        let kept = sms * MMA_THREADS * MMA_KEPT;
        let time = |steps: u32| {
            // Nothing that is kept is a NaN.
            self.memory.fill(MAX_BYTES, MAX_BYTES + 4 * u64::from(kept), 0xff)?;
            let args = [self.inbox(0)?, u64::from(steps)];
            // SAFETY: probe_mma; the inbox has `MAX_BYTES`, more than all SMs keep.
            self.time_s(|| unsafe { enqueue(&own.kernels.mma, Shape::mma(sms), stream, &args) })
        };
        self.clear_reports()?;
        let (without, with) = (time(0)?, time(steps)?);
        let args = [self.inbox(0)?, u64::from(sms), own.report.ptr()];
        // SAFETY: probe_mma_check; as above.
        unsafe { enqueue(&own.kernels.mma_check, Shape::flat(kept), stream, &args) }?;
        let wrong = self.report(&what, 0)?.wrong;
        if wrong > 0 {
            return Err(unmeasured(&what, format!("{wrong} of {kept} sums are wrong")));
        }
        match with - without {
            seconds if seconds > 0.0 => Ok(seconds),
            _ => Err(unmeasured(&what, "they take no longer than the launch without them".into())),
        }
    }
}
