//! What leaves compute, element by element: as the executor has it (`sim/compute.rs`), in another arithmetic.

use super::{
    algebra::{Algebra, Function},
    attend::Attention,
    budget::EXPONENTIAL,
    gradients::{Block, Gradients, statistics},
    tile::Tile,
    unroll::Touch,
};
use mk_plan::{
    ALayout, BLayout, EPILOGUE_OPERANDS, EpilogueOp, Factors, Family, GradOf, Leaf, Operand, Point,
    gated, saves_gates,
};

/// What a touch has read.
pub(super) struct Piece<E> {
    pub touch: Touch,
    pub tile: Tile<E>,
}

/// What a task has read and computed so far.
pub(super) struct Context<E> {
    pub pieces: Vec<Piece<E>>,
    sum: Option<Tile<E>>,
    attention: Option<Attention<E>>,
    gradients: Option<Gradients<E>>,
}

impl<E> Default for Context<E> {
    fn default() -> Context<E> {
        Context { pieces: Vec::new(), sum: None, attention: None, gradients: None }
    }
}

/// Why a task computes nothing.
type Misfit = String;

/// Sources of a copy or reduction that is stored in `phase`: at the end of the task all of them, in a step those of the step, or
/// of the start if the step has none; in the order of steps, repetitions and lines.
pub(super) fn sources(reads: &mut Vec<(usize, Touch)>, phase: u32, last: u32) {
    reads.retain(|(_, t)| t.operand == Operand::Src && !t.write);
    let own = |t: &Touch| if phase == last { t.phase <= last } else { t.phase == phase };
    let any = reads.iter().any(|(_, t)| own(t));
    reads.retain(|(_, t)| if any { own(t) } else { t.phase == 0 });
    reads.sort_by_key(|(_, t)| (t.phase, t.each, t.access));
}

/// Those of the sources that a destination takes: all, or where both repeat, the one of the same repetition.
pub(super) fn paired(sources: &[(usize, Touch)], each: Option<i32>) -> Vec<usize> {
    let pairs = each.is_some() && sources.iter().any(|(_, t)| t.each.is_some());
    sources.iter().filter(|(_, t)| !pairs || t.each == each).map(|(i, _)| *i).collect()
}

impl<E: Copy + PartialEq> Context<E> {
    /// The newest piece of an operand.
    fn latest(&self, operand: Operand) -> Option<&Tile<E>> {
        let of = self.pieces.iter().filter(|p| p.touch.operand == operand);
        of.max_by_key(|p| p.touch.phase).map(|p| &p.tile)
    }

    /// Arithmetic when all that a phase reads is there, `places` being those of the first query and key in the scaled sequence, where
    /// they mask. Returns how many products it took.
    pub fn consume<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        family: &Family,
        point: Point,
        phase: u32,
        places: Option<[usize; 2]>,
    ) -> Result<u64, Misfit> {
        let moving: &[Operand] = match &family.leaf {
            Leaf::MmaTile { .. } => &[Operand::A, Operand::B],
            Leaf::AttendTile { .. } => &[Operand::K, Operand::V],
            Leaf::AttendGradTile { of, .. } => of.moving(),
            _ => return Ok(0),
        };
        // The arithmetic is where the latest of these operands is.
        let theirs = family.accesses.iter().filter(|a| moving.contains(&a.operand));
        if theirs.map(|a| a.at).max() != Some(point) {
            return Ok(0);
        }
        let work = match &family.leaf {
            Leaf::MmaTile { a_layout, b_layout, epilogue, .. } => {
                self.multiply(algebra, *a_layout, *b_layout, gated(epilogue))?
            }
            Leaf::AttendTile { scale, .. } => {
                self.attend(algebra, f32::from_bits(*scale), places)?
            }
            Leaf::AttendGradTile { of, scale, .. } => {
                self.differentiate(algebra, *of, f32::from_bits(*scale), places)?
            }
            _ => 0,
        };
        self.pieces.retain(|p| p.touch.phase != phase || !moving.contains(&p.touch.operand));
        Ok(work)
    }

    fn multiply<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        a_layout: ALayout,
        b_layout: BLayout,
        gated: bool,
    ) -> Result<u64, Misfit> {
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
        let b = match (b_layout, gated) {
            (BLayout::Nk, _) => b.transposed(),
            // `[k, 2, n]`: gates and ups side by side.
            (BLayout::Kn, true) => {
                Tile { rows: b.rows / 2, cols: b.cols * 2, data: b.data.clone() }
            }
            (BLayout::Kn, false) => b.clone(),
        };
        if a.cols != b.rows {
            return Err(format!("`a` is {}x{} and `b` {}x{}", a.rows, a.cols, b.rows, b.cols));
        }
        let fresh = || Tile::filled(a.rows, b.cols, A::ZERO);
        let mut sum = self.sum.clone().unwrap_or_else(fresh);
        if (sum.rows, sum.cols) != (a.rows, b.cols) {
            return Err("the tile changes its shape between steps".into());
        }
        for (i, row) in sum.data.chunks_mut(b.cols.max(1)).enumerate() {
            for (x, right) in a.row(i).iter().zip(b.data.chunks(b.cols.max(1))) {
                for (sum, y) in row.iter_mut().zip(right) {
                    let product = algebra.mul(*x, *y);
                    *sum = algebra.add(*sum, product);
                }
            }
        }
        let work = (a.rows * a.cols * b.cols) as u64;
        self.sum = Some(sum);
        Ok(work)
    }

    fn attend<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        scale: f32,
        places: Option<[usize; 2]>,
    ) -> Result<u64, Misfit> {
        let state = self.carried()?;
        let found = [Operand::Q, Operand::K, Operand::V].map(|o| self.latest(o));
        let [Some(q), Some(k), Some(v)] = found else {
            self.attention = state;
            return Ok(0);
        };
        let mut state = match state {
            Some(state) => state,
            None => Attention::new(algebra, q.rows, v.cols),
        };
        let acc = (state.acc.rows, state.acc.cols);
        if q.cols != k.cols || k.rows != v.rows || acc != (q.rows, v.cols) {
            return Err("queries, keys, values and accumulator do not fit each other".into());
        }
        let work = (q.rows * k.rows * (q.cols + v.cols)) as u64;
        let work = work + EXPONENTIAL * (q.rows * k.rows) as u64;
        let masked = |i: usize, j: usize| places.is_some_and(|[q, k]| q + i < k + j);
        state.step(algebra, [q, k, v], scale, masked);
        self.attention = Some(state);
        Ok(work)
    }

    fn differentiate<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        of: GradOf,
        scale: f32,
        places: Option<[usize; 2]>,
    ) -> Result<u64, Misfit> {
        let mut sums = self.gradients.take();
        let all = [Operand::Q, Operand::Do, Operand::Stats, Operand::K, Operand::V];
        let [Some(q), Some(d_o), Some(stats), Some(k), Some(v)] = all.map(|o| self.latest(o))
        else {
            self.gradients = sums;
            return Ok(0);
        };
        let block = Block { q, d_o, stats, k, v };
        if !block.fits() {
            return Err("queries, their gradients, keys and values do not fit each other".into());
        }
        let work = (q.rows * k.rows * (q.cols + v.cols)) as u64;
        let work = work + EXPONENTIAL * (q.rows * k.rows) as u64;
        let masked = |i: usize, j: usize| places.is_some_and(|[q, k]| q + i < k + j);
        let sums = sums.get_or_insert_with(|| match of {
            GradOf::Queries => Gradients::queries::<A>(q.rows, q.cols),
            GradOf::Keys => Gradients::keys::<A>(k.rows, k.cols, v.cols),
        });
        sums.step(algebra, block, scale, masked);
        self.gradients = Some(sums.clone());
        Ok(work)
    }

    /// The state of attention before a step: that of the step before, or what was read from scratch, or none.
    fn carried(&mut self) -> Result<Option<Attention<E>>, Misfit> {
        if let Some(state) = self.attention.take() {
            return Ok(Some(state));
        }
        match (self.latest(Operand::AccIn), self.latest(Operand::StatIn)) {
            (None, None) => Ok(None),
            (Some(acc), Some(stat)) if stat.cols == 2 && stat.rows == acc.rows => {
                Ok(Some(Attention { acc: acc.clone(), stat: stat.clone() }))
            }
            _ => Err("`acc_in` is [rows, d] and `stat_in` [rows, 2], or both are absent".into()),
        }
    }

    /// What a write stores to a region of so many rows and columns.
    pub fn stored<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        family: &Family,
        write: &Touch,
        [rows, cols]: [usize; 2],
        last: u32,
    ) -> Result<Vec<E>, Misfit> {
        match &family.leaf {
            Leaf::CopyTile { .. } | Leaf::HostCopy | Leaf::NicSend => {
                let from = paired(&self.sources(write.phase, last), write.each);
                Ok(from.iter().flat_map(|i| self.pieces[*i].tile.data.iter().copied()).collect())
            }
            Leaf::ReduceTile { epilogue } => {
                let sum = self.reduce(algebra, family.factors(), write.phase, last)?;
                let data = if sum.is_empty() { vec![A::ZERO; rows * cols] } else { sum };
                if data.len() != rows * cols {
                    return Err("the sum has another size than its destination".into());
                }
                self.finished(algebra, epilogue, None, Tile { rows, cols, data })
            }
            Leaf::MmaTile { epilogue, .. } => {
                let tile = match &self.sum {
                    Some(sum) => sum.clone(),
                    // Nothing is added up.
                    None => match (
                        gated(epilogue),
                        write.operand == Operand::E0 && saves_gates(epilogue),
                    ) {
                        (true, true) => Tile::filled(rows / 2, cols * 2, A::ZERO),
                        (gated, _) => {
                            Tile::filled(rows, if gated { cols * 2 } else { cols }, A::ZERO)
                        }
                    },
                };
                self.finished(algebra, epilogue, Some(write.operand), tile)
            }
            Leaf::AttendTile { .. } => {
                let state = match self.carried()? {
                    Some(state) => state,
                    None => Attention::new(
                        algebra,
                        if write.operand == Operand::Lse { rows * cols } else { rows },
                        cols,
                    ),
                };
                let values = match write.operand {
                    Operand::AccOut => state.acc.data.clone(),
                    Operand::StatOut => state.stat.data.clone(),
                    Operand::Lse => state.logarithms(algebra),
                    _ => state.output(algebra),
                };
                self.attention = Some(state);
                Ok(values)
            }
            Leaf::AttendGradTile { scale, .. } => {
                let sums = self.gradients.as_ref();
                let made = sums.map(|g| g.made(algebra, write.operand, f32::from_bits(*scale)));
                // Nothing meets it.
                Ok(made.unwrap_or_else(|| vec![algebra.settled(A::ZERO); rows * cols]))
            }
            Leaf::StatsTile { .. } => {
                let all = [Operand::O, Operand::Do, Operand::Lse].map(|o| self.latest(o));
                let [Some(o), Some(d_o), Some(lse)] = all else {
                    return Err("statistics of what is not read".into());
                };
                if (o.rows, o.cols) != (d_o.rows, d_o.cols) || lse.data.len() != o.rows {
                    return Err("results, their gradients and logarithms differ in rows".into());
                }
                Ok(statistics(algebra, o, d_o, &lse.data))
            }
            Leaf::Signal | Leaf::Enter | Leaf::Tabulate { .. } => Ok(Vec::new()),
        }
    }

    fn sources(&self, phase: u32, last: u32) -> Vec<(usize, Touch)> {
        let mut list = self.pieces.iter().map(|p| p.touch).enumerate().collect();
        sources(&mut list, phase, last);
        list
    }

    /// The sum of the sources, each times its factor where there are factors; empty if there are none.
    fn reduce<A: Algebra<Elem = E>>(
        &self,
        algebra: &mut A,
        factors: Factors,
        phase: u32,
        last: u32,
    ) -> Result<Vec<E>, Misfit> {
        let mut sum: Vec<E> = Vec::new();
        for (i, (source, touch)) in self.sources(phase, last).into_iter().enumerate() {
            let mut data = self.pieces[source].tile.data.clone();
            if factors != Factors::None {
                let of = |p: &&Piece<E>| {
                    let t = &p.touch;
                    t.operand == Operand::W && (t.phase, t.each) == (touch.phase, touch.each)
                };
                let factor = self.pieces.iter().find(of).map(|p| &p.tile.data[..]);
                match (factor, factors) {
                    (Some([factor]), _) => {
                        data.iter_mut().for_each(|x| *x = algebra.mul(*x, *factor));
                    }
                    (None, Factors::Some) => data.fill(A::ZERO),
                    _ => return Err("a summand has no factor of one element".into()),
                }
            }
            if i == 0 {
                sum = data;
                continue;
            }
            if data.len() != sum.len() {
                return Err("the sources of a sum differ in size".into());
            }
            sum.iter_mut().zip(&data).for_each(|(x, y)| *x = algebra.add(*x, *y));
        }
        Ok(sum)
    }

    /// A tile after its epilogue, or as `operand` saves it on the way.
    fn finished<A: Algebra<Elem = E>>(
        &self,
        algebra: &mut A,
        epilogue: &[EpilogueOp],
        operand: Option<Operand>,
        mut tile: Tile<E>,
    ) -> Result<Vec<E>, Misfit> {
        let mut tails = EPILOGUE_OPERANDS.iter();
        let mut kept = None;
        for op in epilogue {
            match op {
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
                EpilogueOp::Bias
                | EpilogueOp::Mul
                | EpilogueOp::Add
                | EpilogueOp::GeluGrad
                | EpilogueOp::GeluTanhGrad
                | EpilogueOp::SiluGrad
                | EpilogueOp::MulSilu
                | EpilogueOp::ReluGrad => {
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
                            let gate = algebra.apply(Function::Silu, row[j]);
                            data.push(algebra.mul(gate, row[half + j]));
                        }
                    }
                    tile = Tile { rows: tile.rows, cols: half, data };
                }
                EpilogueOp::Gelu
                | EpilogueOp::GeluTanh
                | EpilogueOp::Silu
                | EpilogueOp::Relu
                | EpilogueOp::RoundBf16
                | EpilogueOp::RoundF16 => {
                    if let Some(f) = Function::of(*op) {
                        tile.data.iter_mut().for_each(|x| *x = algebra.apply(f, *x));
                    }
                }
            }
        }
        Ok(tile.data)
    }
}
