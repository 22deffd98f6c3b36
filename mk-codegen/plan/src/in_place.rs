//! Results that may lie in the memory of a parameter: each element of the parameter is read only by the elementwise
//! operation that makes the element of the result in its place, and the value that is stored is made of the value that
//! was read.
//!
//! The verifier's rule 5 has every element of a result written by exactly one task. So no other task meets either, and
//! within the task the data's way through registers orders the two, element by element, whatever stores the result.

use super::{Access, BufId, EPILOGUE_OPERANDS, Expr, Family, Mode, Operand, Plan, Space, Var};
use std::collections::BTreeMap;

/// By result, the parameter in whose memory it may lie. Of a plan that the verifier accepts.
pub fn in_place(plan: &Plan) -> BTreeMap<BufId, BufId> {
    let of_space = |space| plan.buffers.iter().filter(move |(_, b)| b.space == space);
    let results = of_space(Space::Out).filter_map(|(result, out)| {
        let fits = |parameter: &BufId| {
            let x = &plan.buffers[*parameter];
            (x.dtype, &x.shape, &x.pitch) == (out.dtype, &out.shape, &out.pitch)
                && is_updated(plan, *parameter, result)
        };
        let found = of_space(Space::In).map(|(id, _)| id).find(fits)?;
        Some((result, found))
    });
    results.collect()
}

/// Whether every task that touches one of the two reads of `parameter` the elements of `result` that it makes of them.
fn is_updated(plan: &Plan, parameter: BufId, result: BufId) -> bool {
    let touches =
        |f: &&Family| f.accesses.iter().any(|a| a.buffer == parameter || a.buffer == result);
    let mut families = plan.families.values().filter(touches).peekable();
    families.peek().is_some() && families.all(|f| updates(f, parameter, result))
}

fn updates(f: &Family, parameter: BufId, result: BufId) -> bool {
    let of = |buffer: BufId| -> Vec<&Access> {
        f.accesses.iter().filter(|a| a.buffer == buffer).collect()
    };
    let (reads, writes) = (of(parameter), of(result));
    let ([read], [write]) = (reads.as_slice(), writes.as_slice()) else { return false };
    let own = |a: &Access| a.rank == Expr::Var(Var::RANK) && a.each.is_none();
    f.leaf.product().is_some()
        && EPILOGUE_OPERANDS.contains(&read.operand)
        && (read.mode, write.mode, write.operand) == (Mode::Read, Mode::Write, Operand::C)
        && own(read)
        && own(write)
        && (&read.region, &read.when) == (&write.region, &write.when)
}
