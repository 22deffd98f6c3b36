//! Memory, kernels and clocks of all ranks, and the figures that need no more: reads, flags, launches.

use super::kernels::{Kernels, Report, Shape, enqueue};
use crate::bench::{Gate, median};
use crate::driver::ledger::between_launches;
use crate::gpu::Stream;
use crate::jit::JitOptions;
use crate::mem::{DeviceBuffer, SymmetricMemory};
use crate::world::World;
use crate::{Error, Result};
use std::ops::RangeInclusive;
use std::time::Instant;

/// Most that a rank sends in one [`Transfer`](super::Transfer), in bytes: several times any L2.
pub const MAX_BYTES: u64 = 256 << 20;
/// How many launches may make up a figure: so many sums of the pattern and one more bf16 holds without rounding.
pub const ROUNDS: RangeInclusive<u32> = 1..=MAX_LAUNCHES - 1;
const MAX_LAUNCHES: u32 = 16;

/// Where a rank's flags are, behind what it sends and what it is sent. Each has a line of its own.
const FLAGS_AT: u64 = 2 * MAX_BYTES;
const FLAG_PITCH: u64 = 128;
const FLAGS_BYTES: u64 = 2 * FLAG_PITCH;
/// Trips there and back of a flag: a clock that ticks each microsecond shows them to a thousandth.
const TRIPS: u32 = 1000;
/// Launches of nothing that follow each other. All are enqueued before the gate opens.
const LAUNCHES: u32 = 100;

/// Memory, kernels and clocks to measure with, on every rank of a world in one process.
pub struct Probe {
    pub(super) world: World,
    pub(super) rounds: u32,
    pub(super) memory: SymmetricMemory,
    ranks: Vec<Rank>,
    gate: Gate,
}

pub(super) struct Rank {
    pub(super) kernels: Kernels,
    pub(super) report: DeviceBuffer,
    /// Of the words that the rank sends, modulo 2^32.
    sum: u32,
}

impl Probe {
    /// Allocates some 800 MiB on each GPU and fills in what is sent. Each figure is the median of `rounds` launches.
    ///
    /// # Errors
    /// [`Error::Shape`] for `rounds` outside [`ROUNDS`], and a world of one rank or of several processes;
    /// [`Error::WrongArch`]; [`Error::LaunchBlocking`]; as [`crate::jit::compile_unit`]; [`Error::Cuda`].
    pub fn new(world: &World, options: &JitOptions, rounds: u32) -> Result<Probe> {
        let shape = |what: String| Err(Error::Shape { what });
        if !ROUNDS.contains(&rounds) {
            return shape(format!(
                "a figure is made of {ROUNDS:?} launches, and {rounds} were asked for"
            ));
        }
        if world.group().is_some() || world.size() < 2 {
            return shape("a machine is measured by one process with at least two ranks".into());
        }
        if crate::env::launch_blocking() {
            return Err(Error::LaunchBlocking);
        }
        for rank in world.local_ranks() {
            let limits = world.device(rank)?;
            if limits.capability != (9, 0) {
                return Err(Error::WrongArch {
                    kernel: "probe".into(),
                    arch: "sm_90a".into(),
                    device: limits.ordinal,
                    have: limits.capability,
                });
            }
        }
        let memory = SymmetricMemory::new(world, FLAGS_AT + FLAGS_BYTES)?;
        let load = |rank| {
            let report = DeviceBuffer::zeroed(world, rank, Report::BYTES)?;
            Ok(Rank { kernels: Kernels::load(world, rank, options)?, report, sum: 0 })
        };
        let ranks = world.local_ranks().map(load).collect::<Result<Vec<_>>>()?;
        let gate = Gate::new(world, options)?;
        let mut probe = Probe { world: world.clone(), rounds, memory, ranks, gate };
        probe.fill()?;
        Ok(probe)
    }

    fn fill(&mut self) -> Result<()> {
        let words = (MAX_BYTES / 4) as u32;
        for rank in self.world.local_ranks() {
            let (own, stream) = self.on(rank)?;
            let args = [self.source(rank)?, u64::from(words), u64::from(rank), own.report.ptr()];
            // SAFETY: probe_fill; the source is `MAX_BYTES` of the rank's memory.
            unsafe { enqueue(&own.kernels.fill, Shape::flat(words), stream, &args) }?;
        }
        let sums: Vec<u32> = self.reports("what is sent")?.iter().map(|r| r.sum).collect();
        for (rank, sum) in self.ranks.iter_mut().zip(sums) {
            rank.sum = sum;
        }
        Ok(())
    }

    /// SMs of the GPU that has fewest.
    ///
    /// # Errors
    /// As [`World::device`].
    pub fn sms(&self) -> Result<u32> {
        let mut least = u32::MAX;
        for rank in self.world.local_ranks() {
            least = least.min(self.world.device(rank)?.sms);
        }
        Ok(least)
    }

    /// Bytes a second that all SMs of rank 0's GPU read of its memory.
    ///
    /// # Errors
    /// [`Error::Unmeasured`] when they read something else than what is there; [`Error::Cuda`].
    pub fn hbm_read_bytes_per_s(&self) -> Result<f64> {
        let what = "reads of memory";
        let (own, stream) = self.on(0)?;
        let shape = Shape::ldst(self.world.device(0)?.sms);
        self.clear_reports()?;
        let args = [self.source(0)?, MAX_BYTES, own.report.ptr()];
        // SAFETY: probe_read; the source is `MAX_BYTES` of the rank's memory.
        let seconds =
            self.time_s(|| unsafe { enqueue(&own.kernels.read, shape, stream, &args) })?;
        let sum = self.report(what, 0)?.sum;
        let want = own.sum.wrapping_mul(self.rounds + 1);
        if sum != want {
            let why = format!("the words that were read add up to {sum:#x}, not {want:#x}");
            return Err(unmeasured(what, why));
        }
        Ok(MAX_BYTES as f64 / seconds)
    }

    /// Seconds from a release by one CTA to the end of another's wait: half of a trip there and back, between two SMs
    /// of a GPU where `from` is `to`, else between two GPUs. Each CTA waits for a word in its own GPU's memory.
    ///
    /// # Errors
    /// [`Error::Shape`] for ranks that there are not; [`Error::Unmeasured`] when a flag does not come; [`Error::Cuda`].
    pub fn flag_s(&self, from: u32, to: u32) -> Result<f64> {
        let what = format!("flags between rank {from} and rank {to}");
        let local = from == to;
        let (second, first) = (self.on(to)?, self.on(from)?);
        let word = |rank, i| -> Result<u64> {
            Ok(self.memory.rank_ptr(rank)? + FLAGS_AT + i * FLAG_PITCH)
        };
        let words: [u64; 2] = [word(from, 0)?, word(to, 1)?];
        let args = |side: u32, own: &Rank| {
            [words[0], words[1], u64::from(side), u64::from(TRIPS), own.report.ptr()]
        };
        let mut times = Vec::new();
        for _ in 0..=self.rounds {
            self.memory.fill(FLAGS_AT, FLAGS_AT + FLAGS_BYTES, 0)?;
            self.clear_reports()?;
            let launch = |(own, stream): (&Rank, &Stream), side, sides| {
                let kernels = &own.kernels;
                let kernel = if local { &kernels.ping_gpu } else { &kernels.ping_sys };
                // SAFETY: probe_ping_gpu, probe_ping_sys; both words are in symmetric memory.
                unsafe { enqueue(kernel, Shape::threads(sides), stream, &args(side, own)) }
            };
            if local {
                launch(first, 0, 2)?;
            } else {
                let _quiet = between_launches();
                launch(first, 0, 1)?;
                launch(second, 1, 1)?;
            }
            first.1.synchronize()?;
            second.1.synchronize()?;
            times.push(self.report(&what, from)?.ns as f32);
        }
        Ok(behind_the_first(&mut times) * 1e-9 / f64::from(2 * TRIPS))
    }

    /// Seconds of the host for a launch of an empty kernel on rank 0, one of many in a row.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn launch_host_s(&self) -> Result<f64> {
        let (_, stream) = self.on(0)?;
        // Who launches much has the context current.
        let _in = stream.context().enter()?;
        let mut times = Vec::new();
        for _ in 0..=self.rounds {
            stream.synchronize()?;
            let begin = Instant::now();
            self.enqueue_nothing(LAUNCHES)?;
            times.push(begin.elapsed().as_secs_f32());
            stream.synchronize()?;
        }
        Ok(behind_the_first(&mut times) / f64::from(LAUNCHES))
    }

    /// Seconds from the begin of an empty kernel on rank 0 to the begin of the next behind it, all of them enqueued
    /// before.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn launch_device_s(&self) -> Result<f64> {
        let one = self.time_s(|| self.enqueue_nothing(1))?;
        let more = self.time_s(|| self.enqueue_nothing(1 + LAUNCHES))?;
        Ok((more - one) / f64::from(LAUNCHES))
    }

    fn enqueue_nothing(&self, times: u32) -> Result<()> {
        let (own, stream) = self.on(0)?;
        // SAFETY: probe_nothing has no parameters.
        (0..times)
            .try_for_each(|_| unsafe { enqueue(&own.kernels.nothing, Shape::least(), stream, &[]) })
    }

    /// The median of the rounds that count, in seconds.
    pub(super) fn time_s(&self, work: impl Fn() -> Result<()>) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..=self.rounds {
            times.push(self.gate.time_ms(&work)?);
        }
        Ok(behind_the_first(&mut times) * 1e-3)
    }

    pub(super) fn clear_reports(&self) -> Result<()> {
        self.ranks.iter().try_for_each(|rank| rank.report.fill(0))
    }

    /// What kernels have left on every rank, when they are done.
    pub(super) fn reports(&self, what: &str) -> Result<Vec<Report>> {
        for stream in self.gate.streams() {
            stream.synchronize()?;
        }
        let mut reports = Vec::new();
        for rank in &self.ranks {
            let report = Report::read(&rank.report.download()?);
            reports.push(report.ok_or_else(|| unmeasured(what, "a report is cut short".into()))?);
        }
        match reports.iter().position(|r| r.gave_up) {
            None => Ok(reports),
            Some(rank) => {
                Err(unmeasured(what, format!("a wait on rank {rank} was given up after 2 s")))
            }
        }
    }

    /// What a rank's kernel has left, when all are done.
    pub(super) fn report(&self, what: &str, rank: u32) -> Result<Report> {
        let reports = self.reports(what)?;
        reports.into_iter().nth(rank as usize).ok_or_else(|| self.world.no_rank(rank))
    }

    pub(super) fn on(&self, rank: u32) -> Result<(&Rank, &Stream)> {
        let index = rank as usize;
        let found = self.ranks.get(index).zip(self.gate.streams().get(index));
        found.ok_or_else(|| self.world.no_rank(rank))
    }

    /// What a rank sends.
    pub(super) fn source(&self, rank: u32) -> Result<u64> {
        self.memory.rank_ptr(rank)
    }

    /// Where a rank is sent to.
    pub(super) fn inbox(&self, rank: u32) -> Result<u64> {
        Ok(self.memory.rank_ptr(rank)? + MAX_BYTES)
    }
}

/// The median of the rounds behind the first, which warms up.
fn behind_the_first(times: &mut [f32]) -> f64 {
    // Without rounds there is no figure, and NaN is none: `ROUNDS` begins at 1.
    times.split_first_mut().map_or(f64::NAN, |(_, rest)| median(rest).into())
}

pub(super) fn unmeasured(what: &str, why: String) -> Error {
    Error::Unmeasured { what: what.into(), why }
}
