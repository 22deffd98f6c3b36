//! The host's side of `fault.cu`: reads records while the kernel writes them.

use crate::cases::{Expect, Litmus};
use crate::layout::{RECORDS, RECORDS_PER_LAUNCH};
use crate::pinned::Records;
use crate::play::{Outcome, WAIT_LIMIT, bind, tallies, time_of};
use mk::abi::device::FaultRecord;
use mk::runtime::jit::Compiled;
use mk::runtime::{Error, RankTensors, Stream, World};
use std::time::Instant;

/// As `pattern` in `common.cu`.
fn pattern(who: u32, turn: u32, j: u32) -> u32 {
    let base = turn.wrapping_mul(0x9e37_79b1).wrapping_add(who.wrapping_mul(0x85eb_ca77));
    base ^ j.wrapping_mul(0xc2b2_ae3d).wrapping_add(0x1656_67b1)
}

/// What turn `turn` of CTA `cta` writes, in the order of [`fields`].
fn expected(cta: u32, turn: u32) -> [u32; 12] {
    let x = |j| pattern(cta, turn, j);
    [x(0), x(1), x(2), x(3), x(4), x(5), x(6), x(7), x(8), x(8), x(9), cta]
}

const NAMES: [&str; 12] = [
    "rank",
    "epoch",
    "kind",
    "edge",
    "expected",
    "seen",
    "tile",
    "peer",
    "waited_ns, low",
    "waited_ns, high",
    "word",
    "cta",
];

fn fields(r: &FaultRecord) -> [u32; 12] {
    let (low, high) = (r.waited_ns as u32, (r.waited_ns >> 32) as u32);
    [r.rank, r.epoch, r.kind, r.edge, r.expected, r.seen, r.tile, r.peer, low, high, r.word, r.cta]
}

/// Launches, and reads along; see [`crate::play::play`].
pub fn play(
    world: &World,
    litmus: &Litmus,
    compiled: &Compiled,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let records = match Records::new(RECORDS as usize) {
        Ok(records) => records,
        Err(error) => {
            outcome.error = Some(error);
            return Ok(());
        }
    };
    // Dropped before the records: that waits for the kernel.
    let mut instance = bind(world, litmus, compiled)?;
    let streams = Stream::per_rank(world)?;
    let tallies = tallies(world)?;
    let args = [RankTensors::from(vec![tallies[0].as_arg(), records.as_arg()])];
    outcome.pairs = RECORDS.into();
    let begin = Instant::now();
    let mut first_turn = 0;
    while begin.elapsed() < time_of(litmus) && outcome.error.is_none() {
        instance.launch(&[streams[0].as_ref()], &args)?;
        read_along(&records, first_turn, outcome);
        instance.synchronize()?;
        first_turn += RECORDS_PER_LAUNCH;
        if litmus.expect != Expect::Clean && outcome.failed() {
            break;
        }
    }
    Ok(())
}

/// Checks and frees every record of one launch, or gives up when nothing has come for a while.
fn read_along(records: &Records, first_turn: u32, outcome: &mut Outcome) {
    let mut turns = [0; RECORDS as usize];
    let mut left = RECORDS * RECORDS_PER_LAUNCH;
    let mut last = Instant::now();
    while left > 0 {
        for (cta, turn) in turns.iter_mut().enumerate() {
            let Some(record) = records.complete(cta) else { continue };
            check(&record, cta as u32, first_turn + *turn, outcome);
            records.free(cta);
            *turn += 1;
            left -= 1;
            last = Instant::now();
        }
        if last.elapsed() > WAIT_LIMIT {
            outcome.error = Some(format!("{left} records never came"));
            return;
        }
    }
}

fn check(record: &FaultRecord, cta: u32, turn: u32, outcome: &mut Outcome) {
    outcome.turns += 1;
    for ((seen, expected), name) in fields(record).iter().zip(expected(cta, turn)).zip(NAMES) {
        if *seen != expected {
            outcome.violations += 1;
            outcome.first.get_or_insert_with(|| {
                format!("CTA {cta}, turn {turn}: {name} is {seen:#010x} for {expected:#010x}")
            });
        }
    }
}
