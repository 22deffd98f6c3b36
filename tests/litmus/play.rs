//! Runs one litmus in one world, for a bounded time.

use crate::cases::{Expect, Family, Litmus};
use crate::{faults, layout};
use mk::abi::{DType, device::FaultKind};
use mk::runtime::jit::Compiled;
use mk::runtime::{
    DeviceTensor, Error, FaultCause, Instance, InstanceOptions, RankTensors, Stream, World,
};
use std::time::{Duration, Instant};

/// Bound on every wait of a litmus: a hang ends as a fault, and is reported.
pub const WAIT_LIMIT: Duration = Duration::from_millis(1500);
/// How long launches of one litmus go on.
const CLEAN_TIME: Duration = Duration::from_millis(300);
const BROKEN_TIME: Duration = Duration::from_millis(120);
/// Launches between two looks at the tally, where a launch is short.
const BOUNDARY_BATCH: u32 = 100;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Pairs of CTAs, over all ranks.
    pub pairs: u64,
    /// Payloads (hand-shakes, records) that were checked.
    pub turns: u64,
    /// Wrong words among them.
    pub violations: u64,
    /// The first wrong word.
    pub first: Option<String>,
    /// Why it ended early: a wait that timed out, a driver's error.
    pub error: Option<String>,
}

impl Outcome {
    /// Whether anything was wrong.
    pub fn failed(&self) -> bool {
        self.violations > 0 || self.error.is_some()
    }
}

/// Plays until time is up, or, when it is broken, until that has been seen.
pub fn play(world: &World, litmus: &Litmus, compiled: &Compiled) -> Outcome {
    let mut outcome = Outcome::default();
    let played = match litmus.family {
        Family::Fault => faults::play(world, litmus, compiled, &mut outcome),
        _ => play_launches(world, litmus, compiled, &mut outcome),
    };
    match played {
        Ok(()) => {}
        // Only the hand-shake raises it: a hash that does not belong to the count.
        Err(Error::Fault(f)) if f.cause == FaultCause::Known(FaultKind::PlanMismatch) => {
            outcome.violations += 1;
            outcome.first = Some(f.to_string());
        }
        Err(error) => outcome.error = Some(error.to_string()),
    }
    outcome
}

/// Binds the kernel with poisoned memory.
pub fn bind(world: &World, litmus: &Litmus, compiled: &Compiled) -> Result<Instance, Error> {
    let options = InstanceOptions {
        wait_limit: WAIT_LIMIT,
        entry_limit: WAIT_LIMIT,
        poison: Some(0xFF),
        ..InstanceOptions::default()
    };
    Instance::bind(world, &layout::source(litmus, world.size()), compiled, &options)
}

/// How long launches go on.
pub fn time_of(litmus: &Litmus) -> Duration {
    if litmus.expect == Expect::Clean { CLEAN_TIME } else { BROKEN_TIME }
}

/// One tally per rank, zero.
pub fn tallies(world: &World) -> Result<Vec<DeviceTensor>, Error> {
    let tally = |r| DeviceTensor::zeros(world, r, DType::I32, &[layout::TALLY_WORDS]);
    world.local_ranks().map(tally).collect()
}

fn play_launches(
    world: &World,
    litmus: &Litmus,
    compiled: &Compiled,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let mut instance = bind(world, litmus, compiled)?;
    let streams = Stream::per_rank(world)?;
    let refs: Vec<_> = streams.iter().map(Stream::as_ref).collect();
    let tallies = tallies(world)?;
    let args: Vec<_> = tallies.iter().map(|t| RankTensors::new([t])).collect();
    let (per_rank, batch) = match litmus.family {
        Family::Boundary => (2 * layout::PAIRS, BOUNDARY_BATCH),
        Family::Entered => (layout::AREAS * world.size(), 1),
        _ => (layout::PAIRS, 1),
    };
    outcome.pairs = u64::from(per_rank) * u64::from(world.size());
    let begin = Instant::now();
    while begin.elapsed() < time_of(litmus) {
        // The limit is on launches that go wrong, not on the first one.
        let mut played = Ok(());
        for _ in 0..batch {
            played = played.and_then(|()| instance.launch(&refs, &args));
        }
        let ended = instance.synchronize();
        read(&tallies, outcome)?;
        played?;
        ended?;
        if litmus.expect != Expect::Clean && outcome.failed() {
            break;
        }
    }
    Ok(())
}

/// Takes over what the kernels have counted so far.
fn read(tallies: &[DeviceTensor], outcome: &mut Outcome) -> Result<(), Error> {
    (outcome.turns, outcome.violations) = (0, 0);
    for tally in tallies {
        let words: Vec<u32> = tally.download_i32()?.into_iter().map(|w| w as u32).collect();
        let wide = |i: usize| u64::from(words[i]) | u64::from(words[i + 1]) << 32;
        outcome.turns += wide(0);
        outcome.violations += wide(2);
        if words[4] != 0 && outcome.first.is_none() {
            outcome.first = Some(format!(
                "rank {}: sender {}, turn {}, word {}: {:#010x} for {:#010x}",
                tally.rank(),
                words[5],
                words[6],
                words[7],
                words[8],
                words[9]
            ));
        }
    }
    Ok(())
}
