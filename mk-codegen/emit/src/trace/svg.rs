//! A trace as a picture. For each rank and role: a strip with the share of its agents that are in each family's tasks,
//! at internal edges or at waits; below it, a few CTAs one by one. What decided the end is drawn over it in black.
//!
//! A predicted timeline is a [`Trace`] too; it stands above, on the same scale.

use super::{
    chain::{Chain, chain},
    launch::{Trace, disjoint_waits},
    spans::{Agent, Span, What},
};
use mk_abi::count;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

const LEFT: f64 = 170.0;
const PLOT: f64 = 930.0;
const WIDTH: f64 = LEFT + PLOT + 20.0;
const STRIP: f64 = 34.0;
const LANE: f64 = 11.0;
const WAITS: f64 = 5.0;
/// Columns of a strip.
const BINS: usize = 160;
/// CTAs of a role that are drawn one by one.
const CTAS: usize = 2;
/// Steps of the chain in words.
const STEPS: usize = 10;

const FAMILIES: [&str; 8] =
    ["#0969da", "#2da44e", "#8250df", "#1b7c83", "#6639ba", "#4d9de0", "#5a7d2a", "#3b5b92"];
const STALL: &str = "#d8dee4";
const WAIT: &str = "#e5534b";

/// Where a CTA's lane is.
type Lanes = BTreeMap<(u32, u32), f64>;

/// The picture of a trace, under that of a prediction of the same kernel if there is one.
pub fn svg(trace: &Trace, predicted: Option<&Trace>) -> String {
    let length = predicted.map_or(0.0, Trace::length).max(trace.length()).max(1.0);
    let mut body = String::new();
    let mut y = 64.0;
    // Launches count from 1.
    let which =
        if trace.epoch == 0 { "predicted".into() } else { format!("launch {}", trace.epoch) };
    let us = trace.length() / 1e3;
    let ranks = count(trace.world, "rank");
    let title = format!("{}: {us:.1} us, {which} on {ranks}", trace.name);
    text(&mut body, "t", 20.0, 30.0, &title);
    legend(&mut body, trace, 50.0);
    if let Some(predicted) = predicted {
        heading(&mut body, &mut y, "predicted", length);
        panel(&mut body, predicted, &Chain::default(), length, &mut y);
        heading(&mut body, &mut y, "measured", length);
    } else {
        heading(&mut body, &mut y, "", length);
    }
    let chain = chain(trace);
    let lanes = panel(&mut body, trace, &chain, length, &mut y);
    arrows(&mut body, &chain, &lanes, length);
    y += 8.0;
    text(&mut body, "n", 20.0, y + 14.0, "What the last task waited for, last first");
    y += 18.0;
    for step in chain.steps.iter().rev().take(STEPS) {
        y += 15.0;
        let line = format!("{:8.1} us  {}", step.end / 1e3, step.text(trace));
        text(&mut body, "m", 20.0, y, &line);
    }
    let totals = chain.totals(trace);
    let totals: Vec<_> =
        totals.iter().take(5).map(|(w, ns)| format!("{w} {:.1} us", ns / 1e3)).collect();
    y += 19.0;
    text(&mut body, "n", 20.0, y, &format!("Critical: {}", totals.join(", ")));
    y += 16.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y:.0}\" viewBox=\"0 0 {WIDTH} {y:.0}\" role=\"img\">\n\
         <title>Trace of {}</title>\n<style>text{{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11px;fill:#1f2328}}\
         .t{{font-size:16px;font-weight:bold}}.n{{font-weight:bold}}.m{{fill:#424a53}}.e{{text-anchor:end}}.c{{text-anchor:middle;fill:#59636e}}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{y:.0}\" fill=\"#fdfdfe\"/>\n",
        escape(&trace.name)
    );
    out.push_str(&body);
    out.push_str("</svg>\n");
    out
}

fn heading(out: &mut String, y: &mut f64, name: &str, length: f64) {
    text(out, "n", 20.0, *y + 12.0, name);
    let step = nice(length / 8.0);
    let mut at = 0.0;
    while at <= length {
        let x = x_of(at, length);
        text(out, "c", x, *y + 12.0, &format!("{} us", at / 1e3));
        let _ = writeln!(out, "<path d=\"M{x:.1} {:.1}v4\" stroke=\"#8c959f\"/>", *y + 15.0);
        at += step;
    }
    *y += 24.0;
}

/// 1, 2 or 5 times a power of ten, not below.
fn nice(x: f64) -> f64 {
    let power = 10f64.powf(x.max(1.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|v| *v >= x).unwrap_or(power)
}

fn x_of(ns: f64, length: f64) -> f64 {
    LEFT + PLOT * (ns / length).clamp(0.0, 1.0)
}

fn colour(trace: &Trace, family: u32) -> &'static str {
    let place = trace.families.iter().position(|f| f.id == family).unwrap_or(0);
    FAMILIES[place % FAMILIES.len()]
}

fn legend(out: &mut String, trace: &Trace, y: f64) {
    let mut x = 20.0;
    let families = trace.families.iter().filter(|f| {
        let of = |s: &Span| matches!(s.what, What::Task { family, .. } if family == f.id);
        trace.spans.iter().any(|s| of(s) && trace.is_work(s))
    });
    let mut entries: Vec<(&str, &str)> =
        families.map(|f| (colour(trace, f.id), f.name.as_str())).collect();
    entries.extend([(STALL, "at an internal edge"), (WAIT, "waits for a signal")]);
    for (fill, name) in entries {
        let _ = writeln!(
            out,
            "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"12\" height=\"10\" fill=\"{fill}\"/>",
            y - 9.0
        );
        text(out, "m", x + 17.0, y, name);
        x += 34.0 + 6.7 * name.chars().count() as f64;
    }
}

fn panel(out: &mut String, trace: &Trace, chain: &Chain, length: f64, y: &mut f64) -> Lanes {
    let mut lanes = Lanes::new();
    for rank in trace.ranks() {
        for (i, role) in trace.roles.iter().enumerate() {
            let here = |s: &&Span| s.rank == rank && trace.role(s.cta) == Some(i);
            let spans: Vec<&Span> = trace.spans.iter().filter(here).collect();
            if !spans.iter().any(|s| trace.is_work(s)) {
                continue;
            }
            text(out, "n", 20.0, *y + 14.0, &format!("rank {rank} {}", role.name));
            text(out, "m", 20.0, *y + 28.0, &count(role.ctas, "CTA"));
            strip(out, trace, &spans, length, *y);
            *y += STRIP + 3.0;
            for cta in shown(trace, chain, &spans, rank) {
                text(out, "m e", LEFT - 8.0, *y + 9.0, &format!("CTA {cta}"));
                lane(out, trace, &spans, cta, length, *y);
                lanes.insert((rank, cta), *y + LANE / 2.0);
                *y += LANE + WAITS + 3.0;
            }
            *y += 5.0;
        }
    }
    lanes
}

/// The CTAs of the chain, last first, or else the one that ends last.
fn shown(trace: &Trace, chain: &Chain, spans: &[&Span], rank: u32) -> Vec<u32> {
    let mut out = Vec::new();
    let own = |cta: u32| spans.iter().any(|s| s.cta == cta);
    for step in chain.steps.iter().rev().filter(|s| s.rank == rank && own(s.cta)) {
        if !out.contains(&step.cta) && out.len() < CTAS {
            out.push(step.cta);
        }
    }
    if out.is_empty() {
        let work = spans.iter().filter(|s| trace.is_work(s));
        out.extend(work.max_by(|a, b| a.end.total_cmp(&b.end)).map(|s| s.cta));
    }
    out
}

/// The share of agents in each colour over time, stacked from below.
fn strip(out: &mut String, trace: &Trace, spans: &[&Span], length: f64, y: f64) {
    let mut workers: Vec<(u32, Agent)> =
        spans.iter().filter(|s| trace.is_work(s)).map(|s| (s.cta, s.agent)).collect();
    workers.sort_unstable();
    workers.dedup();
    let mut layers: Vec<(&str, Vec<f64>)> = Vec::new();
    let mut add = |fill: &'static str, s: &Span, share: f64| {
        let i = layers.iter().position(|(f, _)| *f == fill).unwrap_or_else(|| {
            layers.push((fill, vec![0.0; BINS]));
            layers.len() - 1
        });
        let bin = length / BINS as f64;
        let (from, to) = ((s.begin / bin).max(0.0), (s.end / bin).min(BINS as f64));
        let mut b = from as usize;
        while (b as f64) < to && b < BINS {
            let covered = to.min(b as f64 + 1.0) - from.max(b as f64);
            layers[i].1[b] += share * covered / workers.len() as f64;
            b += 1;
        }
    };
    for s in spans {
        match s.what {
            What::Task { family, stalled, .. } if trace.is_work(s) => {
                let at_edges = ((stalled[0] + stalled[1]) / s.length().max(1.0)).clamp(0.0, 1.0);
                add(colour(trace, family), s, 1.0 - at_edges);
                add(STALL, s, at_edges);
            }
            _ => {}
        }
    }
    // A worker's own waits are part of its task.
    for s in disjoint_waits(spans.iter().copied()) {
        if let What::Wait { family, .. } = s.what
            && workers.binary_search(&(s.cta, s.agent)).is_ok()
        {
            add(WAIT, &s, 1.0);
            add(colour(trace, family), &s, -1.0);
        }
    }
    layers.sort_by_key(|(fill, _)| (*fill == STALL, *fill == WAIT));
    let bottom = y + STRIP;
    let mut below = vec![0.0_f64; BINS];
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{PLOT}\" height=\"{STRIP}\" fill=\"#f6f8fa\"/>"
    );
    for (fill, layer) in &layers {
        let mut path = String::new();
        let step = PLOT / BINS as f64;
        let level = |share: f64| bottom - STRIP * share.clamp(0.0, 1.0);
        for b in 0..BINS {
            let part = layer[b].max(0.0);
            if part < 0.004 {
                continue;
            }
            let (low, high) = (level(below[b]), level(below[b] + part));
            let x = LEFT + step * b as f64;
            let wide = step + 0.3;
            let _ = write!(path, "M{x:.1} {high:.1}h{wide:.1}V{low:.1}h-{wide:.1}z");
            below[b] += part;
        }
        if !path.is_empty() {
            let _ = writeln!(out, "<path fill=\"{fill}\" d=\"{path}\"/>");
        }
    }
}

/// One CTA: tasks of the agent that works, and below them the waits of any agent.
fn lane(out: &mut String, trace: &Trace, spans: &[&Span], cta: u32, length: f64, y: f64) {
    let mut paths: BTreeMap<&str, String> = BTreeMap::new();
    let mut until: BTreeMap<&str, f64> = BTreeMap::new();
    let mut bar = |fill: &'static str, s: &Span, y: f64, height: f64| {
        let (from, to) = (x_of(s.begin, length), x_of(s.end, length));
        // A task that ends where the last one did, to a tenth of a pixel, is not to be seen.
        let last = until.entry(fill).or_insert(f64::NEG_INFINITY);
        if to - *last < 0.15 {
            return;
        }
        *last = to;
        let width = (to - from - 0.3).max(0.3);
        let path = paths.entry(fill).or_default();
        let _ = write!(path, "M{from:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z");
    };
    let task = |s: &Span| match s.what {
        What::Task { family, task, .. } => Some((family, task)),
        _ => None,
    };
    let of_first = spans.iter().filter(|s| s.cta == cta && s.agent == Agent::Compute(0));
    let of_first: HashSet<_> = of_first.filter_map(|s| task(s)).collect();
    for s in spans.iter().filter(|s| s.cta == cta) {
        // Two warpgroups have halves of the same tiles, or tiles of their own.
        let again = s.agent == Agent::Compute(1) && task(s).is_some_and(|t| of_first.contains(&t));
        match s.what {
            What::Task { family, .. } if trace.is_work(s) && !again => {
                bar(colour(trace, family), s, y, LANE);
            }
            What::Wait { .. } => bar(WAIT, s, y + LANE, WAITS),
            _ => {}
        }
    }
    for (fill, path) in paths {
        let _ = writeln!(out, "<path fill=\"{fill}\" d=\"{path}\"/>");
    }
}

/// From each post of the chain to the wait that it ended.
fn arrows(out: &mut String, chain: &Chain, lanes: &Lanes, length: f64) {
    for pair in chain.steps.windows(2) {
        let [before, step] = pair else { continue };
        let Some(wait) = step.wait else { continue };
        let (Some(from), Some(to)) =
            (lanes.get(&(before.rank, before.cta)), lanes.get(&(step.rank, step.cta)))
        else {
            continue;
        };
        let begin = x_of(before.end, length);
        let end = x_of(before.end + wait.delivery.unwrap_or(0.0), length);
        let _ = writeln!(
            out,
            "<path d=\"M{begin:.1} {from:.1}L{end:.1} {to:.1}\" stroke=\"#000\" fill=\"none\"/><circle \
             cx=\"{end:.1}\" cy=\"{to:.1}\" r=\"2.5\"/>"
        );
    }
}

fn text(out: &mut String, class: &str, x: f64, y: f64, text: &str) {
    let _ = writeln!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" xml:space=\"preserve\">{}</text>",
        escape(text)
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
