//! How much a run on the CPU takes on: a refusal is better than a run without an end.

use super::{Case, HarnessError, Layout, Result, local::placement};
use mk_syntax::{Op, Placement, ValueId};

/// Most multiply-adds of a run on the CPU, over all ranks and launches (a product of 2048 x 2048 x 2048): 10 s on two
/// cores.
pub const MAX_MACS: u64 = 1 << 33;
/// Most elements of all values of the pipeline together, each as f64.
pub const MAX_ELEMENTS: u64 = 1 << 27;

/// Multiply-adds that judging an attention takes on the host, whose rows are whole sequences: a tenth of a second.
pub(crate) const SAMPLED_WORK: u64 = 1 << 26;

/// Multiply-adds of the GEMMs, and of attention, of one launch, over all ranks. Saturates.
pub fn macs(case: Case<'_>) -> u64 {
    let mut sum = 0u64;
    for node in case.program.nodes() {
        // Scores and results: twice the queries times the keys of each. Of queries scores, their gradients, and sums;
        // of keys two sums.
        let attends = match (node.op, &node.inputs[..]) {
            (Op::Attention { scores, .. }, [q, k, ..]) => Some((*q, *k, scores, 2)),
            (Op::AttentionDq { scores, .. }, [q, _, _, k, ..]) => Some((*q, *k, scores, 3)),
            (Op::AttentionDk { scores, .. }, [k, _, q, ..]) => Some((*q, *k, scores, 4)),
            _ => None,
        };
        if let Some((q, k, scores, products)) = attends {
            let shape = case.bound.shape(q).unwrap_or(&[]);
            let length = |id| case.bound.shape(id).and_then(|s| s.get(1)).copied().unwrap_or(1);
            let (queries, keys) = (length(q), length(k));
            let all = shape.iter().fold(products * keys, |n, x| n.saturating_mul(*x));
            // Of a window the first queries see half.
            let window = scores.window.map_or(keys, |n| u64::from(n).min(keys));
            sum = sum.saturating_add(match (scores.causal, window < keys) {
                (false, _) => all,
                // Of more queries than keys the first see none, of fewer the first see some.
                (true, false) if keys >= queries => all - all / keys * queries / 2,
                (true, false) => all / queries * keys / 2,
                (true, true) => (all / keys).saturating_mul(window - window * window / (2 * keys)),
            });
            continue;
        }
        let shape = |id: &ValueId| case.bound.shape(*id).unwrap_or(&[]);
        let elements = |id: &ValueId| shape(id).iter().product::<u64>();
        let rows = |id: &ValueId| shape(id).first().copied().unwrap_or(1);
        // Every row meets one matrix.
        if let (Op::GroupedGemm { .. }, [x, w, _]) = (node.op, &node.inputs[..]) {
            let matrix = elements(w) / rows(w).max(1);
            sum = sum.saturating_add(matrix.saturating_mul(rows(x)));
            continue;
        }
        if let (Op::GroupedWgrad, [x, dy, _]) = (node.op, &node.inputs[..]) {
            sum = sum.saturating_add(elements(x).saturating_mul(elements(dy)) / rows(x).max(1));
            continue;
        }
        let (Op::Gemm { a_transposed, .. }, [a, b]) = (node.op, &node.inputs[..]) else {
            continue;
        };
        for rank in 0..case.ranks {
            let local = |value: &ValueId| {
                let ty = case.program.ty(*value)?;
                let shape = case.bound.shape(*value)?;
                // Over several axes at most as much.
                Some(match placement(&ty.placement) {
                    Ok(one) => Layout::new(shape, one, case.ranks, rank).shape(),
                    Err(_) => shape.to_vec(),
                })
            };
            let (Some(a), Some(b)) = (local(a), local(b)) else { continue };
            // Each element of operand B meets each row of A.
            let rows = a.get(usize::from(a_transposed)).copied().unwrap_or(1);
            let product = b.iter().fold(rows, |n, x| n.saturating_mul(*x));
            sum = sum.saturating_add(product);
        }
    }
    sum
}

/// Refuses what takes too long or too much memory on the CPU.
///
/// # Errors
/// [`HarnessError::TooLarge`].
pub fn check_work(case: Case<'_>, launches: u32) -> Result<()> {
    let wanted = macs(case).saturating_mul(launches.into());
    if wanted > MAX_MACS {
        return Err(HarnessError::TooLarge { what: "multiply-adds", wanted, limit: MAX_MACS });
    }
    let mut wanted = 0u64;
    for i in 0..case.program.n_values() {
        let id = ValueId::new(i);
        let shape = case.bound.shape(id).unwrap_or(&[]);
        let contributions = match case.program.ty(id).map(|t| t.placement.as_slice()) {
            Some(all) if all.contains(&Placement::Partial) => case.ranks as u64,
            _ => 1,
        };
        let elements = shape.iter().fold(contributions, |n, x| n.saturating_mul(*x));
        wanted = wanted.saturating_add(elements);
    }
    if wanted > MAX_ELEMENTS {
        return Err(HarnessError::TooLarge { what: "elements", wanted, limit: MAX_ELEMENTS });
    }
    Ok(())
}
