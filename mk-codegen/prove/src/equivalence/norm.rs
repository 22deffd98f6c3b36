//! Root mean square normalisation: the reciprocal root is any function of a row's sum of squares and of `eps`.
//!
//! Means are sums: both sides divide by the row's length, which no sum of another length has.

use super::algebra::{Algebra, Function};

/// Each row of `x`, times its reciprocal root and the weight; of gradients `d` of the result, those of `x`.
pub(super) fn normalised<A: Algebra>(
    algebra: &mut A,
    eps: u32,
    cols: usize,
    x: &[A::Elem],
    weight: Option<&[A::Elem]>,
    d: Option<&[A::Elem]>,
) -> Vec<A::Elem> {
    let mut out = Vec::with_capacity(x.len());
    for (i, row) in x.chunks(cols.max(1)).enumerate() {
        let squares = algebra.dot(row, row);
        let r = algebra.apply(Function::ReciprocalRoot(eps), squares);
        let from = d.map_or(row, |d| &d[i * cols..(i + 1) * cols]);
        let weighted: Vec<A::Elem> = match weight {
            Some(g) => from.iter().zip(g).map(|(x, g)| algebra.mul(*x, *g)).collect(),
            None => from.to_vec(),
        };
        let along = algebra.dot(&weighted, row);
        let cube = algebra.mul(r, r);
        let cube = algebra.mul(cube, r);
        let back = algebra.mul(cube, along);
        for (x, g) in row.iter().zip(&weighted) {
            let scaled = algebra.mul(r, *g);
            out.push(match d {
                None => scaled,
                Some(_) => {
                    let less = algebra.mul(*x, back);
                    algebra.difference(scaled, less)
                }
            });
        }
    }
    out
}
