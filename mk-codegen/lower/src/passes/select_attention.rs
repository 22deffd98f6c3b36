//! Recognises a pipeline that is one attention, or a part of its backward, and refuses what no pass lowers.

use super::error::{LowerError, unsupported};
use super::shape::{
    attention::{Attention, Makes, along},
    tensor::Tensor,
};
use crate::graph::{Kind, OpGraph, Value};
use mk_plan::{GradOf, Operand};
use mk_syntax::Placement;
use petgraph::stable_graph::NodeIndex;
use std::collections::BTreeSet;

const CATALOGUE: &str = "one kernel holds one `attention` of the caller's tensors, whose result, with its `lse` where wanted, the caller gets; \
     or one `attention_stats`, one `attention_dq`, or one `attention_dk` with its `attention_dv`";

/// What an operation makes, and by which mask, factor and ring.
fn makes(kind: &Kind) -> Option<(Makes, bool, Option<u32>, bool)> {
    match *kind {
        Kind::Attention { causal, scale, ring } => Some((Makes::Results, causal, scale, ring)),
        Kind::AttentionStats => Some((Makes::Statistics, false, None, false)),
        Kind::AttentionGrad { of, causal, scale, ring } => {
            Some((Makes::Gradients(of), causal, scale, ring))
        }
        _ => None,
    }
}

/// The attention of a pipeline; `None` for one that has none.
///
/// # Errors
/// For a pipeline that has more than one attention, or other operations, and for sizes and placements that no pass lowers.
pub(super) fn attention(g: &OpGraph, ranks: u32) -> Result<Option<Attention>, LowerError> {
    let all = g.graph.node_indices();
    let mut found = all.filter_map(|n| Some((n, makes(&g.graph[n].kind)?)));
    let Some((node, (makes, causal, scale, ring))) = found.next() else { return Ok(None) };
    let name = g.graph[node].name.clone();
    let beside = |n: &NodeIndex| match g.graph[*n].kind {
        Kind::Lse => makes == Makes::Results,
        Kind::AttentionDv => makes == Makes::Gradients(GradOf::Keys),
        Kind::Param => true,
        _ => *n == node,
    };
    if let Some(other) = g.graph.node_indices().find(|n| !beside(n)) {
        let why = format!("an `{name}` is in the same pipeline");
        return Err(unsupported(&g.graph[other].name, why, CATALOGUE));
    }
    let params: Vec<NodeIndex> =
        g.graph.node_indices().filter(|n| g.graph[*n].kind == Kind::Param).collect();
    let place = |n: NodeIndex| params.iter().position(|p| *p == n);
    let found: Option<Vec<usize>> = g.operands(node).into_iter().map(place).collect();
    let reads = makes.reads();
    let Some(found) = found.filter(|found| found.len() == reads.len()) else {
        return Err(unsupported(&name, "its operands are not the caller's", CATALOGUE));
    };
    if params.len() != reads.len() {
        let why = "it reads a tensor twice, or the pipeline has others";
        return Err(unsupported(&name, why, CATALOGUE));
    }
    let mut made = Vec::new();
    for n in &g.results {
        let operand = match g.graph[*n].kind {
            Kind::Lse => Operand::Lse,
            Kind::AttentionDv => Operand::Dv,
            _ => match makes {
                Makes::Results => Operand::O,
                Makes::Statistics => Operand::Dst,
                Makes::Gradients(GradOf::Queries) => Operand::Dq,
                Makes::Gradients(GradOf::Keys) => Operand::Dk,
            },
        };
        if made.contains(&operand) || params.contains(n) {
            let why = "it is a result twice, or a parameter is one";
            return Err(unsupported(&name, why, CATALOGUE));
        }
        made.push(operand);
    }
    let results = g.results.iter().zip(&g.result_names);
    let attention = Attention {
        name: g.name.clone(),
        makes,
        params: params.iter().map(|n| tensor(&g.graph[*n], &g.graph[*n].name)).collect(),
        operands: reads.into_iter().zip(found).collect(),
        results: results.map(|(n, name)| tensor(&g.graph[*n], name)).collect(),
        made,
        causal,
        scale,
        ring,
    };
    check(&attention, &name, ranks as i32)?;
    Ok(Some(attention))
}

fn check(a: &Attention, name: &str, world: i32) -> Result<(), LowerError> {
    let refuse = |why: String, help: &str| Err(unsupported(name, why, help));
    if a.makes == Makes::Results && !a.made.contains(&Operand::O) {
        return refuse("its result is no result of the pipeline".into(), CATALOGUE);
    }
    let mut lengths = BTreeSet::new();
    for (operand, at) in &a.operands {
        let t = &a.params[*at];
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
    if lengths.len() > 1 {
        let why = format!("{} lengths come with each launch", lengths.len());
        return refuse(why, "let queries and keys have one length, or fix one of both");
    }
    let wide = if a.makes == Makes::Statistics { Operand::O } else { Operand::Q };
    let q = a.tensor(wide);
    let depth = q.shape[3].value;
    if !matches!(depth, 64 | 128) {
        let why = format!("its heads have {depth} elements");
        return refuse(why, "use 64 or 128; 192 and 256 are not supported yet");
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
    if q.placement == Placement::Shard(2) && (heads % world != 0 || groups % world != 0) {
        let why = format!("{heads} heads of queries and {groups} of keys over {world} ranks");
        return refuse(why, "let both be multiples of the ranks");
    }
    Ok(())
}

fn tensor(v: &Value, name: &str) -> Tensor {
    let placement = v.placement.first().copied().unwrap_or(Placement::Replicate);
    Tensor { name: name.into(), dtype: v.dtype, shape: v.shape.clone(), placement }
}
