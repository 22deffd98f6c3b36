//! Claims an attention, or a part of its backward.

use super::{
    axes::uneven,
    builder::{Claims, tensor},
    exchange,
};
use crate::{
    graph::{Kind, Scored, Value},
    passes::{
        error::{LowerError, unsupported},
        shape::{
            attention::{Attention, Exchange, Makes, along},
            kernel::{Dsinks, Op},
            tensor::Tensor,
        },
    },
};
use mk_plan::{GradOf, MAX_ENTRIES, Mask, Operand};
use petgraph::stable_graph::NodeIndex;
use std::collections::BTreeSet;

pub(super) const CATALOGUE: &str = "one kernel holds one `attention` of the caller's tensors, whose result, with its \
     `lse` where wanted, the caller gets; or one `attention_stats`, one `attention_dsinks`, one `attention_dq`, or one \
     `attention_dk` with its `attention_dv`";

/// What an operation makes, of which scores, and the axis of its ring.
fn makes(kind: &Kind) -> Option<(Makes, Scored, Option<usize>)> {
    match *kind {
        Kind::Attention { scores, ring } => Some((Makes::Results, scores, ring)),
        Kind::AttentionStats => {
            let mask = Mask::Full;
            let scores = Scored { mask, cap: None, scale: None, packed: false, sinks: false };
            Some((Makes::Statistics, scores, None))
        }
        Kind::AttentionGrad { of, scores, ring } => Some((Makes::Gradients(of), scores, ring)),
        _ => None,
    }
}

/// Whether it is an operation that a kernel has one of.
pub(super) fn is_core(kind: &Kind) -> bool {
    makes(kind).is_some() || *kind == Kind::AttentionDsinks
}

/// Whether an operation is a further result of an attention, or of a part of its backward.
pub(super) fn goes_with(kind: &Kind, core: &Kind) -> bool {
    match kind {
        Kind::Lse => matches!(core, Kind::Attention { .. }),
        Kind::AllToAll { .. } => *core != Kind::AttentionStats,
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
        return exchange::claim(claims);
    };
    let value = claims.value(node);
    if value.kind == Kind::AttentionDsinks {
        return dsinks(claims, node);
    }
    let Some((makes, mut scores, ring)) = makes(&value.kind) else { return Ok(()) };
    let name = &value.name;
    // The axis over which a value is exchanged, and what is.
    let exchanged = |n: NodeIndex, dims: [usize; 2]| match g.graph[n].kind {
        Kind::AllToAll { axis, split, concat } if [split, concat] == dims => {
            g.operands(n).first().map(|of| (axis, *of))
        }
        _ => None,
    };
    let operands = g.operands(node);
    let mut reads = makes.reads();
    // Where documents begin, and sinks, are exchanged by nobody.
    let (attended, named) = operands.split_at(reads.len().min(operands.len()));
    let from: Option<Vec<_>> = attended.iter().map(|n| exchanged(*n, [2, 1])).collect();
    let axis = from.as_ref().and_then(|from| from.first()).map(|(axis, _)| *axis);
    let from = from.filter(|from| from.iter().all(|(along, _)| Some(*along) == axis));
    let returned = |n: NodeIndex| from.is_some() && exchanged(n, [1, 2]) == axis.map(|a| (a, node));
    let back = g.results.iter().any(|n| returned(*n));
    reads.extend(scores.sinks.then_some(Operand::Sinks));
    // A rank alone has all parts: nothing is exchanged, and nothing passed on.
    let several = |axis: &usize| claims.sizes.get(*axis).is_some_and(|ranks| *ranks > 1);
    let ring = ring.filter(several);
    let exchange = axis.filter(|axis| from.is_some() && several(axis));
    let exchange = exchange.map(|axis| Exchange { axis, back });
    let given = from.as_ref().map_or(attended.to_vec(), |f| f.iter().map(|(_, n)| *n).collect());
    let found = given.iter().chain(named).map(|n| claims.param(*n));
    let found: Option<Vec<usize>> = found.collect();
    let count = reads.len() + usize::from(scores.packed);
    let Some(found) = found.filter(|found| found.len() == count) else {
        return Err(unsupported(name, "its operands are not the caller's", CATALOGUE));
    };
    let params = &claims.kernel.params;
    if params.len() != count {
        let why = "it reads a tensor twice, or the pipeline has others";
        return Err(unsupported(name, why, CATALOGUE));
    }
    let (mut made, mut kept) = (Vec::<(Operand, usize)>::new(), Vec::<(Operand, usize)>::new());
    let mut passed: Vec<(Operand, NodeIndex, NodeIndex, usize)> = Vec::new();
    let twice = || {
        let why = "it is a result twice, or a parameter is one";
        unsupported(name, why, CATALOGUE)
    };
    for (i, n) in g.results.iter().enumerate() {
        let operand = match g.graph[*n].kind {
            Kind::Lse => Operand::Lse,
            Kind::AttentionDv => Operand::Dv,
            Kind::AllToAll { .. } if !returned(*n) => {
                // An operand that the caller gets, too.
                let at = attended.iter().position(|of| of == n).filter(|_| exchange.is_some());
                if let Some(operand) = at.and_then(|at| reads.get(at).copied()) {
                    keep(&mut kept, operand, i).ok_or_else(twice)?;
                    continue;
                }
                // A result of the attention is exchanged behind it.
                let behind = exchanged(*n, [1, 2]).filter(|_| exchange.is_none());
                let behind = behind.and_then(|(axis, of)| {
                    let operand = match g.graph[of].kind {
                        Kind::AttentionDv if g.operands(of).first() == Some(&node) => Operand::Dv,
                        _ if of == node => made_by(makes),
                        _ => return None,
                    };
                    Some((axis, of, operand))
                });
                if let Some((axis, of, operand)) = behind {
                    keep(&mut made, operand, i).ok_or_else(twice)?;
                    if several(&axis) {
                        made.pop();
                        passed.push((operand, of, *n, i));
                    }
                    continue;
                }
                let why = "it exchanges other than heads and parts of the sequence, before an attention and behind it";
                return Err(unsupported(&g.graph[*n].name, why, CATALOGUE));
            }
            _ => made_by(makes),
        };
        let by_heads = *n == node && exchange.is_some_and(|e| e.back);
        let into = if by_heads { &mut kept } else { &mut made };
        keep(into, operand, i).filter(|()| claims.param(*n).is_none()).ok_or_else(twice)?;
    }
    let documents = found.get(reads.len()).map(|i| (*i, params[*i].clone()));
    let moving = [ring, exchange.map(|e| e.axis)];
    let operands = reads.into_iter().zip(found).map(|(o, i)| {
        let of = &g.graph[claims.params[i]];
        Ok((o, i, along_moving(of, &params[i], o, moving, &claims.sizes)?))
    });
    let operands: Vec<_> = operands.collect::<Result<_, LowerError>>()?;
    let long = |(o, i, _): &(Operand, usize, Tensor)| {
        g.graph[claims.params[*i]].shape[along(*o)].capacity()
    };
    let rows = operands.iter().filter(|(o, ..)| *o != Operand::Sinks);
    let sequence = rows.map(long).max().unwrap_or(0);
    // A window that is as long as the sequence hides nothing.
    if scores.mask.window().is_some_and(|keys| i64::from(keys) >= i64::from(sequence)) {
        scores.mask = Mask::Causal;
    }
    let twice_made = |(operand, of, ..): &(Operand, NodeIndex, NodeIndex, usize)| {
        let other =
            |(o, other, ..): &&(Operand, NodeIndex, NodeIndex, usize)| o == operand && other == of;
        made.iter().any(|(o, _)| o == operand) || passed.iter().filter(other).count() > 1
    };
    if passed.iter().any(twice_made) {
        return Err(twice());
    }
    let behind: Vec<_> = passed
        .iter()
        .map(|(operand, of, node, result)| {
            let memory = tensor(&g.graph[*of], &operand.to_string(), &claims.sizes);
            (*operand, claims.made(*of, memory), *of, *node, *result)
        })
        .collect();
    let passed = behind.iter().map(|(operand, param, ..)| (*operand, *param)).collect();
    let attention =
        Attention { makes, operands, documents, made, passed, kept, scores, ring, exchange };
    check(&attention, &g.graph[node].name, &claims.sizes)?;
    let results = attention.made.iter().chain(&attention.kept).map(|(_, result)| *result);
    let results: Vec<usize> = results.collect();
    claims.add(Op::Attention(attention), results);
    behind
        .into_iter()
        .try_for_each(|(_, param, of, node, r)| exchange::add(claims, node, of, param, r))
}

/// Gradients of sinks, of the caller's statistics.
fn dsinks(claims: &mut Claims<'_>, node: NodeIndex) -> Result<(), LowerError> {
    let refuse = |why| Err(unsupported(&claims.value(node).name, why, CATALOGUE));
    let found: Vec<_> = claims.g.operands(node).iter().map(|n| claims.param(*n)).collect();
    let &[Some(stats), Some(sinks)] = &found[..] else {
        return refuse("its operands are not the caller's");
    };
    if claims.g.results != [node] {
        return refuse("it is no result, or one twice");
    }
    let rows = claims.kernel.params[stats].shape.iter().enumerate();
    if rows.into_iter().any(|(d, e)| d != along(Operand::Stats) && e.runtime_max.is_some()) {
        return refuse("a dimension other than the sequence comes with each launch");
    }
    claims.add(Op::Dsinks(Dsinks { stats, sinks, result: 0 }), [0]);
    Ok(())
}

/// The first of what it makes.
fn made_by(makes: Makes) -> Operand {
    match makes {
        Makes::Results => Operand::O,
        Makes::Statistics => Operand::Dst,
        Makes::Gradients(GradOf::Queries) => Operand::Dq,
        Makes::Gradients(_) => Operand::Dk,
    }
}

/// Adds a result; `None` where it is there.
fn keep(of: &mut Vec<(Operand, usize)>, operand: Operand, result: usize) -> Option<()> {
    let known = of.iter().any(|(other, _)| *other == operand);
    (!known).then(|| of.push((operand, result)))
}

/// An operand as ranks have it that pass keys on or exchange heads: sequences and heads that ranks along another axis
/// share are those of this rank.
///
/// # Errors
/// For those that are not as many on each, and for a sequence that ranks along several axes share otherwise.
fn along_moving(
    of: &Value,
    t: &Tensor,
    operand: Operand,
    moving: [Option<usize>; 2],
    sizes: &[i32],
) -> Result<Tensor, LowerError> {
    let sequence = (operand != Operand::Sinks).then(|| along(operand));
    let cuts = of.placement.iter().zip(sizes).enumerate();
    let cuts = cuts.filter_map(|(axis, (p, ranks))| Some((axis, p.cut()?, *ranks)));
    let cuts: Vec<_> = cuts.filter(|(.., ranks)| *ranks > 1).collect();
    let by: Vec<_> = cuts.iter().filter(|(_, dim, _)| Some(*dim) == sequence).collect();
    if by.len() > 1 && !by.iter().all(|(axis, ..)| moving.contains(&Some(*axis))) {
        let why = format!("ranks along {} axes share its sequence", by.len());
        let help =
            "shard the sequence over the axis of `ring` and that of `all_to_all`, or over one axis";
        return Err(unsupported(&of.name, why, help));
    }
    let mut own = t.clone();
    if moving == [None; 2] {
        return Ok(own);
    }
    for (axis, dim, ranks) in cuts {
        if Some(dim) == sequence || moving.contains(&Some(axis)) {
            continue;
        }
        if of.shape[dim].value % ranks != 0 {
            return Err(uneven(of, dim, of.shape[dim].value, ranks));
        }
        own.within_axis(axis);
    }
    Ok(own)
}

fn check(a: &Attention, name: &str, sizes: &[i32]) -> Result<(), LowerError> {
    let world: i32 = sizes.iter().product();
    let refuse = |why: String, help: &str| Err(unsupported(name, why, help));
    let mut all = a.made.iter().chain(&a.passed);
    if a.makes == Makes::Results && all.all(|(made, _)| *made != Operand::O) {
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
        let tokens = match a.exchange {
            // Of a sequence that ranks along both axes share, the shard of this one's.
            Some(_) => {
                let ring = a.ring.and_then(|axis| sizes.get(axis)).copied().unwrap_or(1);
                i64::from(a.tensor(Operand::Q).shape[1].value) * i64::from(ring)
            }
            None => i64::from(a.tensor(Operand::Q).widest(1)),
        };
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
    let [_, values] = a.heads();
    if !(matches!(depth, 64 | 128 | 192 | 256) && values == depth || (depth, values) == (192, 128))
    {
        let why = match values == depth {
            true => format!("its heads have {depth} elements"),
            false => format!("its heads have {depth} elements, and those of values {values}"),
        };
        return refuse(why, "use 64, 128, 192 or 256; or 192, and 128 of values");
    }
    if a.values().is_some() && a.exchange.is_some() {
        let why = "heads of values have other elements, and ranks exchange them";
        return refuse(why.into(), "exchange heads of one number of elements");
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
    let exchanges = a.exchange.is_some();
    if exchanges && !lengths.is_empty() {
        let why = "a length comes with each launch, and ranks exchange parts of the sequence";
        return refuse(why.into(), "let it be fixed");
    }
    if exchanges && q.shape[1].value != a.tensor(Operand::K).shape[1].value {
        let why = "queries and keys are not as many, and ranks exchange both";
        return refuse(why.into(), "exchange sequences of one length");
    }
    let ranks = match a.exchange {
        Some(exchange) => sizes.get(exchange.axis).copied(),
        None => q.cut(2).map(|cut| cut.ranks),
    };
    if let Some(ranks) = ranks.filter(|ranks| heads % ranks != 0 || groups % ranks != 0) {
        let why = format!("{heads} heads of queries and {groups} of keys over {ranks} ranks");
        return refuse(why, "let both be multiples of the ranks");
    }
    Ok(())
}
