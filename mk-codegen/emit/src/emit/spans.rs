//! In a traced kernel, the statements that record a wait or a post beside making it.

use super::error::{EmitError, Result};
use mk_plan::{EdgeId, Entity, Family, Plan};

/// A wait or a post with a record of it. One statement, as the call is. With `all`, every lane of a warp makes the
/// call, and the first one speaks for them.
pub(super) fn around(call: &str, kind: &str, edge: EdgeId, word: &str, all: bool) -> String {
    let id = edge.index();
    let who = if all { "if (lane_index() == 0) " } else { "" };
    format!(
        "{{ const u32 begin_ = trace_clock(); {call} \
         {who}trace_signal(params.header, TraceKind::{kind}, work.family, {id}, work.task, {word}, begin_); }}"
    )
}

/// A word that hosts raise on some rank.
pub(super) fn net(rank: &str, word: &str) -> String {
    format!("trace_net(params.header, {rank}, {word})")
}

/// A record of the word that a send raises there, before its command.
pub(super) fn send(edge: EdgeId) -> String {
    let (id, word) = (edge.index(), net("work.peer", "work.remote_word"));
    format!(
        "if (work.remote_word != kNoWord) trace_signal(params.header, TraceKind::Post, work.family, {id}, work.task, \
         {word}, trace_clock());"
    )
}

/// The entry's posts with a record of them.
///
/// # Errors
/// [`EmitError::Internal`] if no family announces by that edge.
pub(super) fn enter(plan: &Plan, edge: EdgeId) -> Result<String> {
    let makes = |f: &Family| f.leaf.enters() && f.posts.iter().any(|p| p.edge == edge);
    let family = plan.families.iter().find(|(_, f)| makes(f)).map(|(id, _)| id.index());
    let family = family.ok_or_else(|| {
        EmitError::internal("emit/spans.rs", format!("{edge} is no announcement's post"))
    })?;
    let id = edge.index();
    Ok(format!(
        "{{ const u32 begin_ = trace_clock(); post_entered<edge::{edge}>(ctx, lane_index(), 32); \
         if (lane_index() == 0) trace_signal(params.header, TraceKind::Enter, {family}, {id}, 0, \
         ctx.signal(0, ctx.entered + params.header.rank), begin_); }}"
    ))
}
