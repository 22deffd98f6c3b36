//! What a traced kernel recorded, as a timeline: who worked on what, who waited for whom.
//!
//! ```text
//! a buffer by rank ──> decode (records) ──> clock (nanoseconds) ──> align (one time for all ranks) ──> Trace
//! Trace ──> json (Perfetto), svg (a picture), summary (text), chain (what the end waited for)
//! ```
//!
//! All of it is a function of its arguments; a buffer may hold anything. How to make and read a trace:
//! `docs/tracing.md`.

mod align;
mod chain;
mod clock;
mod decode;
mod error;
mod json;
mod launch;
mod spans;
mod summary;
mod svg;

pub use align::Alignment;
pub use chain::{Chain, Step, chain};
pub use decode::RankBuffer;
pub use error::TraceError;
pub use json::json;
pub use launch::Trace;
pub use spans::{Agent, RankClock, Span, What, Word};
pub use summary::summary;
pub use svg::svg;

use mk_abi::KernelSource;

/// Reads the buffers of some or all ranks after a launch.
///
/// # Errors
/// [`TraceError`], for whatever a kernel cannot have written; a full ring is none ([`RankClock::lost`]).
pub fn read(source: &KernelSource, buffers: &[RankBuffer<'_>]) -> Result<Trace, TraceError> {
    let Some(layout) = &source.trace else {
        return Err(TraceError::Untraced { kernel: source.name.clone() });
    };
    let (mut spans, mut clocks, mut epoch) = (Vec::new(), Vec::new(), None);
    if buffers.is_empty() {
        return Err(TraceError::Rank { rank: 0, world: source.world_size });
    }
    let mut decoded = Vec::new();
    for buffer in buffers {
        decoded.push((buffer.rank, decode::decode(source, layout, buffer, &mut epoch)?));
    }
    // Timers count from long ago, which leaves a float no digits for nanoseconds.
    let readings = decoded.iter().flat_map(|(_, d)| &d.records).map(|r| r.at_ns);
    let base = readings.min().unwrap_or(0);
    for (rank, decoded) in &decoded {
        let (rank_spans, clock) = clock::spans(*rank, decoded, base);
        spans.extend(rank_spans);
        clocks.push(clock);
    }
    let alignment = align::align(&mut spans, &clocks, source.world_size);
    let first = |s: &Span| if s.what == What::Cta { s.begin } else { f64::INFINITY };
    let zero = spans.iter().map(first).fold(f64::INFINITY, f64::min);
    for s in &mut spans {
        s.begin -= zero;
        s.end -= zero;
    }
    let place = |s: &Span| (s.rank, s.cta, s.agent);
    spans.sort_by(|a, b| place(a).cmp(&place(b)).then(a.end.total_cmp(&b.end)));
    Ok(Trace {
        name: source.name.clone(),
        world: source.world_size,
        epoch: epoch.unwrap_or(0),
        roles: source.roles.clone(),
        families: layout.families.clone(),
        edges: source.edges.clone(),
        entry_edges: layout.entry_edges.clone(),
        clocks,
        alignment,
        spans,
    })
}
