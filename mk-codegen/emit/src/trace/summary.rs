//! A trace in a few lines of text: by rank and role who was busy and who waited, and the chain that decided the end.

use super::{
    chain::chain,
    launch::{Trace, disjoint_waits},
    spans::{Span, What, Word},
};
use mk_abi::count;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Steps of the chain that are printed.
const STEPS: usize = 12;

/// A table and the chain, as text of several lines.
pub fn summary(trace: &Trace) -> String {
    let mut out = String::new();
    let us = |ns: f64| ns / 1e3;
    let _ = writeln!(
        out,
        "trace     {:?}, launch {}, {} of {}, {:.1} us from the first CTA's begin to the last one's end",
        trace.name,
        trace.epoch,
        trace.clocks.len(),
        count(trace.world, "rank"),
        us(trace.length())
    );
    clocks(&mut out, trace);
    let _ = writeln!(
        out,
        "busy: share of the rank's time in which agents that work had what they needed; waits: longest first, share\n\
         of the CTAs' time; times in us since the first CTA began"
    );
    for rank in trace.ranks() {
        let of_rank: Vec<&Span> = trace.spans.iter().filter(|s| s.rank == rank).collect();
        entry(&mut out, trace, rank, &of_rank);
        for (i, _) in trace.roles.iter().enumerate() {
            role(&mut out, trace, i, &of_rank);
        }
    }
    families(&mut out, trace);
    chain_text(&mut out, trace);
    out
}

fn clocks(out: &mut String, trace: &Trace) {
    let a = &trace.alignment;
    let tick = trace.clocks.iter().map(|c| c.tick_ns).max().unwrap_or(0);
    let mhz: Vec<_> = trace.clocks.iter().map(|c| format!("{:.0}", c.mhz)).collect();
    let bounds: Vec<_> = a.bounds_ns.iter().map(|(l, m)| format!("[{l:.0}, {m:.0}]")).collect();
    let how = if a.shared { "agree as they are" } else { "were shifted to agree" };
    let unknown = |(least, most): &(f64, f64)| least.is_infinite() && most.is_infinite();
    let how =
        if a.bounds_ns.iter().any(unknown) { "cannot be compared, not all of them" } else { how };
    let _ = writeln!(
        out,
        "clocks    timers tick every {tick} ns, SMs run at {} MHz; the ranks' timers {how}: offsets to the first \
         within {} ns",
        mhz.join(", "),
        bounds.join(" ")
    );
    if a.contradiction_ns > 0.0 {
        let _ =
            writeln!(out, "clocks    some wait ends {:.0} ns before its post", a.contradiction_ns);
    }
    for c in trace.clocks.iter().filter(|c| c.lost > 0 || c.disordered > 0) {
        let _ = writeln!(
            out,
            "clocks    rank {}: {} records are lost, {} out of order",
            c.rank, c.lost, c.disordered
        );
    }
}

/// When a rank began, and when it had seen all others.
fn entry(out: &mut String, trace: &Trace, rank: u32, spans: &[&Span]) {
    let ctas = || spans.iter().filter(|s| s.what == What::Cta);
    let begin = ctas().map(|s| s.begin).fold(f64::INFINITY, f64::min);
    let late = ctas().map(|s| s.begin).fold(0.0, f64::max);
    let end = ctas().map(|s| s.end).fold(0.0, f64::max);
    let mut seen: BTreeMap<Word, f64> = BTreeMap::new();
    for s in spans {
        if let What::Wait { edge, on, .. } = s.what
            && trace.entry_edges.contains(&edge)
        {
            let first = seen.entry(on).or_insert(f64::INFINITY);
            *first = first.min(s.end);
        }
    }
    let met = seen.values().copied().fold(f64::NEG_INFINITY, f64::max);
    let done = spans.iter().filter(|s| trace.is_work(s)).map(|s| s.end).fold(0.0, f64::max);
    let enter = spans.iter().find(|s| matches!(s.what, What::Enter { .. }));
    let posts = enter.map_or(String::new(), |s| {
        format!(
            ", its entry posted from {:.1} to {:.1} us after that",
            (s.begin - begin) / 1e3,
            (s.end - begin) / 1e3
        )
    });
    let met = match met.is_finite() {
        true => format!("has seen all peers' entries {:.1} us later", (met - begin) / 1e3),
        false => "no wait for an entry".into(),
    };
    let _ = writeln!(
        out,
        "rank {rank}    begins at {:.1}, its last CTA {:.1} us later{posts}; {met}; last task ends at {:.1}, last CTA \
         {:.1} us after it",
        begin / 1e3,
        (late - begin) / 1e3,
        done / 1e3,
        (end - done) / 1e3
    );
}

fn role(out: &mut String, trace: &Trace, index: usize, of_rank: &[&Span]) {
    let Some(info) = trace.roles.get(index) else { return };
    let here: Vec<&&Span> = of_rank.iter().filter(|s| trace.role(s.cta) == Some(index)).collect();
    let rank_time = |pick: fn(&Span) -> f64, start: f64, join: fn(f64, f64) -> f64| {
        of_rank.iter().filter(|s| s.what == What::Cta).map(|s| pick(s)).fold(start, join)
    };
    let begin = rank_time(|s| s.begin, f64::INFINITY, f64::min);
    let length = (rank_time(|s| s.end, 0.0, f64::max) - begin).max(1.0);
    let work: Vec<&&&Span> = here.iter().filter(|s| trace.is_work(s)).collect();
    if work.is_empty() {
        return;
    }
    let mut workers: Vec<_> = work.iter().map(|s| (s.cta, s.agent)).collect();
    workers.sort_unstable();
    workers.dedup();
    let all = length * workers.len() as f64;
    let all_ctas = length * f64::from(info.ctas.max(1));
    let mut busy: f64 = work.iter().map(|s| s.length()).sum();
    let mut waits: BTreeMap<String, f64> = BTreeMap::new();
    let mut edges: Vec<u32> = Vec::new();
    for s in &here {
        match s.what {
            What::Task { family, stalled, .. } if trace.is_work(s) => {
                busy -= stalled[0] + stalled[1];
                for (name, ns) in stall_names(trace, family).into_iter().zip(stalled) {
                    *waits.entry(name).or_default() += ns / all;
                }
            }
            What::Wait { edge, .. } if !edges.contains(&edge) => edges.push(edge),
            _ => {}
        }
    }
    for edge in edges {
        let at = |s: &&&&Span| matches!(s.what, What::Wait { edge: e, .. } if e == edge);
        let sum: f64 =
            disjoint_waits(here.iter().filter(at).map(|s| **s)).iter().map(Span::length).sum();
        *waits.entry(format!("e{edge}")).or_default() += sum / all_ctas;
    }
    let own = disjoint_waits(here.iter().map(|s| **s));
    let own = own.iter().filter(|s| workers.binary_search(&(s.cta, s.agent)).is_ok());
    busy -= own.map(Span::length).sum::<f64>();
    let mut waits: Vec<_> = waits.into_iter().filter(|(_, w)| *w >= 0.0005).collect();
    waits.sort_by(|a, b| b.1.total_cmp(&a.1));
    let waits: Vec<_> = waits.iter().map(|(n, w)| format!("{n} {:.1}%", 100.0 * w)).collect();
    let first = work.iter().map(|s| s.begin).fold(f64::INFINITY, f64::min);
    let mut ends: Vec<f64> = workers
        .iter()
        .map(|w| {
            let mine = work.iter().filter(|s| (s.cta, s.agent) == *w);
            mine.map(|s| s.end).fold(0.0, f64::max)
        })
        .collect();
    ends.sort_by(f64::total_cmp);
    let (least, last) = (ends.first().copied().unwrap_or(0.0), ends.last().copied().unwrap_or(0.0));
    let median = ends.get(ends.len() / 2).copied().unwrap_or(0.0);
    let _ = writeln!(
        out,
        "  {:<11} {:3} CTAs  busy {:5.1}%  waits {}; tasks from {:.1}; CTAs done at {:.1} / {:.1} / {:.1} (first, \
         median, last)",
        info.name,
        info.ctas,
        100.0 * busy / all,
        if waits.is_empty() { "none".into() } else { waits.join(", ") },
        first / 1e3,
        least / 1e3,
        median / 1e3,
        last / 1e3
    );
}

/// What the two stalls of a family's worker are: the ring, and the staging panels.
fn stall_names(trace: &Trace, family: u32) -> [String; 2] {
    let family = trace.families.iter().find(|f| f.id == family);
    let name = |edge: &str| {
        let found = family.and_then(|f| f.edges.iter().find(|(n, _)| n == edge));
        found.map_or_else(|| edge.to_string(), |(n, id)| format!("e{id} {n}"))
    };
    [name("full"), name("drained")]
}

fn families(out: &mut String, trace: &Trace) {
    for f in &trace.families {
        let mut lengths = Vec::new();
        let mut stalls = [0.0; 2];
        let mut workers = Vec::new();
        let (mut first, mut last) = (f64::INFINITY, 0.0f64);
        for s in trace.spans.iter().filter(|s| trace.is_work(s)) {
            if let What::Task { family, stalled, .. } = s.what
                && family == f.id
            {
                (first, last) = (first.min(s.begin), last.max(s.end));
                lengths.push(s.length());
                workers.push((s.rank, s.cta, s.agent));
                stalls[0] += stalled[0];
                stalls[1] += stalled[1];
            }
        }
        workers.sort_unstable();
        workers.dedup();
        let own = |s: &&Span| {
            matches!(s.what, What::Wait { family, .. } if family == f.id)
                && workers.binary_search(&(s.rank, s.cta, s.agent)).is_ok()
        };
        let own = disjoint_waits(trace.spans.iter().filter(own));
        let waited: f64 = own.iter().map(Span::length).sum();
        if lengths.is_empty() {
            continue;
        }
        lengths.sort_by(f64::total_cmp);
        let n = lengths.len() as f64;
        let at = |q: f64| lengths[((n - 1.0) * q) as usize] / 1e3;
        let _ = writeln!(
            out,
            "fam{} {:<16} {:6} tasks by agent, from {:.1} to {:.1}: mean {:.2} us, median {:.2}, 90% {:.2}, longest \
             {:.2}; of the mean {:.2} at the ring, {:.2} for panels, {:.2} at signals",
            f.id,
            f.name,
            lengths.len(),
            first / 1e3,
            last / 1e3,
            lengths.iter().sum::<f64>() / n / 1e3,
            at(0.5),
            at(0.9),
            at(1.0),
            stalls[0] / n / 1e3,
            stalls[1] / n / 1e3,
            waited / n / 1e3
        );
    }
}

fn chain_text(out: &mut String, trace: &Trace) {
    let chain = chain(trace);
    let steps = count(chain.steps.len(), "step");
    let _ = writeln!(out, "what the last task waited for, in {steps}, last first:");
    for step in chain.steps.iter().rev().take(STEPS) {
        let _ = writeln!(out, "  {:8.1}  {}", step.end / 1e3, step.text(trace));
    }
    if chain.steps.len() > STEPS {
        let _ = writeln!(out, "            … {} before", count(chain.steps.len() - STEPS, "step"));
    }
    let mut edges: Vec<u32> = chain.steps.iter().filter_map(|s| Some(s.wait?.edge)).collect();
    edges.sort_unstable();
    edges.dedup();
    for edge in edges {
        let _ = writeln!(out, "  e{edge}: {}", trace.edge(edge));
    }
    let totals: Vec<_> = chain
        .totals(trace)
        .into_iter()
        .take(6)
        .map(|(what, ns)| format!("{what} {:.1} us", ns / 1e3))
        .collect();
    let _ = writeln!(out, "critical: {}", totals.join(", "));
}
