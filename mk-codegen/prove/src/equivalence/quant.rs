//! Values in eight bits with factors: a factor is any function of the elements of its block, and a value any function
//! of an element and its factor.

use super::algebra::{Algebra, Function};
use mk_dtype::DType;

/// Values, and the factors of their blocks.
pub(super) struct Quantised<E> {
    pub values: Vec<E>,
    pub factors: Vec<E>,
}

/// Elements of so many blocks, each in the block that it is said to be in.
pub(super) fn quantised<A: Algebra>(
    algebra: &mut A,
    to: DType,
    x: &[A::Elem],
    blocks: usize,
    of: impl Fn(usize) -> usize,
) -> Quantised<A::Elem> {
    let mut sums = vec![A::ZERO; blocks];
    for (i, e) in x.iter().enumerate() {
        let magnitude = algebra.apply(Function::Magnitude, *e);
        sums[of(i)] = algebra.add(sums[of(i)], magnitude);
    }
    let mut factors = |f| sums.iter().map(|s| algebra.apply(f, *s)).collect::<Vec<_>>();
    let (factors, inverses) = (factors(Function::Factor(to)), factors(Function::Inverse(to)));
    let over = x.iter().enumerate().map(|(i, e)| {
        let over = algebra.mul(*e, inverses[of(i)]);
        algebra.apply(Function::Round(to), over)
    });
    Quantised { values: over.collect(), factors }
}
