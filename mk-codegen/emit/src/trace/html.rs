//! A trace as one HTML page that needs nothing else: a timeline by rank and role, down to single CTAs, that zooms.

use super::{Agent, Trace, What, json::escape};
use mk_abi::count;
use std::fmt::Write;

/// The page, with places for its title and its data.
const PAGE: &str = include_str!("timeline.html");
const AGENTS: [Agent; 6] = [
    Agent::Loader,
    Agent::Storer,
    Agent::Enter,
    Agent::Frame,
    Agent::Compute(0),
    Agent::Compute(1),
];

/// The page of a trace, under that of a prediction of the same kernel if there is one. Opens in any browser, without a
/// network.
pub fn html(trace: &Trace, predicted: Option<&Trace>) -> String {
    let length = predicted.map_or(0.0, Trace::length).max(trace.length());
    let which =
        if trace.epoch == 0 { "predicted".into() } else { format!("launch {}", trace.epoch) };
    let (us, ranks) = (trace.length() / 1e3, count(trace.world, "rank"));
    let title = format!("{}: {us:.1} us, {which} on {ranks}", trace.name);
    let mut data = format!(r#"{{"title":"{}","length":{length:.0},"#, escape(&title));
    let agents = AGENTS.map(|a| format!("\"{}\"", a.name())).join(",");
    let families =
        list(trace.families.iter().map(|f| format!(r#"[{},"{}"]"#, f.id, escape(&f.name))));
    let edges = list(trace.edges.iter().map(|e| format!(r#"[{},"{}"]"#, e.id, escape(&e.text))));
    let roles = list(
        trace
            .roles
            .iter()
            .map(|r| format!(r#"["{}",{},{}]"#, escape(&r.name), r.first_cta, r.ctas)),
    );
    let _ = write!(
        data,
        r#""agents":[{agents}],"families":[{families}],"edges":[{edges}],"roles":[{roles}],"panels":["#
    );
    if let Some(predicted) = predicted {
        panel(&mut data, "predicted", predicted);
        data.push(',');
        panel(&mut data, "measured", trace);
    } else {
        panel(&mut data, "", trace);
    }
    data.push_str("]}");
    // Within a script element no text may end it.
    let data = data.replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    PAGE.replacen("@TITLE@", &title, 1).replacen("@DATA@", &data, 1)
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

fn panel(data: &mut String, name: &str, trace: &Trace) {
    let ranks = list(trace.ranks().map(|r| r.to_string()));
    let spans = list(trace.spans.iter().map(|s| {
        let (kind, family, edge, task) = match s.what {
            What::Task { family, task, .. } => (0, i64::from(family), -1, task),
            What::Wait { family, edge, task, .. } => (1, i64::from(family), i64::from(edge), task),
            What::Post { family, edge, task, .. } => (2, i64::from(family), i64::from(edge), task),
            What::Enter { edge, .. } => (2, -1, i64::from(edge), 0),
            What::Cta => (3, -1, -1, 0),
        };
        let (begin, length) = (s.begin.max(0.0), s.length().max(0.0));
        format!(
            "[{},{},{},{kind},{family},{edge},{task},{begin:.0},{length:.0}]",
            s.rank,
            s.cta,
            s.agent.place()
        )
    }));
    let _ = write!(data, r#"{{"name":"{name}","ranks":[{ranks}],"spans":[{spans}]}}"#);
}
