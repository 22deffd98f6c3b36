//! GEMMs.

use super::{
    Attends, Compute, Regions, Values, Write, broadcast, epilogue::apply_to, matrix,
    quant::quantised,
};
use crate::{
    context::{Context, Phase, misfit},
    error::Result,
    math::{Tile, apply, multiply_add, transpose},
    memory::within,
};
use mk_plan::{
    ALayout, BLayout, EPILOGUE_OPERANDS, EpilogueOp, MMA_STEP_BYTES, MmaTile, Operand, Region,
    cluster_part, gated, gates_operand, mma_narrow, named_operands, scales_steps,
};

impl Compute for MmaTile {
    fn moving(&self) -> &'static [Operand] {
        // Steps with factors are added where these are, at the end.
        if scales_steps(&self.epilogue) { &[] } else { &[Operand::A, Operand::B] }
    }

    fn consume(&self, context: &mut Context, _: Attends, phase: Phase) -> Result<()> {
        let parts = (self.cluster, self.block[2]);
        multiply(context, self.a_layout, self.b_layout, gated(&self.epilogue), parts, phase)
    }

    fn values(&self, to: &Write<'_>, context: &mut Context, regions: Regions) -> Values {
        broadcast(regions, |r| product(context, &self.epilogue, to.operand, r, to.phase))
    }
}

fn multiply(
    context: &mut Context,
    a_layout: ALayout,
    b_layout: BLayout,
    gated: bool,
    (parts, step): (u32, u32),
    phase: Phase,
) -> Result<()> {
    let mut sum = context.sum.take();
    if let (Some(a), Some(b)) =
        (context.latest(Operand::A, phase), context.latest(Operand::B, phase))
    {
        let (turned_a, turned_b);
        let a = if a_layout == ALayout::Km {
            turned_a = transpose(a);
            &turned_a
        } else {
            a
        };
        let b = if b_layout == BLayout::Nk {
            turned_b = transpose(b);
            &turned_b
        } else if gated {
            // `[k, 2, n]`: gates and ups side by side.
            turned_b = Tile { rows: b.rows / 2, cols: b.cols * 2, data: b.data.clone() };
            &turned_b
        } else {
            b
        };
        if a.cols != b.rows {
            return Err(misfit(format!(
                "`a` is {}x{} and `b` {}x{}",
                a.rows, a.cols, b.rows, b.cols
            )));
        }
        let c = match &mut sum {
            Some(c) => c,
            None => {
                within("elements of one tile", (a.rows * b.cols) as u64)?;
                sum.insert(Tile::zeros(a.rows, b.cols))
            }
        };
        if (c.rows, c.cols) != (a.rows, b.cols) {
            return Err(misfit("the tile changes its shape between steps"));
        }
        multiply_in_parts(c, a, b, parts, step);
    }
    context.sum = sum;
    Ok(())
}

/// `c += a * b`: each part of the steps along k is a sum of its own, and these are added in the order of k. So is each
/// step of 8-bit operands.
fn multiply_in_parts(c: &mut Tile, a: &Tile, b: &Tile, parts: u32, step: u32) {
    let narrow = mma_narrow(step);
    if parts <= 1 && !narrow {
        return multiply_add(c, a, b);
    }
    let step = step.max(1) as usize;
    let steps = a.cols.div_ceil(step) as i64;
    if parts <= 1 {
        return sum_of_parts(c, a, b, steps as u32, |part| part as usize * step, |_, c, s| *c += s);
    }
    let at = |part: u32| cluster_part(steps, part.into(), parts.into()) as usize * step;
    sum_of_parts(c, a, b, parts, at, |_, c, s| *c += s)
}

/// Part `i` begins at `at(i)` along k, and is added to an element, whose number `add` is told.
fn sum_of_parts(
    c: &mut Tile,
    a: &Tile,
    b: &Tile,
    parts: u32,
    at: impl Fn(u32) -> usize,
    add: impl Fn([usize; 2], &mut f32, f32),
) {
    for part in 0..parts {
        let (from, to) = (at(part).min(a.cols), at(part + 1).min(a.cols));
        let mut columns = Tile::zeros(a.rows, to - from);
        for row in 0..a.rows {
            let source = &a.row(row)[from..to];
            columns.data[row * (to - from)..(row + 1) * (to - from)].copy_from_slice(source);
        }
        let rows = Tile {
            rows: to - from,
            cols: b.cols,
            data: b.data[from * b.cols..to * b.cols].to_vec(),
        };
        let mut sum = Tile::zeros(c.rows, c.cols);
        multiply_add(&mut sum, &columns, &rows);
        let elements = c.data.iter_mut().zip(&sum.data).enumerate();
        elements.for_each(|(i, (c, s))| add([part as usize, i], c, *s));
    }
}

/// The sum of a task's steps along k, each times the factors of its rows and columns; nothing where nothing is loaded.
fn scaled_steps(context: &Context, epilogue: &[EpilogueOp], phase: Phase) -> Result<Option<Tile>> {
    let (Some(a), Some(b)) = (context.latest(Operand::A, phase), context.latest(Operand::B, phase))
    else {
        return Ok(None);
    };
    let b = transpose(b);
    if a.cols != b.rows {
        return Err(misfit(format!("`a` is {}x{} and `b` {}x{}", a.rows, a.cols, b.rows, b.cols)));
    }
    let (block, cols) = (MMA_STEP_BYTES as usize, b.cols.max(1));
    // Gates, then ups, each in blocks of their own.
    let halves = if gated(epilogue) { 2 } else { 1 };
    let half = (cols / halves).max(1);
    let (steps, of_half) = (a.cols.div_ceil(block), (b.cols / halves).div_ceil(block));
    let blocks = halves * of_half;
    let mut factors = [None, None];
    let named = named_operands(epilogue);
    for (op, operand) in named.filter(|(op, _)| op.scales_steps()) {
        let rows = op == EpilogueOp::ScaleSteps;
        let want = steps * if rows { a.rows } else { blocks };
        let found = context.latest(operand, phase);
        factors[usize::from(!rows)] =
            Some(found.filter(|t| t.data.len() == want).ok_or_else(|| {
                let found = found.map(|t| t.data.len());
                misfit(format!(
                    "the operand of {op:?} must have {want} elements, and has {found:?}"
                ))
            })?);
    }
    within("elements of one tile", (a.rows * b.cols) as u64)?;
    let mut sum = Tile::zeros(a.rows, b.cols);
    sum_of_parts(
        &mut sum,
        a,
        &b,
        steps as u32,
        |part| part as usize * block,
        |[k, i], c, s| {
            let row = factors[0].map_or(1.0, |f| f.data[k * a.rows + i / cols]);
            let (ups, column) = (i % cols / half, i % cols % half);
            let line = ups * of_half + column / block;
            let column = factors[1].map_or(1.0, |f| f.data[line * steps + k]);
            *c = s.mul_add(row * column, *c);
        },
    );
    Ok(Some(sum))
}

/// The tile of a GEMM that `operand` takes: the finished one, or as it is where the epilogue saves it. With nothing to
/// add up it is 0 before the epilogue.
fn product(
    context: &Context,
    epilogue: &[EpilogueOp],
    operand: Operand,
    region: &Region,
    phase: Phase,
) -> Result<Vec<f32>> {
    let scaled = match scales_steps(epilogue) {
        true => scaled_steps(context, epilogue, phase)?,
        false => None,
    };
    let mut tile = match scaled.as_ref().or(context.sum.as_ref()) {
        Some(sum) => sum.clone(),
        None => {
            let (rows, cols) = matrix(region);
            match (gated(epilogue), gates_operand(epilogue) == Some(operand)) {
                (true, true) => Tile::zeros(rows / 2, cols * 2),
                (gated, _) => Tile::zeros(rows, if gated { cols * 2 } else { cols }),
            }
        }
    };
    let mut tails = EPILOGUE_OPERANDS.iter();
    let mut kept = None;
    for op in epilogue {
        if *op == EpilogueOp::Keep {
            kept = Some(tile.clone());
            continue;
        }
        if *op == EpilogueOp::Carry {
            // To the first tiles of a sum nothing is carried.
            for t in context.all(Operand::AccIn).filter(|t| !t.data.is_empty()) {
                let (n, of) = (t.data.len(), tile.data.len());
                if n != of {
                    return Err(misfit(format!("{n} elements are carried to a tile of {of}")));
                }
                apply(*op, &mut tile, Some(t));
            }
            continue;
        }
        if op.scales_steps() {
            tails.next();
            continue;
        }
        if *op == EpilogueOp::Save {
            if tails.next() == Some(&operand) {
                return Ok(tile.data);
            }
            tile = kept.take().unwrap_or(tile);
            continue;
        }
        if let EpilogueOp::Quantize(to) = op {
            let [values, factors] = quantised(*to, &tile);
            if tails.next() == Some(&operand) {
                return Ok(factors);
            }
            tile.data = values;
            continue;
        }
        apply_to(&mut tile, *op, &mut tails, context, phase)?;
    }
    Ok(tile.data)
}
