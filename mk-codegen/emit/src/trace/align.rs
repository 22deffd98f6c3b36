//! The ranks' timers against each other. No wait ends before the post that ends it, so each post of rank p that rank q
//! waited for bounds how far q's timer may be behind p's.

use super::spans::{RankClock, Span, What, Word};
use std::collections::HashMap;

/// How far the ranks' timers are known to agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Alignment {
    /// What was subtracted from each rank's times, in nanoseconds, in the order of
    /// [`Trace::clocks`](super::Trace::clocks).
    pub offsets_ns: Vec<f64>,
    /// Of each rank: the least and the greatest offset from the first rank's that no wait contradicts; infinite without
    /// posts between them.
    pub bounds_ns: Vec<(f64, f64)>,
    /// Whether the timers agree as they are: then nothing was subtracted.
    pub shared: bool,
    /// By how much the earliest wait, after all, ends before its post, in nanoseconds; 0 if none does.
    pub contradiction_ns: f64,
}

/// Every post, by the word that it raises.
pub(super) fn posts(spans: &[Span], world: u32) -> HashMap<Word, Vec<&Span>> {
    let mut out: HashMap<Word, Vec<&Span>> = HashMap::new();
    for span in spans {
        match span.what {
            What::Post { to, .. } => out.entry(to).or_default().push(span),
            What::Enter { offset, .. } => {
                for rank in 0..world {
                    out.entry(Word { rank, offset }).or_default().push(span);
                }
            }
            _ => {}
        }
    }
    for list in out.values_mut() {
        list.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    }
    out
}

/// Brings all spans to the first rank's time.
pub(super) fn align(spans: &mut [Span], clocks: &[RankClock], world: u32) -> Alignment {
    let n = clocks.len();
    let index = |rank: u32| clocks.iter().position(|c| c.rank == rank);
    // far[p][q]: q's timer minus p's is at most this.
    let mut far = vec![vec![f64::INFINITY; n]; n];
    let by_word = posts(spans, world);
    for span in spans.iter() {
        let What::Wait { on, before: false, .. } = span.what else { continue };
        // All posts to a word are one rank's. The wait may be for the first of them only.
        let Some(post) = by_word.get(&on).and_then(|list| list.first()) else { continue };
        let (Some(p), Some(q)) = (index(post.rank), index(span.rank)) else { continue };
        if p != q {
            let slack = (clocks[p].tick_ns + clocks[q].tick_ns) as f64;
            far[p][q] = far[p][q].min(span.end - post.begin + slack);
        }
    }
    drop(by_word);
    let agree = far.iter().flatten().all(|d| *d >= 0.0);
    for k in 0..n {
        for p in 0..n {
            for q in 0..n {
                far[p][q] = far[p][q].min(far[p][k] + far[k][q]);
            }
        }
    }
    let bounds_ns: Vec<_> =
        (0..n).map(|q| if q == 0 { (0.0, 0.0) } else { (-far[q][0], far[0][q]) }).collect();
    // Timers that nothing compares may be anything apart.
    let known = |(least, most): &(f64, f64)| least.is_finite() || most.is_finite();
    let shared = agree && bounds_ns.iter().all(known);
    let offset = |(least, most): &(f64, f64)| match (least.is_finite(), most.is_finite()) {
        _ if shared => 0.0,
        (true, true) => (least + most) / 2.0,
        (true, false) => *least,
        (false, true) => *most,
        (false, false) => 0.0,
    };
    let offsets_ns: Vec<f64> = bounds_ns.iter().map(offset).collect();
    for span in spans.iter_mut() {
        if let Some(i) = index(span.rank) {
            span.begin -= offsets_ns[i];
            span.end -= offsets_ns[i];
        }
    }
    let mut contradiction_ns = 0.0_f64;
    for p in 0..n {
        for q in (0..n).filter(|q| *q != p) {
            contradiction_ns = contradiction_ns.max(offsets_ns[q] - offsets_ns[p] - far[p][q]);
        }
    }
    Alignment { offsets_ns, bounds_ns, shared, contradiction_ns }
}
