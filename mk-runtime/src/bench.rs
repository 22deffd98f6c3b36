//! Fair timing on several GPUs: caches flushed, all ranks released at one moment, the slowest rank counted.

use crate::driver::{Context, cu};
use crate::gpu::{Event, Kernel, Module, Stream};
use crate::jit::{JitOptions, Unit, compile_unit};
use crate::mem::DeviceBuffer;
use crate::world::World;
use crate::{Error, Result};
use std::sync::Arc;

/// Larger than any L2.
const FLUSH_BYTES: u64 = 256 << 20;
/// How long the gate stays shut, so that the host has enqueued everything on every rank: 1 ms.
const SHUT_NS: u64 = 1_000_000;

const TEXT: &str = r#"
extern "C" __global__ void stay_shut(unsigned long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}
"#;

/// Occupies a stream for a time: ranks that reach a launch apart from each other, for tests.
pub struct Delay {
    spin: Vec<Kernel>,
}

impl Delay {
    /// Loads what it needs on every rank.
    ///
    /// # Errors
    /// [`Error::Cuda`], and what compiling a small kernel may say.
    pub fn new(world: &World, options: &JitOptions) -> Result<Delay> {
        let unit = Unit { name: "gate", cuda: TEXT, arch: "sm_90a", options: &[] };
        let compiled = compile_unit(unit, options)?;
        let load = |rank| {
            let context: &Arc<Context> = world.context(rank)?;
            Kernel::new(&Module::load(context, &compiled.cubin)?, "stay_shut", "gate")
        };
        Ok(Delay { spin: world.local_ranks().map(load).collect::<Result<_, _>>()? })
    }

    /// Lets what follows on the stream of this process's `rank`-th rank begin `ns` nanoseconds later.
    ///
    /// # Errors
    /// [`Error::Shape`] for a rank that there is not; [`Error::Cuda`].
    pub fn enqueue(&self, rank: usize, stream: &Stream, mut ns: u64) -> Result<()> {
        let spin = self.spin.get(rank).ok_or_else(|| Error::Shape {
            what: format!("there is no {rank}-th rank of {} to delay", self.spin.len()),
        })?;
        // SAFETY: one u64, which the driver copies before it returns; the stream is of the rank's context.
        unsafe {
            let params = &mut [std::ptr::from_mut(&mut ns).cast()];
            spin.launch([1; 3], [1; 3], 0, stream.as_ref().raw(), params)
        }
    }
}

/// Times work on every rank of a world.
pub struct Gate {
    streams: Vec<Stream>,
    spin: Kernel,
    flush: Vec<DeviceBuffer>,
    flushed: Vec<Event>,
    opened: Event,
    begin: Vec<Event>,
    end: Vec<Event>,
}

impl Gate {
    /// Allocates what timing needs on every rank.
    ///
    /// # Errors
    /// [`Error::Cuda`], and what compiling a small kernel may say.
    pub fn new(world: &World, options: &JitOptions) -> Result<Gate> {
        let unit = Unit { name: "gate", cuda: TEXT, arch: "sm_90a", options: &[] };
        let compiled = compile_unit(unit, options)?;
        let context: &Arc<Context> = world.first_context()?;
        let module = Module::load(context, &compiled.cubin)?;
        let ranks = world.local_ranks();
        let events = || ranks.clone().map(|r| Event::new(world, r)).collect::<Result<Vec<_>, _>>();
        Ok(Gate {
            streams: Stream::per_rank(world)?,
            spin: Kernel::new(&module, "stay_shut", "gate")?,
            flush: ranks
                .clone()
                .map(|r| DeviceBuffer::new(world, r, FLUSH_BYTES))
                .collect::<Result<_, _>>()?,
            flushed: events()?,
            opened: Event::new(world, world.local_ranks().start)?,
            begin: events()?,
            end: events()?,
        })
    }

    /// The streams on which timed work must be enqueued, by rank.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Milliseconds that the work enqueued by `work` takes on the slowest rank, from the moment all ranks are released.
    ///
    /// # Errors
    /// What `work` returns; [`Error::Cuda`].
    pub fn time_ms(&self, work: impl FnOnce() -> Result<()>) -> Result<f32> {
        for ((stream, buffer), event) in self.streams.iter().zip(&self.flush).zip(&self.flushed) {
            let _in = stream.context().enter()?;
            let device = Some(stream.context().ordinal());
            let raw = stream.as_ref().raw();
            // SAFETY: our buffer, of that many bytes, and our stream.
            unsafe { cu!(device, cuMemsetD8Async(buffer.ptr(), 1, FLUSH_BYTES as usize, raw)) }?;
            event.record_entered(stream.as_ref())?;
        }
        if let Some(first) = self.streams.first() {
            let _in = first.context().enter()?;
            for event in &self.flushed {
                event.hold_entered(first.as_ref())?;
            }
            let mut ns = SHUT_NS;
            // SAFETY: one u64, which the driver copies before it returns.
            unsafe {
                let params = &mut [std::ptr::from_mut(&mut ns).cast()];
                self.spin.launch([1; 3], [1; 3], 0, first.as_ref().raw(), params)
            }?;
            self.opened.record_entered(first.as_ref())?;
        }
        for (stream, begin) in self.streams.iter().zip(&self.begin) {
            let _in = stream.context().enter()?;
            self.opened.hold_entered(stream.as_ref())?;
            begin.record_entered(stream.as_ref())?;
        }
        let result = work();
        for (stream, end) in self.streams.iter().zip(&self.end) {
            end.record(stream.as_ref())?;
        }
        let mut worst = 0.0f32;
        for (begin, end) in self.begin.iter().zip(&self.end) {
            end.synchronize()?;
            worst = worst.max(begin.elapsed_ms(end)?);
        }
        result.map(|()| worst)
    }
}

/// The median of some times.
pub fn median(times: &mut [f32]) -> f32 {
    times.sort_by(f32::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f32::NAN)
}
