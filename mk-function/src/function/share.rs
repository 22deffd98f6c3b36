//! Ranks that share a GPU: the SM budget of a plan, and a stream for each rank.

use mk_codegen::target;
use mk_runtime::{Error, Event, Stream, StreamRef, World};
use mk_syntax::{Op, Program};

/// Whether a pipeline's kernels wait for other ranks. Only these must leave SMs free for the other ranks' kernels.
pub(super) fn communicates(program: &Program) -> bool {
    program.nodes().iter().any(|node| match node.op {
        Op::Gather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllReduce { .. }
        | Op::AllToAll { .. }
        | Op::Dispatch { .. }
        | Op::Combine
        | Op::CombineGrad
        | Op::WeighGrad => true,
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
    // An unknown target has no plan: any number will do.
    let sms = target::by_name(target).map_or(0, |t| t.sms);
    sms.saturating_sub(world.sm_budget(reserve_sms))
}

/// Streams for ranks that share a GPU and were given the same stream. The kernels of a launch wait for each other and
/// must run concurrently; in one stream they would deadlock. Earlier and later work of the caller's stream keeps its
/// order.
///
/// ```text
/// caller's stream  ── before ──┬── rank 0's kernel ──┬── after ──
/// own stream                   └── rank 1's kernel ──┘
/// ```
pub(super) struct Fork {
    ranks: Vec<Lane>,
}

/// Stream and events of one local rank.
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

    /// Launches in distinct streams. Where a given stream repeats, an own stream waits for it first, and it waits for
    /// that stream afterwards, even if the launch failed.
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
