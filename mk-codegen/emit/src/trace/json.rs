//! A trace as Chrome's trace-event JSON, which ui.perfetto.dev and chrome://tracing open: a process for each rank, a
//! thread for each agent of each CTA.

use super::{
    launch::Trace,
    spans::{Span, What},
};
use std::fmt::Write;

/// The trace as JSON. Times are microseconds since the first CTA began.
pub fn json(trace: &Trace) -> String {
    let mut events = Vec::with_capacity(trace.spans.len() + 16);
    for rank in trace.ranks() {
        events.push(format!(
            r#"{{"ph":"M","pid":{rank},"name":"process_name","args":{{"name":"rank {rank}"}}}}"#
        ));
    }
    let mut named = None;
    for span in &trace.spans {
        let thread = span.cta * 8 + span.agent.place();
        if named.replace((span.rank, thread)) != Some((span.rank, thread)) {
            let name = format!("{} {} {}", trace.role_name(span.cta), span.cta, span.agent.name());
            events.push(format!(
                r#"{{"ph":"M","pid":{},"tid":{thread},"name":"thread_name","args":{{"name":"{}"}}}}"#,
                span.rank,
                escape(&name)
            ));
        }
        events.push(event(trace, span, thread));
    }
    let mut out = String::from("{\"displayTimeUnit\":\"ns\",\n\"otherData\":{");
    let _ = write!(
        out,
        r#""kernel":"{}","ranks":{},"epoch":{},"times":"microseconds since the first CTA began","#,
        escape(&trace.name),
        trace.world,
        trace.epoch
    );
    let a = &trace.alignment;
    let _ = write!(
        out,
        r#""clocks":{{"shared":{},"contradiction_ns":{},"ranks":["#,
        a.shared,
        number(a.contradiction_ns)
    );
    for (i, c) in trace.clocks.iter().enumerate() {
        let (least, most) = a.bounds_ns.get(i).copied().unwrap_or((0.0, 0.0));
        let offset = a.offsets_ns.get(i).copied().unwrap_or(0.0);
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(
            out,
            r#"{comma}{{"rank":{},"tick_ns":{},"mhz":{},"lost_records":{},"disordered_records":{},"subtracted_ns":{},"offset_at_least_ns":{},"offset_at_most_ns":{}}}"#,
            c.rank,
            c.tick_ns,
            number(c.mhz),
            c.lost,
            c.disordered,
            number(offset),
            number(least),
            number(most)
        );
    }
    out.push_str("]}},\n\"traceEvents\":[\n");
    out.push_str(&events.join(",\n"));
    out.push_str("\n]}\n");
    out
}

fn event(trace: &Trace, span: &Span, thread: u32) -> String {
    let (name, category, args) = match span.what {
        What::Cta => ("in the kernel".to_string(), "cta", String::new()),
        What::Task { family, task, stalled } => (
            format!("{} {task}", trace.family(family)),
            "task",
            format!(
                r#""family":"fam{family}","task":{task},"stalled_us":{},"drained_us":{}"#,
                number(stalled[0] / 1e3),
                number(stalled[1] / 1e3)
            ),
        ),
        What::Wait { family, edge, task, on, before } => (
            format!("wait e{edge}"),
            if before { "wait for the launch before" } else { "wait" },
            format!(
                r#""family":"fam{family}","task":{task},"edge":"{}","word":{}"#,
                escape(trace.edge(edge)),
                on.offset
            ),
        ),
        What::Post { family, edge, task, to } => (
            format!("post e{edge}"),
            "post",
            format!(
                r#""family":"fam{family}","task":{task},"to_rank":{},"word":{}"#,
                // Those that hosts raise are behind all others.
                to.rank % trace.world.max(1),
                to.offset
            ),
        ),
        What::Enter { edge, offset } => {
            (format!("post e{edge}"), "post", format!(r#""to_rank":"all","word":{offset}"#))
        }
    };
    format!(
        r#"{{"ph":"X","pid":{},"tid":{thread},"ts":{},"dur":{},"name":"{}","cat":"{category}","args":{{{args}}}}}"#,
        span.rank,
        number(span.begin / 1e3),
        number((span.length() / 1e3).max(0.0)),
        escape(&name)
    )
}

/// JSON has no infinities.
fn number(x: f64) -> String {
    if x.is_finite() { format!("{x:.3}") } else { "null".into() }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out
}
