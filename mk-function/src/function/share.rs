//! Ranks that share a GPU: how many SMs a plan may take there, and a stream for each of them.

use mk_codegen::target;
use mk_runtime::{Error, Event, Stream, StreamRef, World};
use mk_syntax::{Op, Program};

/// Whether a pipeline's kernels wait for other ranks. Those that do not end whatever runs beside them, and need leave
/// no SMs to it.
pub(super) fn communicates(program: &Program) -> bool {
    program.nodes().iter().any(|node| match node.op {
        Op::Gather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllReduce { .. }
        | Op::Dispatch { .. }
        | Op::Combine
        | Op::CombineGrad => true,
        Op::Attention { ring, .. }
        | Op::AttentionDq { ring, .. }
        | Op::AttentionDk { ring, .. } => ring.is_some(),
        _ => false,
    })
}

/// The [`Config::reserved_sms`](mk_codegen::settings::Config::reserved_sms) of a plan for `world`: SMs of the target
/// that are not in [`World::sm_budget`], because ranks share a GPU, the GPU has fewer SMs than the target, or
/// `reserve_sms` of every GPU stay free.
pub fn reserved_sms(world: &World, target: &str, reserve_sms: u32) -> u32 {
    // Of a target that is not known there is no plan, whatever is reserved.
    let sms = target::by_name(target).map_or(0, |t| t.sms);
    sms.saturating_sub(world.sm_budget(reserve_sms))
}

/// Streams for ranks that share a GPU and were given one stream: the kernels of one launch wait for each other, and in
/// one stream they would run one after the other. Work before and behind the launch keeps its order.
///
/// ```text
/// caller's stream  ── before ──┬── rank 0's kernel ──┬── behind ──
/// own stream                   └── rank 1's kernel ──┘
/// ```
pub(super) struct Fork {
    ranks: Vec<Lane>,
}

/// Of one rank of this process.
struct Lane {
    device: i32,
    stream: Stream,
    begun: Event,
    done: Event,
}

impl Fork {
    pub(super) fn new(world: &World) -> Result<Fork, Error> {
        let lane = |rank| {
            Ok(Lane {
                device: world.device(rank)?.ordinal,
                stream: Stream::new(world, rank)?,
                begun: Event::untimed(world, rank)?,
                done: Event::untimed(world, rank)?,
            })
        };
        Ok(Fork { ranks: world.local_ranks().map(lane).collect::<Result<_, Error>>()? })
    }

    /// Launches in streams of which no two are one: those given, or behind them own ones, for which the given ones then
    /// wait, also where the launch failed.
    pub(super) fn launch<E: From<Error>>(
        &self,
        given: &[StreamRef],
        launch: impl FnOnce(&[StreamRef]) -> Result<(), E>,
    ) -> Result<(), E> {
        let places: Vec<_> = self.ranks.iter().map(|lane| lane.device).zip(given).collect();
        let again = |i: usize| places.iter().take(i).any(|p| Some(p) == places.get(i));
        let forked: Vec<_> =
            self.ranks.iter().zip(given).enumerate().filter(|(i, _)| again(*i)).collect();
        let mut streams = given.to_vec();
        for (i, (lane, stream)) in &forked {
            lane.begun.record(**stream)?;
            lane.begun.hold(lane.stream.as_ref())?;
            if let Some(place) = streams.get_mut(*i) {
                *place = lane.stream.as_ref();
            }
        }
        let mut launched = launch(&streams);
        for (_, (lane, stream)) in &forked {
            let joined = lane.done.record(lane.stream.as_ref());
            launched =
                launched.and(joined.and_then(|()| lane.done.hold(**stream)).map_err(E::from));
        }
        launched
    }
}
