//! Where the tiles of a GEMM go: always to one place, or each to one of several.

use super::operands::rows_of;
use crate::emit::{EmitError, Result, chain::half, context::Emitter};
use mk_plan::{Access, FamId, Family, Mode, Operand};

/// The places, which have the same columns, rows and element type.
///
/// # Errors
/// [`EmitError::Refused`] where a task goes to none or several, or adds to what is there.
pub(in crate::emit) fn targets<'p>(e: &Emitter<'p>, id: FamId) -> Result<Vec<&'p Access>> {
    let f = &e.plan.families[id];
    let all: Vec<_> = f.accesses.iter().filter(|a| a.operand == Operand::C).collect();
    if let Some(c) = all.iter().find(|c| c.mode != Mode::Write) {
        let what = format!("no template adds tiles to what {} holds: write them", c.buffer);
        return EmitError::refuse(&f.name, what);
    }
    if all.iter().any(|c| c.region.len() < 2) {
        return EmitError::refuse(&f.name, "operands are matrices");
    }
    for c in &all {
        if rows_of(e, id, c)? + 2 != c.region.len() && half(e.plan, c).is_none() {
            let what = format!("rows of a tile are contiguous in {}", c.buffer);
            return EmitError::refuse(&f.name, what);
        }
    }
    let of = |a: &Access, back: usize| a.region.get(a.region.len().wrapping_sub(back)).cloned();
    let rows = |a: &Access| of(a, if half(e.plan, a).is_some() { 3 } else { 2 }).map(|r| r.1);
    let fits = match all.as_slice() {
        [only] => only.when.is_none(),
        [one, ..] => {
            let alike = |a: &&Access| {
                let placed = of(one, 1) == of(a, 1) && rows(one) == rows(a);
                placed && a.when.is_some() && a.each.is_none()
            };
            all.iter().all(alike) && one_of(e, id, &all)?
        }
        [] => false,
    };
    if fits {
        return Ok(all);
    }
    let what = "a tile goes to one place, or under conditions of which one holds to one of several";
    EmitError::refuse(&f.name, what)
}

/// Whether each task makes exactly one of some accesses.
fn one_of(e: &Emitter<'_>, id: FamId, all: &[&Access]) -> Result<bool> {
    for rank in 0..e.plan.mesh.size() as usize {
        for task in e.points.tasks(id, rank, 1)? {
            let mut made = 0;
            for x in all {
                e.points.for_each::<EmitError>(&task, 0, None, x.when.as_ref(), |_| {
                    made += 1;
                    Ok(())
                })?;
            }
            if made != 1 {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// An expression that depends on the place a tile goes to, as C; `texts` has one for each place.
pub(in crate::emit) fn choose(
    e: &Emitter<'_>,
    f: &Family,
    targets: &[&Access],
    texts: Vec<String>,
) -> Result<String> {
    let Some((last, others)) = texts.split_last().filter(|_| texts.len() == targets.len()) else {
        let what = format!("{} texts of {} places", texts.len(), targets.len());
        return Err(EmitError::internal("emit/arch/sm90/mma/targets.rs", what));
    };
    if others.iter().all(|text| text == last) {
        return Ok(last.clone());
    }
    let chosen = others.iter().zip(targets);
    let chosen: String =
        chosen.map(|(text, c)| format!("{} ? {text} : ", e.condition(f, c))).collect();
    Ok(chosen + last)
}
