//! Tensors of which each rank has its own number of rows in a launch.

use crate::{
    graph::{Kind, OpGraph},
    passes::{
        error::{LowerError, unsupported},
        shape::{
            grouped::Combined,
            kernel::{Kernel, Op},
            map::{Map, RowWork},
        },
    },
};

/// Tokens whose number comes with each launch become each rank's own, where their rows have weights, or were dispatched
/// before: tables of slots are made of the experts of all tokens, which are there, then, as no expert's. Of ranks along
/// one axis, each has its part.
pub(in crate::passes) fn share_tokens(g: &mut OpGraph, sizes: &[i32]) {
    let of = |kind: fn(&Kind) -> bool| g.graph.node_indices().find(|n| kind(&g.graph[*n].kind));
    let rows = of(|k| matches!(k, Kind::GroupedGemm { .. } | Kind::GroupedWgrad { .. }));
    let dispatch = of(|k| matches!(k, Kind::Dispatch { .. }));
    // Of rows, matrices or gradients, and what says whose rows they are.
    let route = rows.and_then(|rows| g.operands(rows).get(2).copied());
    let Some(ids) = route.map(|n| &g.graph[n]).filter(|ids| ids.shape.len() == 2) else { return };
    let weighed = of(|k| matches!(k, Kind::Weigh | Kind::Grads)).is_some();
    let plain = dispatch.is_some_and(|n| g.operands(n).len() < 3);
    if sizes.len() > 1 || plain && !weighed {
        return;
    }
    let tokens = ids.shape[0].clone();
    if tokens.runtime_max.is_none() {
        return;
    }
    let all = g.graph.node_weights_mut().flat_map(|v| v.shape.first_mut());
    for e in all.filter(|e| e.symbol == tokens.symbol) {
        e.value = e.capacity();
        (e.runtime_max, e.may_be_zero, e.own, e.of_launch) = (None, false, true, true);
    }
}

/// That these are tokens which `dispatch` takes, what goes with them, and what `combine` makes of them: copies and sums
/// of rows, which end where a rank's rows do.
///
/// # Errors
/// The first tensor that something else reads or makes.
pub(super) fn check(k: &Kernel) -> Result<(), LowerError> {
    let all = k.params.iter().chain(k.results.iter().map(|r| &r.out));
    let mut own = all.filter(|t| t.shape.iter().any(|e| e.own));
    let Some(first) = own.next() else { return Ok(()) };
    let of_launch = first.shape.iter().any(|e| e.of_launch);
    let refuse = |name: &str, why: &str| {
        let help = match of_launch {
            true => {
                "let their number be fixed: of tokens that `dispatch` takes with weights, or of rows that another \
                kernel dispatched, it may come with each launch where nothing else reads or makes them"
            }
            false => {
                "let `own` rows be tokens that `dispatch` takes, their ids and weights, addends of `combine`, and \
                results of it; other rows are `dyn`, the same on all ranks"
            }
        };
        Err(unsupported(name, why, help))
    };
    let (mut read, mut made) = (Vec::new(), Vec::new());
    let mut tokens = None;
    for op in k.ops.iter() {
        match op {
            Op::Ragged(ragged) => {
                tokens = k.params[ragged.counts].shape.first();
                read.push(ragged.counts);
                let route = ragged.route.as_ref();
                read.extend(route.into_iter().flat_map(|r| [r.x, r.weights]).flatten());
            }
            Op::Combine(combine) => {
                match combine.how {
                    Combined::Sum(given) | Combined::Products(given) => read.push(given),
                    Combined::Elements => {}
                }
                read.extend(combine.addend);
                made.push(combine.result);
            }
            // Rows that are not there become rows that nobody reads.
            Op::Map(Map { how: RowWork::Quant { back: false, .. }, operands, .. }) => {
                read.extend(operands);
            }
            Op::Grads(grads) => read.push(grads.weights),
            Op::Grouped(_) | Op::Wgrad(_) => {}
            _ => return refuse(&first.name, "a dense operation stands beside its rows"),
        }
    }
    let Some(tokens) = tokens.filter(|e| e.own) else {
        return refuse(
            &first.name,
            "each rank has its own number of its rows, and they are no tokens",
        );
    };
    let given = k.params.iter().enumerate().map(|(i, t)| (t, read.contains(&i)));
    let results = k.results.iter().enumerate().map(|(i, r)| (&r.out, made.contains(&i)));
    for (t, known) in given.chain(results) {
        let rows = t.shape.first().filter(|e| e.own);
        if rows.is_some_and(|rows| !known || rows != tokens) {
            return refuse(
                &t.name,
                "each rank has its own number of its rows, and they are no tokens",
            );
        }
        if !t.even(0) && rows.is_some() {
            let why =
                format!("a bound of {} rows, which ranks have no equal parts of", t.shape[0].value);
            return Err(unsupported(&t.name, why, "let the bound be a multiple of the ranks"));
        }
    }
    Ok(())
}
