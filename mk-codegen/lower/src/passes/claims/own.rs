//! Tensors of which each rank has its own number of rows in a launch.

use crate::passes::{
    error::{LowerError, unsupported},
    shape::{
        grouped::Combined,
        kernel::{Kernel, Op},
        map::{Map, RowWork},
    },
};

/// That these are tokens which `dispatch` takes, what goes with them, and what `combine` makes of them: copies and sums
/// of rows, which end where a rank's rows do.
///
/// # Errors
/// The first tensor that something else reads or makes.
pub(super) fn check(k: &Kernel) -> Result<(), LowerError> {
    let all = k.params.iter().chain(k.results.iter().map(|r| &r.out));
    let mut own = all.filter(|t| t.shape.iter().any(|e| e.own));
    let Some(first) = own.next() else { return Ok(()) };
    let refuse = |name: &str, why: &str| {
        let help = "let `own` rows be tokens that `dispatch` takes, their ids and weights, addends of `combine`, and \
            results of it; other rows are `dyn`, the same on all ranks";
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
                read.push(match combine.how {
                    Combined::Sum(weights) => weights,
                    Combined::Products(dy) => dy,
                });
                read.extend(combine.addend);
                made.push(combine.result);
            }
            // Rows that are not there become rows that nobody reads.
            Op::Map(Map { how: RowWork::Quant { back: false, .. }, operands, .. }) => {
                read.extend(operands);
            }
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
