//! Two clocks of a GPU made one. Its timer counts nanoseconds, the same on all SMs, in ticks that may be as long as a
//! microsecond; the SM's cycle counter is exact, but starts anywhere and runs at the clock rate of the day. Every
//! record has both at its end. A cycle count `c` read with the timer at `t` says that the SM's offset lies in `[t, t +
//! tick) - c * rate`; all records of a CTA together leave little of that interval. The rate changes while a kernel runs
//! (power), so that what lies between two records is taken from these two.

use super::{
    decode::{Decoded, Record},
    spans::{Agent, RankClock, Span, What, Word},
};
use mk_abi::device::TraceKind;

/// Cycles per nanosecond where nothing was measured: what such a GPU runs at, roughly.
const USUAL: f64 = 1.7;
/// Differences of cycle counts below this many nanoseconds are unambiguous in 32 bits.
const UNAMBIGUOUS_NS: u64 = 1_000_000_000;

/// A rank's records as spans on its own timer less `zero`, and what is known of its clocks.
pub(super) fn spans(rank: u32, decoded: &Decoded, zero: u64) -> (Vec<Span>, RankClock) {
    let records = &decoded.records;
    let tick = tick(records);
    let ctas: Vec<&[Record]> = records.chunk_by(|a, b| a.cta == b.cta).collect();
    let unwrapped: Vec<_> = ctas.iter().map(|c| unwrap(c)).collect();
    let rate = rate(&unwrapped);
    let mut spans = Vec::with_capacity(records.len());
    for (cta, readings) in ctas.iter().zip(&unwrapped) {
        let times = times(readings, rate, tick as f64, zero);
        let scale = Scale::new(readings, &times, rate);
        for (record, (end, (cycles, _))) in cta.iter().zip(times.iter().zip(readings)) {
            let length = f64::from(record.end.wrapping_sub(record.begin));
            let begin = scale.at(cycles - length).min(*end);
            spans.extend(span(rank, record, begin, *end, decoded.stride_bytes));
        }
    }
    let back = |w: &&[Record]| match w {
        [a, b] => (a.cta, a.agent) == (b.cta, b.agent) && b.at_ns < a.at_ns,
        _ => false,
    };
    let disordered = records.windows(2).filter(back).count() as u64;
    let clock = RankClock { rank, tick_ns: tick, mhz: 1e3 / rate, lost: decoded.lost, disordered };
    (spans, clock)
}

/// The least difference between two readings.
fn tick(records: &[Record]) -> u64 {
    let mut all: Vec<_> = records.iter().map(|r| r.at_ns).collect();
    all.sort_unstable();
    let steps = all.windows(2).map(|w| w[1] - w[0]).filter(|d| *d > 0);
    steps.min().unwrap_or(1)
}

/// `(cycles since the CTA's first record, timer)` of each record's end.
fn unwrap(records: &[Record]) -> Vec<(f64, u64)> {
    let mut order: Vec<usize> = (0..records.len()).collect();
    order.sort_by_key(|i| records[*i].at_ns);
    let mut out = vec![(0.0, 0); records.len()];
    let mut last: Option<(&Record, f64)> = None;
    for i in order {
        let r = &records[i];
        let cycles = match last {
            None => 0.0,
            Some((before, cycles)) => {
                let passed = r.at_ns - before.at_ns;
                let step = r.end.wrapping_sub(before.end);
                if passed < UNAMBIGUOUS_NS {
                    // Within a tick the order is not known.
                    cycles + f64::from(step as i32)
                } else {
                    let laps = (passed as f64 * USUAL - f64::from(step)) / 2f64.powi(32);
                    cycles + f64::from(step) + laps.round().max(0.0) * 2f64.powi(32)
                }
            }
        };
        last = Some((r, cycles));
        out[i] = (cycles, r.at_ns);
    }
    out
}

/// Nanoseconds per cycle: the median over CTAs, all on one clock.
fn rate(ctas: &[Vec<(f64, u64)>]) -> f64 {
    let of = |readings: &Vec<(f64, u64)>| {
        let first = readings.iter().min_by_key(|r| r.1)?;
        let last = readings.iter().max_by_key(|r| r.1)?;
        let (cycles, ns) = (last.0 - first.0, (last.1 - first.1) as f64);
        (cycles > 1000.0 && ns > 0.0).then(|| ns / cycles)
    };
    let mut all: Vec<f64> = ctas.iter().filter_map(of).collect();
    all.sort_by(f64::total_cmp);
    let median = all.get(all.len() / 2).copied().unwrap_or(1.0 / USUAL);
    // What no GPU runs at is a damaged record's doing.
    if (0.1..10.0).contains(&median) { median } else { 1.0 / USUAL }
}

/// Nanoseconds since `zero` of each reading of a CTA.
fn times(readings: &[(f64, u64)], rate: f64, tick: f64, zero: u64) -> Vec<f64> {
    let at = |t: u64| (t - zero) as f64;
    let least = readings.iter().map(|(c, t)| at(*t) - rate * c).fold(f64::NEG_INFINITY, f64::max);
    let most = readings.iter().map(|(c, t)| at(*t) + tick - rate * c).fold(f64::INFINITY, f64::min);
    let offset = (least + most) / 2.0;
    // Where the clock rate changed the interval is empty, and the timer alone counts.
    readings.iter().map(|(c, t)| (offset + rate * c).clamp(at(*t), at(*t) + tick)).collect()
}

/// A CTA's cycles as nanoseconds, by what its records say.
struct Scale {
    /// Cycles and nanoseconds, both rising.
    points: Vec<(f64, f64)>,
    rate: f64,
}

impl Scale {
    fn new(readings: &[(f64, u64)], times: &[f64], rate: f64) -> Scale {
        let mut points: Vec<_> = readings.iter().zip(times).map(|(r, t)| (r.0, *t)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Of points within a tick of each other one says all; a time that falls back says nothing.
        let mut rising: Vec<(f64, f64)> = Vec::with_capacity(points.len());
        for p in points {
            if rising.last().is_none_or(|l| p.0 > l.0 && p.1 >= l.1) {
                rising.push(p);
            }
        }
        Scale { points: rising, rate }
    }

    fn at(&self, cycles: f64) -> f64 {
        let after = self.points.partition_point(|p| p.0 < cycles);
        match (after.checked_sub(1).and_then(|i| self.points.get(i)), self.points.get(after)) {
            (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (cycles - a.0) / (b.0 - a.0),
            (None, Some(b)) => b.1 - (b.0 - cycles) * self.rate,
            (Some(a), None) => a.1 + (cycles - a.0) * self.rate,
            (None, None) => cycles * self.rate,
        }
    }
}

fn span(rank: u32, r: &Record, begin: f64, end: f64, stride: u64) -> Option<Span> {
    let rate = (end - begin) / f64::from(r.end.wrapping_sub(r.begin)).max(1.0);
    let offset = u64::from(r.detail[0]) | u64::from(r.detail[1]) << 32;
    let word =
        Word { rank: (offset / stride).min(u64::from(u32::MAX)) as u32, offset: offset % stride };
    let (family, edge, task) = (r.family, r.edge, r.task);
    let what = match r.kind {
        TraceKind::Task => {
            What::Task { family, task, stalled: r.detail.map(|c| f64::from(c) * rate) }
        }
        TraceKind::Wait | TraceKind::WaitBefore => {
            let before = r.kind == TraceKind::WaitBefore;
            What::Wait { family, edge, task, on: word, before }
        }
        TraceKind::Post => What::Post { family, edge, task, to: word },
        TraceKind::Enter => What::Enter { edge, offset: word.offset },
        TraceKind::Cta => What::Cta,
        TraceKind::Mark => return None,
    };
    Some(Span { rank, cta: r.cta, agent: Agent::new(r.agent), what, begin, end })
}
