//! Sums.

use super::{Linked, Links, Meaning, Stored, Task, Write};
use crate::equivalence::{
    algebra::Algebra,
    context::{Context, Misfit, Piece},
    linker::Linker,
    tile::Tile,
    unroll::Touch,
};
use mk_plan::{EpilogueOp, Factors, Operand, ReduceTile, of_epilogue};

impl Links for ReduceTile {
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        linker.sum(&self.epilogue, of.touches)
    }
}

impl<A: Algebra> Meaning<A> for ReduceTile {
    fn stored(&self, to: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let [rows, cols] = to.size;
        let sum = context.reduce(algebra, to.family.factors(), to.touch.phase, to.last)?;
        let data = if sum.is_empty() { vec![A::ZERO; rows * cols] } else { sum };
        if data.len() != rows * cols {
            return Err("the sum has another size than its destination".into());
        }
        context.finished(algebra, &self.epilogue, None, &[], Tile { rows, cols, data })
    }
}

impl<E: Copy + PartialEq> Context<E> {
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
                    _ => return Err("a contribution has no factor of one element".into()),
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
}

impl Linker<'_, '_> {
    fn sum(&mut self, epilogue: &[EpilogueOp], touches: &[Touch]) -> Linked {
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
}
