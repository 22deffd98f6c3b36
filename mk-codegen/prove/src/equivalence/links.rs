//! Which dimensions of a task's operands are the same index.

use super::{
    cells::{Lines, Stretch},
    error::FieldError,
    leaf::{paired, sources},
    unroll::{TaskRun, Touch, Unrolled},
};
use mk_plan::{
    ALayout, BLayout, EPILOGUE_OPERANDS, EpilogueOp, GradOf, Leaf, Operand, gated, saves_gates,
};

/// Adds the links of all tasks. `line_of` gives the first line of a slab, `sequence` is the line of places in a sequence.
pub(super) fn tasks(
    lines: &mut Lines,
    unrolled: &Unrolled<'_>,
    line_of: impl Fn(u32) -> u32,
    sequence: u32,
) -> Result<(), FieldError> {
    for (i, task) in unrolled.tasks.iter().enumerate() {
        let touches = &unrolled.touches[task.touches.start as usize..task.touches.end as usize];
        let mut linker = Linker { lines, unrolled, line_of: &line_of, sequence };
        for t in touches {
            for d in 0..unrolled.region(t).len() {
                let stretch = linker.stretch(t, d);
                linker.lines.stretch(stretch);
            }
        }
        linker
            .task(i as u32, task, touches)
            .map_err(|message| FieldError::misfit(unrolled.place(i), message))?;
    }
    Ok(())
}

struct Linker<'l, 'a, F> {
    lines: &'l mut Lines,
    unrolled: &'l Unrolled<'a>,
    line_of: &'l F,
    sequence: u32,
}

/// Rows and columns of a tile: which dimensions they are. Of one row, none is.
#[derive(Clone, Copy)]
struct Matrix {
    rows: Option<usize>,
    columns: Option<usize>,
}

impl<F: Fn(u32) -> u32> Linker<'_, '_, F> {
    fn stretch(&self, t: &Touch, d: usize) -> Stretch {
        let (base, len) = self.unrolled.region(t)[d];
        ((self.line_of)(t.slab) + d as u32, base, len)
    }

    fn task(&mut self, number: u32, task: &TaskRun, touches: &[Touch]) -> Result<(), String> {
        match &self.unrolled.plan.families[task.family].leaf {
            Leaf::CopyTile { .. } | Leaf::HostCopy | Leaf::NicSend => self.copy(task, touches),
            Leaf::ReduceTile { epilogue } => self.sum(epilogue, touches),
            Leaf::MmaTile { a_layout, b_layout, epilogue, .. } => {
                self.product(*a_layout, *b_layout, epilogue, touches)
            }
            Leaf::AttendTile { .. } => self.attend(number, touches),
            Leaf::StatsTile { .. } => self.statistics(touches),
            Leaf::AttendGradTile { of, .. } => self.gradients(number, *of, touches),
            Leaf::Signal | Leaf::Enter | Leaf::Tabulate { .. } => Ok(()),
        }
    }

    /// The dimensions that have more than one element.
    fn plain(&self, t: &Touch) -> Vec<usize> {
        let region = self.unrolled.region(t).iter().enumerate();
        region.filter(|(_, d)| d.1 != 1).map(|(i, _)| i).collect()
    }

    fn matrix(&self, t: &Touch) -> Result<Matrix, String> {
        let region = self.unrolled.region(t);
        let last = region.len().checked_sub(1);
        let mut rows = (0..last.unwrap_or(0)).filter(|d| region[*d].1 != 1);
        match (rows.next(), rows.next()) {
            (rows, None) => Ok(Matrix { rows, columns: last }),
            _ => Err(format!("`{}` has more than two dimensions", t.operand)),
        }
    }

    fn len(&self, t: &Touch, d: Option<usize>) -> i32 {
        d.map_or(1, |d| self.unrolled.region(t)[d].1)
    }

    /// Two dimensions are the same index; none stands for one of a single element.
    fn link(
        &mut self,
        (a, i): (&Touch, Option<usize>),
        (b, j): (&Touch, Option<usize>),
    ) -> Result<(), String> {
        let (n, m) = (self.len(a, i), self.len(b, j));
        if n != m {
            return Err(format!("`{}` has {n} where `{}` has {m}", a.operand, b.operand));
        }
        if let (Some(i), Some(j)) = (i, j)
            && n > 1
        {
            let (x, y) = (self.stretch(a, i), self.stretch(b, j));
            self.lines.link(x, y);
        }
        Ok(())
    }

    /// Two regions have the same elements in the same order.
    fn alike(&mut self, a: &Touch, b: &Touch) -> Result<(), String> {
        let (x, y) = (self.plain(a), self.plain(b));
        if x.len() != y.len() {
            return Err(format!("`{}` and `{}` have other dimensions", a.operand, b.operand));
        }
        for (i, j) in x.into_iter().zip(y) {
            self.link((a, Some(i)), (b, Some(j)))?;
        }
        Ok(())
    }

    fn copy(&mut self, task: &TaskRun, touches: &[Touch]) -> Result<(), String> {
        for w in touches.iter().filter(|t| t.write) {
            let mut from = touches.iter().copied().enumerate().collect();
            sources(&mut from, w.phase, task.last);
            match paired(&from, w.each)[..] {
                [] => return Err("nothing is copied to `dst`".into()),
                [one] => self.alike(&touches[one], w)?,
                ref several => self.concatenated(touches, several, w)?,
            }
        }
        Ok(())
    }

    /// Sources one after the other: each takes some of the destination's first dimension, or of its second where it takes one of the first.
    fn concatenated(
        &mut self,
        touches: &[Touch],
        several: &[usize],
        w: &Touch,
    ) -> Result<(), String> {
        let to = self.plain(w);
        let mut at = 0;
        for t in several.iter().map(|i| &touches[*i]) {
            let from = self.plain(t);
            // Dimensions behind the one that is put together.
            let behind = to.len().saturating_sub(1).min(from.len());
            for (i, j) in from[from.len() - behind..].iter().zip(&to[to.len() - behind..]) {
                self.link((t, Some(*i)), (w, Some(*j)))?;
            }
            let (Some(d), true) = (to.first(), from.len() <= behind + 1 && behind + 1 == to.len())
            else {
                return Err("`src` are not put together along the first dimension of `dst`".into());
            };
            let (line, base, len) = self.stretch(w, *d);
            let n = if from.len() > behind { self.len(t, Some(from[0])) } else { 1 };
            if at + n > len {
                return Err("`src` have more rows than `dst`".into());
            }
            self.lines.stretch((line, base + at, n));
            if from.len() > behind {
                let x = self.stretch(t, from[0]);
                self.lines.link(x, (line, base + at, n));
            }
            at += n;
        }
        match to.first() {
            Some(d) if at == self.len(w, Some(*d)) => Ok(()),
            _ => Err("`src` have fewer rows than `dst`".into()),
        }
    }

    fn sum(&mut self, epilogue: &[EpilogueOp], touches: &[Touch]) -> Result<(), String> {
        let mut all = touches.iter().filter(|t| t.operand != Operand::W);
        let is_bias = |o| of_epilogue(epilogue, o) == Some(EpilogueOp::Bias);
        let Some(first) = all.find(|t| !is_bias(t.operand)) else { return Ok(()) };
        for t in touches.iter().filter(|t| t.operand != Operand::W) {
            if is_bias(t.operand) {
                let (x, y) = (self.matrix(t)?.columns, self.matrix(first)?.columns);
                self.link((t, x), (first, y))?;
            } else {
                self.alike(first, t)?;
            }
        }
        Ok(())
    }

    fn product(
        &mut self,
        a_layout: ALayout,
        b_layout: BLayout,
        epilogue: &[EpilogueOp],
        touches: &[Touch],
    ) -> Result<(), String> {
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
                Operand::E0 if saves_gates(epilogue) => {
                    let m = self.gates(t, BLayout::Kn)?;
                    self.link((t, m.rows), (c, result.rows))?;
                    self.link((t, m.columns), (c, result.columns))?;
                }
                o => {
                    let m = self.matrix(t)?;
                    self.link((t, m.columns), (c, result.columns))?;
                    if of_epilogue(epilogue, o) != Some(EpilogueOp::Bias) {
                        self.link((t, m.rows), (c, result.rows))?;
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

    /// Rows and columns of `[k, 2, n]`, or for an operand B that lies row by row of `[2, n, k]`; the two are apart from each other.
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

    /// Rows of results, gradients, logarithms and statistics are queries; of the four statistics each is by itself.
    fn statistics(&mut self, touches: &[Touch]) -> Result<(), String> {
        let Some(o) = touches.iter().find(|t| t.operand == Operand::O) else { return Ok(()) };
        let of_o = self.matrix(o)?;
        for t in touches {
            let m = self.matrix(t)?;
            let (rows, columns) = match t.operand {
                Operand::Lse => (self.plain(t).first().copied(), None),
                Operand::Dst => (m.rows, None),
                _ => (m.rows, m.columns),
            };
            self.link((t, rows), (o, of_o.rows))?;
            if columns.is_some() {
                self.link((t, columns), (o, of_o.columns))?;
            }
            if t.operand == Operand::Dst {
                self.cut_statistics(t, m);
            }
        }
        Ok(())
    }

    fn cut_statistics(&mut self, t: &Touch, m: Matrix) {
        let (line, base, len) = self.stretch(t, m.columns.unwrap_or(0));
        (1..len).for_each(|i| self.lines.cut(line, base + i));
    }

    /// Gradients: rows that are queries, rows that are keys, and as many columns as heads have.
    fn gradients(&mut self, number: u32, of: GradOf, touches: &[Touch]) -> Result<(), String> {
        let q = |t: &&Touch| t.operand == Operand::Q;
        let [scores, worth] =
            [Operand::K, Operand::V].map(|o| touches.iter().find(|t| t.operand == o));
        for t in touches {
            let m = self.matrix(t)?;
            // Columns of keys go with queries, those of values with their gradients.
            let wide = match t.operand {
                Operand::Q | Operand::K | Operand::Dq | Operand::Dk => scores,
                _ => worth,
            };
            if t.operand == Operand::Stats {
                self.cut_statistics(t, m);
            } else if let Some(wide) = wide {
                let columns = self.matrix(wide)?.columns;
                self.link((t, m.columns), (wide, columns))?;
            }
            // Rows of the tile, or of this step's block.
            let moves = of.moving().contains(&t.operand);
            let beside = touches.iter().find(|o| match moves {
                true => o.operand == of.moving()[0] && o.phase == t.phase,
                false => o.operand == of.held()[0],
            });
            if let Some(beside) = beside {
                let rows = self.matrix(beside)?.rows;
                self.link((t, m.rows), (beside, rows))?;
            }
        }
        // Who is masked follows from places in the sequence, which are one index for queries and keys.
        for t in touches.iter().filter(|t| t.operand == of.moving()[0]) {
            let Some(at) = self.unrolled.positions.get(&(number, t.phase)).copied() else {
                continue;
            };
            let held = touches.iter().find(|h| h.operand == of.held()[0]);
            for t in [Some(t), held].into_iter().flatten() {
                let at = if q(&t) { at[0] } else { at[1] };
                if at < 0 {
                    return Err(format!("`{}` is at {at} of its sequence", t.operand));
                }
                let rows = self.matrix(t)?.rows;
                let place = (self.sequence, at, self.len(t, rows));
                match rows {
                    Some(d) => {
                        let own = self.stretch(t, d);
                        self.lines.link(own, place);
                    }
                    None => self.lines.stretch(place),
                }
            }
        }
        Ok(())
    }

    fn attend(&mut self, number: u32, touches: &[Touch]) -> Result<(), String> {
        let find = |o| touches.iter().find(|t| t.operand == o);
        let (q, v) = (find(Operand::Q), find(Operand::V));
        for t in touches {
            let m = self.matrix(t)?;
            match t.operand {
                Operand::Q => {}
                Operand::K => {
                    // Who is masked follows from places in the sequence, which are one index for queries and keys.
                    if let (Some(at), Some(q)) =
                        (self.unrolled.positions.get(&(number, t.phase)), q)
                    {
                        let queries = self.matrix(q)?.rows;
                        for (t, rows, at) in [(q, queries, at[0]), (t, m.rows, at[1])] {
                            if at < 0 {
                                return Err(format!("`{}` is at {at} of its sequence", t.operand));
                            }
                            let place = (self.sequence, at, self.len(t, rows));
                            match rows {
                                Some(d) => {
                                    let own = self.stretch(t, d);
                                    self.lines.link(own, place);
                                }
                                None => self.lines.stretch(place),
                            }
                        }
                    }
                    if let Some(q) = q {
                        let columns = self.matrix(q)?.columns;
                        self.link((t, m.columns), (q, columns))?;
                    }
                    let values =
                        touches.iter().find(|v| v.operand == Operand::V && v.phase == t.phase);
                    if let Some(v) = values {
                        let rows = self.matrix(v)?.rows;
                        self.link((t, m.rows), (v, rows))?;
                    }
                }
                Operand::V => {
                    if let Some(v) = v {
                        let columns = self.matrix(v)?.columns;
                        self.link((t, m.columns), (v, columns))?;
                    }
                }
                Operand::Lse => {
                    if let Some(q) = q {
                        let rows = self.matrix(q)?.rows;
                        let plain = self.plain(t);
                        self.link((t, plain.first().copied()), (q, rows))?;
                    }
                }
                o => {
                    if let Some(q) = q {
                        let rows = self.matrix(q)?.rows;
                        self.link((t, m.rows), (q, rows))?;
                    }
                    if matches!(o, Operand::StatIn | Operand::StatOut) {
                        // Maximum and sum.
                        let (line, base, _) = self.stretch(t, m.columns.unwrap_or(0));
                        self.lines.cut(line, base + 1);
                    } else if let Some(v) = v {
                        let columns = self.matrix(v)?.columns;
                        self.link((t, m.columns), (v, columns))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The operation whose operand this is.
fn of_epilogue(epilogue: &[EpilogueOp], operand: Operand) -> Option<EpilogueOp> {
    let place = EPILOGUE_OPERANDS.iter().position(|e| *e == operand)?;
    epilogue.iter().filter(|op| op.operand().is_some()).nth(place).copied()
}
