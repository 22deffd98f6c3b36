//! GEMMs.

use super::{Linked, Links, Meaning, Places, Stored, Task, Work, Write};
use crate::equivalence::{
    algebra::{Algebra, add_row_times},
    context::Context,
    linker::{Linker, Matrix},
    tile::Tile,
    unroll::Touch,
};
use mk_plan::{
    ALayout, BLayout, EpilogueOp, MMA_STEP_BYTES, MmaTile, Operand, gate_bias, gated,
    gates_operand, named_operands, of_epilogue, scales_steps,
};

impl Links for MmaTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        linker.product(self.a_layout, self.b_layout, &self.epilogue, of.touches)
    }
}

impl<A: Algebra> Meaning<A> for MmaTile {
    fn moving(&self) -> &'static [Operand] {
        // Steps with factors are added where these are, at the end.
        if scales_steps(&self.epilogue) { &[] } else { &[Operand::A, Operand::B] }
    }

    fn consume(&self, context: &mut Context<A::Elem>, algebra: &mut A, _: Places) -> Work {
        context.multiply(algebra, self.a_layout, self.b_layout, gated(&self.epilogue))
    }

    fn stored(&self, to: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let [rows, cols] = to.size;
        let scaled = match scales_steps(&self.epilogue) {
            true => context.scaled_steps(algebra, &self.epilogue)?,
            false => None,
        };
        let tile = match scaled.as_ref().or(context.sum.as_ref()) {
            Some(sum) => sum.clone(),
            // Nothing is added up.
            None => match (
                gated(&self.epilogue),
                gates_operand(&self.epilogue) == Some(to.touch.operand),
            ) {
                (true, true) => Tile::filled(rows / 2, cols * 2, A::ZERO),
                (gated, _) => Tile::filled(rows, if gated { cols * 2 } else { cols }, A::ZERO),
            },
        };
        context.finished(algebra, &self.epilogue, Some(to.touch.operand), to.blocks, tile)
    }
}

impl<E: Copy + PartialEq> Context<E> {
    /// The sum of a task's steps along k, each times the factors of its rows and columns; nothing where nothing is
    /// loaded.
    fn scaled_steps<A: Algebra<Elem = E>>(
        &self,
        algebra: &mut A,
        epilogue: &[EpilogueOp],
    ) -> Result<Option<Tile<E>>, String> {
        let both = (self.latest_piece(Operand::A), self.latest_piece(Operand::B));
        let (Some(a), Some(b)) = both else { return Ok(None) };
        let ([_, depth], [columns, _]) = (&a.blocks, &b.blocks);
        let blocks = columns.last().map_or(0, |b| b + 1);
        // Gates, then ups, each in blocks of their own.
        let halves = if gated(epilogue) { 2 } else { 1 };
        let columns: Vec<usize> =
            (0..halves).flat_map(|h| columns.iter().map(move |b| h * blocks + b)).collect();
        let blocks = halves * blocks;
        let (mut left, mut right) = (a.tile.data.clone(), b.tile.data.clone());
        let (rows, k, n) = (a.tile.rows, a.tile.cols, b.tile.rows);
        if b.tile.cols != k || depth.len() != k || columns.len() != n {
            return Err(format!("`a` is {rows}x{k} and `b` {}x{n}", b.tile.cols));
        }
        let steps = depth.last().map_or(0, |b| b + 1);
        let named = named_operands(epilogue);
        for (op, operand) in named.filter(|(op, _)| op.scales_steps()) {
            let by_rows = op == EpilogueOp::ScaleSteps;
            let want = steps * if by_rows { rows } else { blocks };
            let Some(factors) = self.latest(operand).filter(|t| t.data.len() == want) else {
                return Err(format!("the operand of {op:?} has other steps than the tile"));
            };
            let scaled = if by_rows { &mut left } else { &mut right };
            for (i, x) in scaled.iter_mut().enumerate() {
                let (line, step) = (i / k.max(1), depth[i % k.max(1)]);
                let at = if by_rows { step * rows + line } else { columns[line] * steps + step };
                *x = algebra.mul(*x, factors.data[at]);
            }
        }
        let mut sum = Tile::filled(rows, n, A::ZERO);
        let mut sums = Vec::new();
        for (row, x) in sum.data.chunks_mut(n.max(1)).zip(left.chunks(k.max(1))) {
            let x = x.iter().copied().enumerate();
            add_row_times(algebra, row, &mut sums, x, |l, j| right[j * k + l]);
        }
        Ok(Some(sum))
    }

    fn multiply<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        a_layout: ALayout,
        b_layout: BLayout,
        gated: bool,
    ) -> Work {
        let (Some(a), Some(b)) = (self.latest(Operand::A), self.latest(Operand::B)) else {
            return Ok(0);
        };
        let turned;
        let a = if a_layout == ALayout::Km {
            turned = a.transposed();
            &turned
        } else {
            a
        };
        let upright;
        let (depth, cols, right) = match (b_layout, gated) {
            (BLayout::Nk, _) => {
                upright = b.transposed();
                (upright.rows, upright.cols, &upright.data)
            }
            // `[k, 2, n]`: gates and ups side by side.
            (BLayout::Kn, true) => (b.rows / 2, b.cols * 2, &b.data),
            (BLayout::Kn, false) => (b.rows, b.cols, &b.data),
        };
        if a.cols != depth {
            return Err(format!("`a` is {}x{} and `b` {depth}x{cols}", a.rows, a.cols));
        }
        let fresh = || Tile::filled(a.rows, cols, A::ZERO);
        let mut sum = self.sum.clone().unwrap_or_else(fresh);
        let mut sums = Vec::new();
        if (sum.rows, sum.cols) != (a.rows, cols) {
            return Err("the tile changes its shape between steps".into());
        }
        for (i, row) in sum.data.chunks_mut(cols.max(1)).enumerate() {
            let left = a.row(i).iter().copied().enumerate();
            add_row_times(algebra, row, &mut sums, left, |l, j| right[l * cols + j]);
        }
        let work = (a.rows * a.cols * cols) as u64;
        self.sum = Some(sum);
        Ok(work)
    }
}

impl Linker<'_, '_> {
    fn product(
        &mut self,
        a_layout: ALayout,
        b_layout: BLayout,
        epilogue: &[EpilogueOp],
        touches: &[Touch],
    ) -> Linked {
        // Ranks without rows or columns load what they have, and multiply nothing.
        let Some(c) = touches.iter().find(|t| t.operand == Operand::C) else { return Ok(()) };
        let (result, gated) = (self.matrix(c)?, gated(epilogue));
        let mut left: Option<(&Touch, Option<usize>)> = None;
        let mut right: Option<(&Touch, Option<usize>)> = None;
        for t in touches {
            match t.operand {
                Operand::A => {
                    let m = self.matrix(t)?;
                    let (rows, depth) = match a_layout {
                        ALayout::Mk => (m.rows, m.columns),
                        ALayout::Km => (m.columns, m.rows),
                    };
                    self.link((t, rows), (c, result.rows))?;
                    left = Some((t, depth));
                }
                Operand::B => {
                    let m = if gated { self.gates(t, b_layout)? } else { self.matrix(t)? };
                    let (depth, columns) = match b_layout {
                        BLayout::Kn => (m.rows, m.columns),
                        BLayout::Nk => (m.columns, m.rows),
                    };
                    self.link((t, columns), (c, result.columns))?;
                    right = Some((t, depth));
                }
                o if gates_operand(epilogue) == Some(o) => {
                    let m = self.gates(t, BLayout::Kn)?;
                    self.link((t, m.rows), (c, result.rows))?;
                    self.link((t, m.columns), (c, result.columns))?;
                }
                o if gate_bias(epilogue) == Some(o) => {
                    let m = self.gates(t, BLayout::Kn)?;
                    self.link((t, m.columns), (c, result.columns))?;
                }
                o if matches!(of_epilogue(epilogue, o), Some(EpilogueOp::Quantize(_))) => {
                    let m = self.matrix(t)?;
                    self.apart(t, m.rows);
                    self.link((t, m.columns), (c, result.rows))?;
                    self.blocks(c, result.columns);
                }
                o if of_epilogue(epilogue, o).is_some_and(EpilogueOp::scales_steps) => {
                    let rows = of_epilogue(epilogue, o) == Some(EpilogueOp::ScaleSteps);
                    let m = if rows { self.matrix(t)? } else { result };
                    if rows {
                        self.apart(t, m.rows);
                        self.link((t, m.columns), (c, result.rows))?;
                    } else {
                        let n = self.unrolled.region(t).len();
                        (0..n).for_each(|d| self.apart(t, Some(d)));
                        self.blocks(c, result.columns);
                    }
                    let of_k = |o: &&Touch| matches!(o.operand, Operand::A | Operand::B);
                    for o in touches.iter().filter(of_k) {
                        self.blocks(o, self.unrolled.region(o).len().checked_sub(1));
                    }
                }
                o => {
                    let m = self.matrix(t)?;
                    match of_epilogue(epilogue, o).and_then(EpilogueOp::vector) {
                        Some(0) => self.link((t, m.columns), (c, result.rows))?,
                        Some(_) => self.link((t, m.columns), (c, result.columns))?,
                        None => {
                            self.link((t, m.columns), (c, result.columns))?;
                            self.link((t, m.rows), (c, result.rows))?;
                        }
                    }
                }
            }
            // The newest of each meet when the later one is there.
            if let (Operand::A | Operand::B, Some(a), Some(b)) = (t.operand, left, right)
                && (a.0.phase == b.0.phase || t.phase > a.0.phase.min(b.0.phase))
            {
                let both_move = a.0.phase > 0 && b.0.phase > 0;
                if !both_move || a.0.phase == b.0.phase {
                    self.link(a, b)?;
                }
            }
        }
        Ok(())
    }

    /// Each index of a dimension is by itself.
    pub(super) fn apart(&mut self, t: &Touch, d: Option<usize>) {
        let Some(d) = d else { return };
        let (line, base, len) = self.stretch(t, d);
        (1..len).for_each(|i| self.lines.cut(line, base + i));
    }

    /// Each block of 128 of a dimension is by itself.
    pub(super) fn blocks(&mut self, t: &Touch, d: Option<usize>) {
        let Some(d) = d else { return };
        let (line, base, len) = self.stretch(t, d);
        let step = MMA_STEP_BYTES as i32;
        (1..(len + step - 1) / step).for_each(|i| self.lines.cut(line, base + i * step));
    }

    /// Rows and columns of `[k, 2, n]`, or for an operand B that lies row by row of `[2, n, k]`; the two are apart from
    /// each other.
    fn gates(&mut self, t: &Touch, layout: BLayout) -> Result<Matrix, String> {
        let n = self.unrolled.region(t).len();
        let Some(front) = n.checked_sub(3) else {
            return Err(format!("`{}` has gates and ups, and so three dimensions", t.operand));
        };
        let two = if layout == BLayout::Kn { front + 1 } else { front };
        if self.len(t, Some(two)) != 2 {
            return Err(format!("`{}` has {} of gates and ups", t.operand, self.len(t, Some(two))));
        }
        let (line, base, _) = self.stretch(t, two);
        self.lines.cut(line, base + 1);
        let rows = if layout == BLayout::Kn { front } else { front + 1 };
        Ok(Matrix { rows: Some(rows), columns: Some(front + 2) })
    }
}
