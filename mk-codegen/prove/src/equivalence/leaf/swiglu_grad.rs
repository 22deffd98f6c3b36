//! Gradients of gated rows.

use super::{Linked, Links, Meaning, Stored, Task, Write};
use crate::equivalence::{
    algebra::{Algebra, Function},
    context::Context,
    linker::Linker,
};
use mk_dtype::Curve;
use mk_plan::{Operand, SwigluGradTile};

impl Links for SwigluGradTile {
    /// Columns are one index everywhere. A gate is no up.
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
        let rows = |operand: Operand| of.touches.iter().filter(move |t| t.operand == operand);
        let Some(src) = rows(Operand::Src).next() else { return Ok(()) };
        let columns = linker.matrix(src)?.columns;
        for row in [Operand::Src, Operand::E0, Operand::Dst, Operand::E1].into_iter().flat_map(rows)
        {
            let last = linker.unrolled.region(row).len().checked_sub(1);
            linker.link((src, columns), (row, last))?;
            if matches!(row.operand, Operand::E0 | Operand::Dst)
                && let Some(halves) = last.and_then(|last| last.checked_sub(1))
            {
                let (line, base, _) = linker.stretch(row, halves);
                linker.lines.cut(line, base + 1);
            }
        }
        Ok(())
    }
}

impl<A: Algebra> Meaning<A> for SwigluGradTile {
    fn stored(&self, to: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A> {
        let of_step = |operand: Operand| {
            let own = |t: &crate::equivalence::unroll::Touch| {
                t.operand == operand && t.phase == to.touch.phase
            };
            context.pieces.iter().find(|p| own(&p.touch)).map(|p| &p.tile.data[..])
        };
        let [Some(d), Some(h), Some(&[weight])] = Self::READS.map(of_step) else {
            return Err("a row has not gradients, gates, ups, and one weight".into());
        };
        if h.len() != 2 * d.len() {
            return Err("gates and ups of a row are not as many as its gradients".into());
        }
        let (gates, ups) = h.split_at(d.len());
        let (silu, slope) = (Function::Curve(Curve::Silu), Function::Slope(Curve::Silu));
        let activated = |algebra: &mut A| -> Vec<A::Elem> {
            let both = gates.iter().zip(ups);
            both.map(|(gate, up)| {
                let gate = algebra.apply(silu, *gate);
                algebra.mul(gate, *up)
            })
            .collect()
        };
        Ok(match to.touch.operand {
            Operand::E1 => {
                let y = activated(algebra);
                y.into_iter().map(|y| algebra.mul(y, weight)).collect()
            }
            Operand::E2 => {
                let y = activated(algebra);
                vec![algebra.dot(d, &y)]
            }
            _ => {
                let d: Vec<_> = d.iter().map(|d| algebra.mul(*d, weight)).collect();
                let mut made = Vec::with_capacity(h.len());
                for (d, (gate, up)) in d.iter().zip(gates.iter().zip(ups)) {
                    let slope = algebra.apply(slope, *gate);
                    let d = algebra.mul(*d, slope);
                    made.push(algebra.mul(d, *up));
                }
                for (d, gate) in d.iter().zip(gates) {
                    let gate = algebra.apply(silu, *gate);
                    made.push(algebra.mul(*d, gate));
                }
                made
            }
        })
    }
}
