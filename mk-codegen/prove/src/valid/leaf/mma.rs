//! GEMMs.

use super::{Rules, epilogue::tails};
use crate::valid::touched::{Touched, last_three, made_of, matrix, of, one_place};
use mk_plan::{
    ALayout, BLayout, EpilogueOp, Family, MMA_STEP_BYTES, MmaTile, Operand, QuantTile, gate_bias,
    gated, gates_operand, of_epilogue, scales_steps,
};

impl Rules for MmaTile {
    fn misfit(&self, f: &Family, touched: &[Touched<'_>]) -> Result<(), String> {
        if f.inner.is_some() && scales_steps(&self.epilogue) {
            return Err("factors of steps are those of a task without an inner loop".into());
        }
        product(self.a_layout, self.b_layout, &self.epilogue, touched)
    }

    fn contributions(&self) -> &'static [Operand] {
        &[Operand::AccIn]
    }
}

fn product(
    a_layout: ALayout,
    b_layout: BLayout,
    epilogue: &[EpilogueOp],
    touched: &[Touched<'_>],
) -> Result<(), String> {
    // Ranks without rows or columns load what they have, and multiply nothing.
    if of(touched, Operand::C).all(|c| c.extents.is_none()) {
        return Ok(());
    }
    let gated = gated(epilogue);
    let halves = if gated { 2 } else { 1 };
    one_place(touched, &[Operand::A, Operand::B])?;
    made_of(touched, &[Operand::A, Operand::B])?;
    tails(epilogue, touched)?;
    let left = |a: &Touched<'_>| -> Result<Option<[i64; 2]>, String> {
        let found = matrix(a)?;
        Ok(found.map(|[x, y]| if a_layout == ALayout::Km { [x, y] } else { [y, x] }))
    };
    let right = |b: &Touched<'_>| factor(b_layout, gated, b);
    // Rows, and columns (gates and ups).
    let (mut rows, mut columns) = (None, None);
    let same = |known: &mut Option<i64>, n: i64, what: &str, t: &Touched<'_>| {
        let found = *known.get_or_insert(n);
        if found == n {
            return Ok(());
        }
        Err(format!("`{}` has {n} {what}, and others {found}", t.operand))
    };
    for a in of(touched, Operand::A) {
        let Some([depth, m]) = left(a)? else { continue };
        same(&mut rows, m, "rows", a)?;
        meets(depth, a, touched, Operand::B, |b| right(b).map(|f| f.map_or(0, |f| f[0])))?;
    }
    for b in of(touched, Operand::B) {
        let Some([depth, n]) = right(b)? else { continue };
        same(&mut columns, n, "columns", b)?;
        meets(depth, b, touched, Operand::A, |a| left(a).map(|f| f.map_or(0, |f| f[0])))?;
    }
    for t in touched {
        match t.operand {
            Operand::A | Operand::B => {}
            Operand::C | Operand::AccIn => {
                let Some([m, n]) = matrix(t)? else { continue };
                same(&mut rows, m, "rows", t)?;
                same(&mut columns, n * halves, "columns", t)?;
            }
            o if gates_operand(epilogue) == Some(o) => {
                let Some([m, two, n]) = last_three(t)? else { continue };
                gates_and_ups(t.operand, two)?;
                same(&mut rows, m, "rows", t)?;
                same(&mut columns, n * halves, "columns", t)?;
            }
            e if matches!(of_epilogue(epilogue, e), Some(EpilogueOp::Quantize(_))) => {
                let Some([blocks, m]) = matrix(t)? else { continue };
                same(&mut rows, m, "rows", t)?;
                let block = i64::from(QuantTile::BLOCK);
                let own = columns.map_or(0, |n: i64| (n / halves + block - 1) / block);
                let first = of(touched, Operand::C).find_map(|c| c.extents?.last().copied());
                if blocks != own || first.is_some_and(|(base, _)| base % block != 0) {
                    return Err(format!("`{e}` has {blocks} rows of blocks, which are {own}"));
                }
            }
            e if of_epilogue(epilogue, e).is_some_and(EpilogueOp::scales_steps) => {
                let by_columns = of_epilogue(epilogue, e) == Some(EpilogueOp::ScaleBlocks) && gated;
                let found = match by_columns {
                    true => last_three(t)?
                        .map(|[two, lines, n]| gates_and_ups(t.operand, two).map(|()| [lines, n])),
                    false => matrix(t)?.map(Ok),
                };
                let Some([lines, n]) = found.transpose()? else { continue };
                let block = i64::from(MMA_STEP_BYTES);
                let depth = of(touched, Operand::A).find_map(|a| left(a).ok().flatten());
                let steps = depth.map_or(0, |[depth, _]| (depth + block - 1) / block);
                let (found, along) = match of_epilogue(epilogue, e) {
                    Some(EpilogueOp::ScaleSteps) => {
                        same(&mut rows, n, "rows", t)?;
                        (lines, "rows")
                    }
                    _ => (n, "columns"),
                };
                if found != steps {
                    return Err(format!("`{e}` has {found} {along} of steps, which are {steps}"));
                }
                let blocks = columns.map_or(0, |n: i64| (n / halves + block - 1) / block);
                if along == "columns" && lines != blocks {
                    return Err(format!("`{e}` has {lines} rows of blocks, which are {blocks}"));
                }
            }
            e if gate_bias(epilogue) == Some(e) => {
                let Some([one, two, n]) = last_three(t)? else { continue };
                gates_and_ups(e, two)?;
                if one != 1 {
                    return Err(format!("`{e}` has {one} vectors, and a tile is of one expert"));
                }
                same(&mut columns, n * halves, "columns", t)?;
            }
            e => {
                let which = of_epilogue(epilogue, e);
                let Some([m, n]) = matrix(t)? else { continue };
                let vector = which.and_then(EpilogueOp::vector);
                if vector.is_some() && m != 1 {
                    return Err(format!("`{e}` has {m} rows: a vector has one"));
                }
                match vector {
                    Some(0) => same(&mut rows, n, "rows", t)?,
                    Some(_) => same(&mut columns, n * halves, "columns", t)?,
                    None => {
                        same(&mut columns, n * halves, "columns", t)?;
                        same(&mut rows, m, "rows", t)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// A factor meets the latest part of the other one, as deep as it is. One that comes first meets it later.
fn meets(
    depth: i64,
    t: &Touched<'_>,
    touched: &[Touched<'_>],
    other: Operand,
    depth_of: impl Fn(&Touched<'_>) -> Result<i64, String>,
) -> Result<(), String> {
    let theirs = match of(touched, other).filter(|o| o.step <= t.step).last() {
        Some(o) => depth_of(o)?,
        None if of(touched, other).next().is_some() => return Ok(()),
        None => 0,
    };
    if theirs == depth {
        return Ok(());
    }
    Err(format!("`{}` has a K of {depth}, and `{other}` of {theirs}", t.operand))
}

/// K and columns (gate and up projections) of an operand B.
fn factor(layout: BLayout, gated: bool, b: &Touched<'_>) -> Result<Option<[i64; 2]>, String> {
    if !gated {
        let found = matrix(b)?;
        return Ok(found.map(|[x, y]| if layout == BLayout::Nk { [y, x] } else { [x, y] }));
    }
    let Some([x, y, z]) = last_three(b)? else { return Ok(None) };
    let (depth, two, n) = if layout == BLayout::Nk { (z, x, y) } else { (x, y, z) };
    gates_and_ups(b.operand, two)?;
    Ok(Some([depth, 2 * n]))
}

fn gates_and_ups(operand: Operand, n: i64) -> Result<(), String> {
    if n == 2 {
        return Ok(());
    }
    Err(format!("`{operand}` has {n} of gates and ups, which are 2"))
}
