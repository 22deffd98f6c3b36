//! Operations of an epilogue.

use crate::equivalence::{
    algebra::{Algebra, Function},
    context::{Context, Misfit},
    quant::quantised,
    tile::Tile,
};
use mk_dtype::Curve;
use mk_plan::{EPILOGUE_OPERANDS, EpilogueOp, Operand};

impl<E: Copy + PartialEq> Context<E> {
    /// A tile after its epilogue, or as `operand` saves it on the way.
    pub(super) fn finished<A: Algebra<Elem = E>>(
        &self,
        algebra: &mut A,
        epilogue: &[EpilogueOp],
        operand: Option<Operand>,
        blocks: &[usize],
        mut tile: Tile<E>,
    ) -> Result<Vec<E>, Misfit> {
        let mut tails = EPILOGUE_OPERANDS.iter();
        let mut kept = None;
        for op in epilogue {
            match op {
                // In the sums already.
                EpilogueOp::ScaleSteps | EpilogueOp::ScaleBlocks => {
                    tails.next();
                }
                EpilogueOp::Keep => kept = Some(tile.clone()),
                EpilogueOp::Carry => {
                    for p in self.pieces.iter().filter(|p| p.touch.operand == Operand::AccIn) {
                        if p.tile.data.len() != tile.data.len() {
                            return Err("what is carried has another size than the tile".into());
                        }
                        let both = tile.data.iter_mut().zip(&p.tile.data);
                        both.for_each(|(x, y)| *x = algebra.add(*x, *y));
                    }
                }
                EpilogueOp::Save => {
                    if tails.next().copied() == operand {
                        return Ok(tile.data);
                    }
                    tile = kept.take().unwrap_or(tile);
                }
                EpilogueOp::Quantize(to) => {
                    if blocks.len() != tile.cols {
                        return Err("columns are of no blocks".into());
                    }
                    let (rows, cols) = (tile.rows, tile.cols.max(1));
                    let n = blocks.last().map_or(0, |b| b + 1) * rows;
                    let of = |i: usize| blocks[i % cols] * rows + i / cols;
                    let made = quantised(algebra, *to, &tile.data, n, of);
                    if tails.next().copied() == operand {
                        return Ok(made.factors);
                    }
                    tile.data = made.values;
                }
                EpilogueOp::ScaleRows | EpilogueOp::ScaleColumns => {
                    let other = tails.next().and_then(|o| self.latest(*o));
                    let by_rows = *op == EpilogueOp::ScaleRows;
                    let n = if by_rows { tile.rows } else { tile.cols };
                    let Some(other) = other.filter(|o| o.data.len() == n) else {
                        return Err(format!(
                            "the operand of {op:?} has another size than the tile"
                        ));
                    };
                    let cols = tile.cols.max(1);
                    for (i, x) in tile.data.iter_mut().enumerate() {
                        let at = if by_rows { i / cols } else { i % cols };
                        *x = algebra.mul(*x, other.data[at]);
                    }
                }
                EpilogueOp::Bias
                | EpilogueOp::Mul
                | EpilogueOp::Add
                | EpilogueOp::MulSilu
                | EpilogueOp::Slope(_) => {
                    let other = tails.next().and_then(|o| self.latest(*o));
                    let n = if *op == EpilogueOp::Bias { tile.cols } else { tile.data.len() };
                    let Some(other) = other.filter(|o| o.data.len() == n) else {
                        return Err(format!(
                            "the operand of {op:?} has another size than the tile"
                        ));
                    };
                    for (x, y) in tile.data.iter_mut().zip(other.data.iter().cycle()) {
                        *x = match (op, Function::slope_of(*op)) {
                            (_, Some(slope)) => {
                                let slope = algebra.apply(slope, *y);
                                algebra.mul(*x, slope)
                            }
                            (EpilogueOp::Mul, _) => algebra.mul(*x, *y),
                            _ => algebra.add(*x, *y),
                        };
                    }
                }
                EpilogueOp::Scale(bits) => {
                    let factor = f32::from_bits(*bits);
                    tile.data.iter_mut().for_each(|x| *x = algebra.scale(*x, factor));
                }
                EpilogueOp::Widen => {}
                EpilogueOp::Swiglu => {
                    let half = tile.cols / 2;
                    let mut data = Vec::with_capacity(tile.rows * half);
                    for row in tile.data.chunks(tile.cols.max(1)) {
                        for j in 0..half {
                            let gate = algebra.apply(Function::Curve(Curve::Silu), row[j]);
                            data.push(algebra.mul(gate, row[half + j]));
                        }
                    }
                    tile = Tile { rows: tile.rows, cols: half, data };
                }
                EpilogueOp::Curve(_) | EpilogueOp::Round(_) => {
                    if let Some(f) = Function::of(*op) {
                        tile.data.iter_mut().for_each(|x| *x = algebra.apply(f, *x));
                    }
                }
            }
        }
        Ok(tile.data)
    }
}
