//! The exchange of sums in a cluster (`templates/tile/cluster_sums.cuh`), step by step, under every order in which warps may take their
//! steps. Barriers are those of PTX: a wait names a parity, and one that comes two phases late waits for ever.

use std::collections::HashSet;

const CTAS: usize = 2;
const WARPS: usize = 2;
const TILES: u8 = 5;

/// What differs between the protocol as it is and ones that are not enough.
#[derive(Clone, Copy)]
struct Protocol {
    /// A CTA's own warps count among those that have read.
    counts_own: bool,
    /// The phase of incoming sums is armed behind the wait for those who have read.
    arms_behind: bool,
}

/// The steps of a warp in a tile, in order.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Arm,
    AwaitRead,
    Send,
    AwaitFull,
    TellRead,
}

impl Protocol {
    fn steps(self) -> [Step; 5] {
        use Step::{Arm, AwaitFull, AwaitRead, Send, TellRead};
        match self.arms_behind {
            true => [AwaitRead, Arm, Send, AwaitFull, TellRead],
            false => [Arm, AwaitRead, Send, AwaitFull, TellRead],
        }
    }

    fn readers(self) -> u8 {
        let all = if self.counts_own { CTAS } else { CTAS - 1 };
        (all * WARPS) as u8
    }
}

/// A barrier: its phase, arrivals that it still waits for, and bytes that are expected (sent before that, fewer than none).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Barrier {
    phase: u8,
    pending: i8,
    bytes: i8,
}

impl Barrier {
    fn settle(&mut self, arrivals: u8) {
        assert!(self.pending >= 0, "more arrivals than a phase has");
        if self.pending == 0 && self.bytes == 0 {
            (self.phase, self.pending) = (self.phase + 1, arrivals as i8);
        }
    }

    fn passes(&self, parity: u8) -> bool {
        self.phase % 2 != parity % 2
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    /// Tile and step of each warp.
    at: [[(u8, u8); WARPS]; CTAS],
    full: [Barrier; CTAS],
    read: [Barrier; CTAS],
}

/// Whether each CTA finishes sums. One that finishes none gets none from the others.
type Finishes = [bool; CTAS];

fn begin(protocol: Protocol) -> State {
    let barrier = |pending: u8| Barrier { phase: 0, pending: pending as i8, bytes: 0 };
    State {
        at: [[(0, 0); WARPS]; CTAS],
        full: [barrier(1); CTAS],
        read: [barrier(protocol.readers()); CTAS],
    }
}

/// The state after the next step of a warp; `None` where it waits, or has ended.
fn next(
    s: &State,
    protocol: Protocol,
    finishes: Finishes,
    cta: usize,
    warp: usize,
) -> Option<State> {
    let (tile, step) = s.at[cta][warp];
    if tile == TILES {
        return None;
    }
    let mut out = s.clone();
    match protocol.steps()[usize::from(step)] {
        Step::Arm if warp == 0 => {
            let full = &mut out.full[cta];
            let incoming = if finishes[cta] { (CTAS - 1) * WARPS } else { 0 };
            full.pending -= 1;
            full.bytes += incoming as i8;
            full.settle(1);
        }
        Step::Arm => {}
        Step::AwaitRead if tile > 0 && !s.read[cta].passes(tile - 1) => return None,
        Step::AwaitRead => {}
        Step::Send => {
            for to in (0..CTAS).filter(|to| *to != cta && finishes[*to]) {
                out.full[to].bytes -= 1;
                out.full[to].settle(1);
            }
        }
        Step::AwaitFull if !s.full[cta].passes(tile) => return None,
        Step::AwaitFull => {}
        // Of a last tile nobody is told.
        Step::TellRead if tile + 1 < TILES => {
            for to in (0..CTAS).filter(|to| protocol.counts_own || *to != cta) {
                out.read[to].pending -= 1;
                out.read[to].settle(protocol.readers());
            }
        }
        Step::TellRead => {}
    }
    let steps = protocol.steps().len() as u8;
    out.at[cta][warp] = if step + 1 == steps { (tile + 1, 0) } else { (tile, step + 1) };
    Some(out)
}

/// Whether some order of steps ends with warps that wait.
fn deadlocks(protocol: Protocol, finishes: Finishes) -> bool {
    let mut seen = HashSet::from([begin(protocol)]);
    let mut left = vec![begin(protocol)];
    while let Some(s) = left.pop() {
        let warps = (0..CTAS).flat_map(|cta| (0..WARPS).map(move |warp| (cta, warp)));
        let after: Vec<_> =
            warps.filter_map(|(cta, warp)| next(&s, protocol, finishes, cta, warp)).collect();
        if after.is_empty() && s.at.iter().flatten().any(|(tile, _)| *tile < TILES) {
            return true;
        }
        left.extend(after.into_iter().filter(|s| seen.insert(s.clone())));
    }
    false
}

#[test]
fn every_order_ends() {
    let protocol = Protocol { counts_own: true, arms_behind: true };
    for finishes in [[true, true], [false, true], [true, false]] {
        assert!(!deadlocks(protocol, finishes), "{finishes:?}");
    }
}

/// A CTA that finishes nothing waits for no sums: it tells the other that it has read a tile whose sums that one has not sent yet.
#[test]
fn a_cta_that_finishes_nothing_runs_ahead() {
    let protocol = Protocol { counts_own: false, arms_behind: true };
    assert!(deadlocks(protocol, [false, true]));
    assert!(!deadlocks(protocol, [true, true]));
}

/// Armed before that wait, a phase without sums is over before the CTA's other warps look for it.
#[test]
fn a_phase_without_sums_is_not_armed_early() {
    let protocol = Protocol { counts_own: true, arms_behind: false };
    assert!(deadlocks(protocol, [false, true]));
}
