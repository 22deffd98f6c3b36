//! Placements that fit: edits of the text are tried, one or two at a time, and the help of a mistake in placements
//! names those after which the text is accepted. Where there are none, the help of the catalogue leads on.
//!
//! Only texts of a usual size are tried, so that no input keeps the checker busy.

use crate::ast::{ArgValue, Chain, Operand, PlacementKind, Source, Stage, Word};
use crate::diag::Sink;
use crate::ops::{self, OpKind};
use crate::span::Span;

/// Longer texts keep the help of the catalogue.
const MAX_BYTES: usize = 2048;
/// Mistakes of one text for which edits are tried.
const MAX_MISTAKES: usize = 4;
/// Edits that are tried in pairs, where no single one helps.
const MAX_PAIRED: usize = 24;
/// Other placements that are tried for a mistake.
const MAX_DECLARED: usize = 64;
/// Dimensions along which sums are scattered for a trial.
const MAX_CUT: usize = 3;
/// Parameters that a help line names.
const MAX_NAMED: usize = 2;

/// Text in place of a range of the source.
#[derive(Clone, Debug)]
struct Edit {
    span: Span,
    text: String,
    says: Says,
}

/// How the help words it; equal openings are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Says {
    /// ``write `gather ->` before `gemm` ``
    Write { op: &'static str, before: String },
    /// ``write `ring(k, v) -> attention(q)` ``
    Instead { text: String },
    /// ``declare `w` `@ partial` ``
    Declare { name: String, placement: String },
    /// ``remove `gather` ``
    Remove { op: String },
}

/// Replaces the help of mistakes in placements by edits after which the text is accepted.
pub(crate) fn repair(source: &str, tree: &Source<'_>, sink: &mut Sink) {
    if source.len() > MAX_BYTES {
        return;
    }
    let placed: Vec<(usize, Span, String)> = sink
        .iter()
        .enumerate()
        .filter(|(_, (_, text))| text.is_placement)
        .map(|(i, (span, text))| (i, *span, text.message.clone()))
        .collect();
    for (i, span, message) in placed.into_iter().take(MAX_MISTAKES) {
        let edits = edits(source, tree, span, &message);
        let single: Vec<&Edit> = edits.iter().filter(|edit| fits(source, &[edit])).collect();
        let help = if single.is_empty() { pair(source, &edits) } else { one_of(&single) };
        if let Some(help) = help {
            sink.set_help(i, help);
        }
    }
}

/// Whether an edited text has no mistake.
fn fits(source: &str, edits: &[&Edit]) -> bool {
    let mut order: Vec<&&Edit> = edits.iter().collect();
    order.sort_by_key(|edit| edit.span.start);
    let mut text = source.to_owned();
    for edit in order.iter().rev() {
        text.replace_range(edit.span.start..edit.span.end, &edit.text);
    }
    crate::read::read(&text, &mut Sink::default()).0.is_some()
}

/// All edits that may help a mistake at `span`, those nearest to it first.
fn edits(source: &str, tree: &Source<'_>, span: Span, message: &str) -> Vec<Edit> {
    let lets = tree.body.lets.iter().map(|binding| &binding.chain);
    let is_bare = tree.signature.is_none();
    let mut all: Vec<Edit> = lets
        .chain(&tree.body.results)
        .flat_map(|chain| of_chain(source, chain, span, is_bare))
        .collect();
    let removal = |edit: &Edit| matches!(edit.says, Says::Remove { .. });
    let removals: Vec<Edit> = all.iter().filter(|e| removal(e)).cloned().collect();
    all.retain(|edit| !removal(edit));
    let mut declared = declarations(tree);
    let here = &source[span.start..span.end];
    declared.sort_by_key(|edit| match &edit.says {
        Says::Declare { name, .. } if here == name => 0,
        Says::Declare { name, .. } if message.contains(&format!("`{name}`")) => 1,
        _ => 2,
    });
    all.extend(declared.into_iter().take(MAX_DECLARED));
    all.extend(removals);
    all
}

/// Other placements of parameters.
fn declarations(tree: &Source<'_>) -> Vec<Edit> {
    let mut edits = Vec::new();
    for param in tree.signature.iter().flat_map(|s| &s.params) {
        let Some(ty) = &param.ty else { continue };
        let after = Span { start: ty.dims_span.end, end: ty.dims_span.end };
        let written = ty.placements.iter().map(|p| (p.span, p.axis.map(|a| a.text), Some(p.kind)));
        let places: Vec<_> = match ty.placements.is_empty() {
            true => vec![(after, None, None)],
            false => written.collect(),
        };
        for (span, axis, now) in places {
            for placement in candidates(ty.dims.len(), axis, now) {
                let at = if now.is_none() { " @ " } else { "" };
                let text = format!("{at}{placement}");
                let says = Says::Declare { name: param.name.text.into(), placement };
                edits.push(Edit { span, text, says });
            }
        }
    }
    edits
}

/// Placements of a tensor over one axis, but the one that it has.
fn candidates(n_dims: usize, axis: Option<&str>, now: Option<PlacementKind>) -> Vec<String> {
    let of = |word: &str| axis.map_or(word.to_owned(), |axis| format!("{word}({axis})"));
    let cut = |word: &str, dim: usize| match axis {
        Some(axis) => format!("{word}({dim}, {axis})"),
        None => format!("{word}({dim})"),
    };
    let now = now.map(|kind| match kind {
        PlacementKind::Shard(dim) => cut("shard", dim.value as usize),
        PlacementKind::Zigzag(dim) => cut("zigzag", dim.value as usize),
        PlacementKind::Replicate => of("replicate"),
        PlacementKind::Partial => of("partial"),
    });
    let mut all = vec![of("replicate")];
    all.extend((0..n_dims).map(|dim| cut("shard", dim)));
    // Only sequences of attention are cut so.
    all.extend((n_dims == 4).then(|| cut("zigzag", 1)));
    all.push(of("partial"));
    all.retain(|placement| Some(placement) != now.as_ref());
    all
}

/// Collectives before the stage of a mistake, and without the stage.
fn of_chain(source: &str, chain: &Chain<'_>, span: Span, is_bare: bool) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (i, stage) in chain.stages.iter().enumerate() {
        let Some(stage) = stage else { continue };
        let touches = |s: Span| s.start < span.end && span.start < s.end;
        if !touches(stage.name.span) && !stage.args.iter().any(|arg| touches(arg.span)) {
            continue;
        }
        let input = chain.input.filter(|x| i == 0 && stage.name.span.start < x.word.span.start);
        let collective = |kind| {
            use OpKind::{AllReduce, AllToAll, Gather, ReduceScatter};
            matches!(kind, Gather | ReduceScatter | AllReduce | AllToAll)
        };
        if ops::find(stage.name.text).is_some_and(|op| collective(op.kind)) {
            if stage.name.text == "reduce_scatter" {
                edits.extend((0..MAX_CUT).filter_map(|dim| along(source, stage, dim)));
            }
            edits.extend(without(source, stage, input.map(|x| x.word.text)));
            continue;
        }
        if let (Some(q), [Some(k), Some(v)]) = (input, [0, 1].map(|i| plain(stage, i)))
            && stage.name.text == "attention"
        {
            let text = format!("ring({}, {}) -> attention({}", k.text, v.text, q.word.text);
            let span = Span { start: stage.name.span.start, end: v.span.end };
            edits.push(Edit { span, says: Says::Instead { text: format!("{text})") }, text });
        }
        // A bare name has the placement that the next operation wants.
        if input.is_some() && is_bare {
            continue;
        }
        for op in ["gather", "reduce_scatter", "all_reduce"] {
            let says = Says::Write { op, before: stage.name.text.into() };
            let start = stage.name.span.start;
            let (span, text) = match (input, stage.args.first()) {
                (None, _) => (Span { start, end: start }, format!("{op} -> ")),
                // `gemm(x, w)` is `x -> gemm(w)`.
                (Some(input), Some(arg)) if input.transposed.is_none() => (
                    Span { start, end: arg.span.start },
                    format!("{op}({}) -> {}(", input.word.text, stage.name.text),
                ),
                _ => continue,
            };
            edits.push(Edit { span, text, says });
        }
    }
    edits
}

/// `reduce_scatter(axis, dim = 1)` in place of one that names no dimension.
fn along(source: &str, stage: &Stage<'_>, dim: usize) -> Option<Edit> {
    if stage.args.iter().any(|arg| arg.key.is_some()) {
        return None;
    }
    let args = stage.args.iter().map(|arg| arg.text.to_owned());
    let args: Vec<_> = args.chain([format!("dim = {dim}")]).collect();
    let text = format!("reduce_scatter({})", args.join(", "));
    let span = Span { start: stage.name.span.start, end: end(source, stage)? };
    Some(Edit { span, says: Says::Instead { text: text.clone() }, text })
}

/// Where a stage ends.
fn end(source: &str, stage: &Stage<'_>) -> Option<usize> {
    let end = stage.name.span.end;
    let rest = &source[end..];
    if rest.trim_start().starts_with('(') { Some(end + rest.find(')')? + 1) } else { Some(end) }
}

/// A tensor that is an argument by position.
fn plain<'a>(stage: &Stage<'a>, i: usize) -> Option<Word<'a>> {
    match stage.args.get(i).map(|arg| (arg.key, arg.value)) {
        Some((None, ArgValue::Name(Operand { word, transposed: None }))) => Some(word),
        _ => None,
    }
}

/// The text without a collective; `input` is that of a first one, `gather(x)`.
fn without(source: &str, stage: &Stage<'_>, input: Option<&str>) -> Option<Edit> {
    let (start, end) = (stage.name.span.start, end(source, stage)?);
    let (start, text) = match input {
        Some(input) => (start, input.to_owned()),
        None => (source[..start].rfind("->")?, String::new()),
    };
    let says = Says::Remove { op: stage.name.text.into() };
    Some(Edit { span: Span { start, end }, text, says })
}

/// Any one of some edits, as a help line.
fn one_of(edits: &[&Edit]) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let write = edits.iter().filter_map(|edit| match &edit.says {
        Says::Write { op, before } => Some((*op, before)),
        _ => None,
    });
    let write: Vec<_> = write.collect();
    if let Some((_, before)) = write.first() {
        let ops: Vec<_> = write.iter().map(|(op, _)| format!("`{op} ->`")).collect();
        parts.push(format!("write {} before `{before}`", listed(&ops)));
    }
    parts.extend(edits.iter().filter_map(|edit| match &edit.says {
        Says::Instead { text } => Some(format!("write `{text}`")),
        _ => None,
    }));
    let mut names: Vec<&str> = Vec::new();
    for edit in edits {
        if let Says::Declare { name, .. } = &edit.says
            && !names.contains(&name.as_str())
        {
            names.push(name);
        }
    }
    for name in names.into_iter().take(MAX_NAMED) {
        let placements: Vec<_> = edits
            .iter()
            .filter_map(|edit| match &edit.says {
                Says::Declare { name: of, placement } if of == name => {
                    Some(format!("`@ {placement}`"))
                }
                _ => None,
            })
            .collect();
        parts.push(format!("declare `{name}` {}", listed(&placements)));
    }
    for edit in edits {
        if let Says::Remove { op } = &edit.says {
            parts.push(format!("remove `{op}`"));
        }
    }
    (!parts.is_empty()).then(|| parts.join(", or "))
}

/// The first two edits that help together: of declarations, or of a collective and a declaration.
fn pair(source: &str, edits: &[Edit]) -> Option<String> {
    let tried = edits.iter().filter(|edit| !matches!(edit.says, Says::Remove { .. }));
    let tried: Vec<&Edit> = tried.take(MAX_PAIRED).collect();
    let pairs = tried.iter().enumerate().flat_map(|(i, a)| {
        let others = tried[i + 1..].iter();
        others.map(move |b| (*a, *b))
    });
    for (a, b) in pairs {
        let Says::Declare { name, placement } = &b.says else { continue };
        let first = match &a.says {
            Says::Declare { name: other, .. } if other == name => continue,
            Says::Declare { name, placement } => format!("declare `{name}` `@ {placement}` and"),
            Says::Write { op, before } => format!("write `{op} ->` before `{before}` and declare"),
            _ => continue,
        };
        if fits(source, &[a, b]) {
            return Some(format!("{first} `{name}` `@ {placement}`"));
        }
    }
    None
}

/// `a`, `b` or `c`.
fn listed(words: &[String]) -> String {
    match words {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        words => words.join(""),
    }
}
