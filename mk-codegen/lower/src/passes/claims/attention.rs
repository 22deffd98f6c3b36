//! Claims an attention, or a part of its backward.

use super::builder::Claims;
use crate::{
    graph::{Kind, Scored},
    passes::{
        error::{LowerError, unsupported},
        shape::{
            attention::{Attention, Exchange, Makes, along},
            kernel::Op,
            tensor::Tensor,
        },
    },
};
use mk_plan::{GradOf, MAX_ENTRIES, Mask, Operand};
use petgraph::stable_graph::NodeIndex;
use std::collections::BTreeSet;

pub(super) const CATALOGUE: &str = "one kernel holds one `attention` of the caller's tensors, whose result, with its `lse` where wanted, the caller gets; \
     or one `attention_stats`, one `attention_dq`, or one `attention_dk` with its `attention_dv`";

/// What an operation makes, of which scores, and whether over a ring.
fn makes(kind: &Kind) -> Option<(Makes, Scored, bool)> {
    match *kind {
        Kind::Attention { scores, ring } => Some((Makes::Results, scores, ring)),
        Kind::AttentionStats => {
            let mask = Mask::Full;
            let scores = Scored { mask, cap: None, scale: None, packed: false, sinks: false };
            Some((Makes::Statistics, scores, false))
        }
        Kind::AttentionGrad { of, scores, ring } => Some((Makes::Gradients(of), scores, ring)),
        _ => None,
    }
}

/// Whether it is an operation that a kernel has one of.
pub(super) fn is_core(kind: &Kind) -> bool {
    makes(kind).is_some()
}

/// Whether an operation is a further result of an attention, or of a part of its backward.
pub(super) fn goes_with(kind: &Kind, core: &Kind) -> bool {
    match kind {
        Kind::Lse | Kind::AllToAll { .. } => matches!(core, Kind::Attention { .. }),
        Kind::AttentionDv => matches!(core, Kind::AttentionGrad { of: GradOf::Keys, .. }),
        _ => false,
    }
}

/// The attention of a pipeline, if it has one: its operands are the caller's, and so is all that it makes.
///
/// # Errors
/// For operands that are not, and for sizes and placements that no pass lowers.
pub(super) fn claim(claims: &mut Claims<'_>) -> Result<(), LowerError> {
    let g = claims.g;
    let Some(node) = claims.all(is_core).first().copied() else {
        let alone = claims.all(|kind| matches!(kind, Kind::AllToAll { .. }));
        return alone.first().map_or(Ok(()), |node| {
            let why = "no attention stands before or behind it";
            Err(unsupported(&g.graph[*node].name, why, CATALOGUE))
        });
    };
    let value = claims.value(node);
    let Some((makes, mut scores, ring)) = makes(&value.kind) else { return Ok(()) };
    let name = &value.name;
    let exchanged = |n: NodeIndex, dims: [usize; 2]| match g.graph[n].kind {
        Kind::AllToAll { split, concat } if [split, concat] == dims => {
            g.operands(n).first().copied()
        }
        _ => None,
    };
    let operands = g.operands(node);
    let mut reads = makes.reads();
    let (ours, named) = operands.split_at(reads.len().min(operands.len()));
    let from: Option<Vec<_>> = ours.iter().map(|n| exchanged(*n, [2, 1])).collect();
    let from = from.map(|from| [&from, named].concat());
    reads.extend(scores.sinks.then_some(Operand::Sinks));
    let back = g.results.iter().any(|n| exchanged(*n, [1, 2]) == Some(node));
    let exchange = match (&from, back) {
        // A rank alone has all parts: nothing is exchanged.
        _ if claims.ranks == 1 => Exchange::Nothing,
        (None, _) => Exchange::Nothing,
        (Some(_), false) => Exchange::Operands,
        (Some(_), true) => Exchange::Both,
    };
    let operands = from.unwrap_or_else(|| operands.clone());
    let found: Option<Vec<usize>> = operands.into_iter().map(|n| claims.param(n)).collect();
    let count = reads.len() + usize::from(scores.packed);
    let Some(found) = found.filter(|found| found.len() == count) else {
        return Err(unsupported(name, "its operands are not the caller's", CATALOGUE));
    };
    let params = &claims.kernel.params;
    if params.len() != count {
        let why = "it reads a tensor twice, or the pipeline has others";
        return Err(unsupported(name, why, CATALOGUE));
    }
    let mut made: Vec<(Operand, usize)> = Vec::new();
    for (i, n) in g.results.iter().enumerate() {
        let operand = match g.graph[*n].kind {
            Kind::Lse => Operand::Lse,
            Kind::AttentionDv => Operand::Dv,
            Kind::AllToAll { .. }
                if exchanged(*n, [1, 2]) != Some(node)
                    || exchange != Exchange::Both && claims.ranks > 1 =>
            {
                let why = "it exchanges other than heads and parts of the sequence, before an attention and behind it";
                return Err(unsupported(&g.graph[*n].name, why, CATALOGUE));
            }
            _ => match makes {
                Makes::Results => Operand::O,
                Makes::Statistics => Operand::Dst,
                Makes::Gradients(GradOf::Queries) => Operand::Dq,
                Makes::Gradients(GradOf::Keys) => Operand::Dk,
            },
        };
        if made.iter().any(|(other, _)| *other == operand) || claims.param(*n).is_some() {
            let why = "it is a result twice, or a parameter is one";
            return Err(unsupported(name, why, CATALOGUE));
        }
        made.push((operand, i));
    }
    let documents = found.get(reads.len()).map(|i| (*i, params[*i].clone()));
    let operands = reads.into_iter().zip(found).map(|(o, i)| (o, i, params[i].clone()));
    let operands: Vec<(Operand, usize, Tensor)> = operands.collect();
    let long = |(o, _, t): &(Operand, usize, Tensor)| t.shape[along(*o)].capacity();
    let rows = operands.iter().filter(|(o, ..)| *o != Operand::Sinks);
    let sequence = rows.map(long).max().unwrap_or(0);
    // A window that is as long as the sequence hides nothing.
    if scores.mask.window().is_some_and(|keys| i64::from(keys) >= i64::from(sequence)) {
        scores.mask = Mask::Causal;
    }
    let attention = Attention { makes, operands, documents, made, scores, ring, exchange };
    check(&attention, name, claims.ranks as i32)?;
    let results: Vec<usize> = attention.made.iter().map(|(_, result)| *result).collect();
    let id = claims.push(Op::Attention(attention));
    results.into_iter().for_each(|r| claims.kernel.results[r].of = Some(id));
    Ok(())
}

fn check(a: &Attention, name: &str, world: i32) -> Result<(), LowerError> {
    let refuse = |why: String, help: &str| Err(unsupported(name, why, help));
    if a.makes == Makes::Results && a.made.iter().all(|(made, _)| *made != Operand::O) {
        return refuse("its result is no result of the pipeline".into(), CATALOGUE);
    }
    let mut lengths = BTreeSet::new();
    for (operand, _, t) in &a.operands {
        for (d, e) in t.shape.iter().enumerate().filter(|(_, e)| e.runtime_max.is_some()) {
            let name = e.symbol.as_deref().unwrap_or("a dimension");
            if d != along(*operand) {
                let why =
                    format!("`{name}` comes with each launch, and is no length of a sequence");
                return refuse(why, "let only the dimension of the sequence be `dyn`");
            }
            lengths.insert(name);
        }
    }
    if let Some((_, documents)) = &a.documents {
        let fixed = documents.shape.iter().all(|e| e.runtime_max.is_none());
        if !lengths.is_empty() || !fixed {
            let why = "the length of packed sequences, or the number of documents, comes with each launch";
            let help = "fix both, as most of them that there may be: empty documents, and tokens behind the last one, \
                take no time";
            return refuse(why.into(), help);
        }
        let tokens = i64::from(a.tensor(Operand::Q).widest(1));
        let entries = (2 * tokens + i64::from(documents.widest(0))) * i64::from(world);
        if entries > MAX_ENTRIES as i64 {
            let why = format!(
                "{tokens} packed tokens have tables of {entries} numbers on all ranks, and there is room for \
                 {MAX_ENTRIES}"
            );
            return refuse(why, "pack fewer tokens");
        }
    }
    if lengths.len() > 1 {
        let why = format!("{} lengths come with each launch", lengths.len());
        return refuse(why, "let queries and keys have one length, or fix one of both");
    }
    let wide = if a.makes == Makes::Statistics { Operand::O } else { Operand::Q };
    let q = a.tensor(wide);
    let depth = q.shape[3].value;
    if !matches!(depth, 64 | 128 | 192 | 256) {
        let why = format!("its heads have {depth} elements");
        return refuse(why, "use 64, 128, 192 or 256");
    }
    if depth > 128 && a.makes != Makes::Results {
        let why = format!("gradients of heads of {depth} take more registers than a thread has");
        return refuse(why, "use heads of 64 or 128 where gradients are taken");
    }
    let heads = q.shape[2].value;
    let groups = match a.makes {
        Makes::Statistics => heads,
        _ => a.tensor(Operand::K).shape[2].value,
    };
    if heads % groups != 0 {
        let why = format!("{heads} heads of queries cannot share {groups} of keys evenly");
        return refuse(why, "let the heads of queries be a multiple of those of keys");
    }
    let exchanges = a.exchange != Exchange::Nothing;
    if exchanges && !lengths.is_empty() {
        let why = "a length comes with each launch, and ranks exchange parts of the sequence";
        return refuse(why.into(), "let it be fixed");
    }
    if exchanges && q.shape[1].value != a.tensor(Operand::K).shape[1].value {
        let why = "queries and keys are not as many, and ranks exchange both";
        return refuse(why.into(), "exchange sequences of one length");
    }
    if a.exchange == Exchange::Both && a.made.len() > 1 {
        let why = "its `lse` stays where its result does not";
        return refuse(why.into(), "return `lse` beside a result that is not exchanged");
    }
    if (exchanges || q.is_sharded(2)) && (heads % world != 0 || groups % world != 0) {
        let why = format!("{heads} heads of queries and {groups} of keys over {world} ranks");
        return refuse(why, "let both be multiples of the ranks");
    }
    Ok(())
}
