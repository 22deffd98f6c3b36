//! The two domains in which a plan and a program are evaluated: pairs of finite-field elements (the comparison), or
//! sets of input blocks (for messages).

use super::number::{Pair, Products, mix, random};
use mk_dtype::{Curve, DType};
use mk_plan::EpilogueOp;
use std::collections::{BTreeSet, HashMap};

/// An elementwise operation, modelled as a random function with its own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Round(DType),
    Curve(Curve),
    Slope(Curve),
    /// Of a quantised block: what its factor is made of, the factor, and one over it.
    Magnitude,
    Factor(DType),
    Inverse(DType),
    /// `1 / sqrt(mean of squares + eps)` of a row; `eps` as the bits of an f32.
    ReciprocalRoot(u32),
    /// Soft cap of scores at the f32 of these bits, and its derivative.
    Cap(u32),
    CapSlope(u32),
}

impl Function {
    /// A distinct number for each function.
    fn key(self) -> u64 {
        match self {
            Function::Curve(curve) => 0x40 + curve as u64,
            Function::Slope(curve) => 0x80 + curve as u64,
            Function::Magnitude => 0x20,
            Function::Factor(to) => 0xc0 + to as u64,
            Function::Inverse(to) => 0xe0 + to as u64,
            Function::ReciprocalRoot(eps) => 1 << 32 | u64::from(eps),
            Function::Cap(cap) => 2 << 32 | u64::from(cap),
            Function::CapSlope(cap) => 3 << 32 | u64::from(cap),
            Function::Round(to) => to as u64,
        }
    }

    /// The function that an epilogue operation applies, if it applies one.
    pub fn of(op: EpilogueOp) -> Option<Function> {
        Some(match op {
            EpilogueOp::Curve(curve) => Function::Curve(curve),
            EpilogueOp::Round(to) => Function::Round(to),
            _ => return None,
        })
    }

    /// The function that an epilogue operation applies to its operand before it multiplies by it.
    pub fn slope_of(op: EpilogueOp) -> Option<Function> {
        Some(match op {
            EpilogueOp::Slope(curve) => Function::Slope(curve),
            EpilogueOp::MulSilu => Function::Curve(Curve::Silu),
            _ => return None,
        })
    }
}

/// A block of an input: the tensor, the group along the pipeline's axis that holds it, the rank if it is partial (a
/// contribution per rank), and the cell in each dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Block {
    pub tensor: usize,
    pub group: usize,
    pub rank: Option<usize>,
    pub cells: Vec<usize>,
}

/// Arithmetic of elements. A store does not change a value, whatever the buffer's dtype.
pub(super) trait Algebra {
    type Elem: Copy + PartialEq;
    /// A sum to which products are added.
    type Sum: Copy;

    const ZERO: Self::Elem;

    /// An element of an input: its block, and its place in the scaled tensor.
    fn input(&mut self, block: &Block, at: &[usize]) -> Self::Elem;
    fn add(&mut self, a: Self::Elem, b: Self::Elem) -> Self::Elem;
    fn mul(&mut self, a: Self::Elem, b: Self::Elem) -> Self::Elem;
    fn sum_from(&mut self, a: Self::Elem) -> Self::Sum;
    fn add_product(&mut self, sum: &mut Self::Sum, a: Self::Elem, b: Self::Elem);
    fn sum(&mut self, sum: Self::Sum) -> Self::Elem;
    fn scale(&mut self, a: Self::Elem, factor: f32) -> Self::Elem;
    fn apply(&mut self, f: Function, a: Self::Elem) -> Self::Elem;
    fn difference(&mut self, a: Self::Elem, b: Self::Elem) -> Self::Elem;
    /// A sum of weighted values, as memory has it.
    fn settled(&mut self, a: Self::Elem) -> Self::Elem;
    /// `exp(a - b)`.
    fn exp_of_difference(&mut self, a: Self::Elem, b: Self::Elem) -> Self::Elem;
    /// An arbitrary number, for a running maximum.
    fn any(&mut self) -> Self::Elem;
    /// A sum of weighted values over the sum of the weights.
    fn quotient(&mut self, a: Self::Elem, b: Self::Elem) -> Self::Elem;
    /// `log(sum) + max`.
    fn logarithm(&mut self, sum: Self::Elem, max: Self::Elem) -> Self::Elem;
    /// Adds a product to an element.
    fn add_mul(&mut self, sum: &mut Self::Elem, a: Self::Elem, b: Self::Elem) {
        let product = self.mul(a, b);
        *sum = self.add(*sum, product);
    }
    /// The sum of products of elements at the same place.
    fn dot(&mut self, x: &[Self::Elem], y: &[Self::Elem]) -> Self::Elem {
        let mut sum = Self::ZERO;
        x.iter().zip(y).for_each(|(x, y)| self.add_mul(&mut sum, *x, *y));
        sum
    }
    /// Whether it ran out of operations; later results are invalid.
    fn spent(&self) -> bool {
        false
    }
}

/// Adds a row times a matrix to a row: `row[i]` times `matrix(i, j)` to `to[j]`. `sums` is scratch.
#[inline(always)]
pub(super) fn add_row_times<A: Algebra>(
    algebra: &mut A,
    to: &mut [A::Elem],
    sums: &mut Vec<A::Sum>,
    row: impl Iterator<Item = (usize, A::Elem)>,
    matrix: impl Fn(usize, usize) -> A::Elem,
) {
    sums.clear();
    sums.extend(to.iter().map(|x| algebra.sum_from(*x)));
    for (i, left) in row {
        for (j, sum) in sums.iter_mut().enumerate() {
            algebra.add_product(sum, left, matrix(i, j));
        }
    }
    for (to, sum) in to.iter_mut().zip(sums) {
        *to = algebra.sum(*sum);
    }
}

/// Evaluates in the finite fields.
pub(super) struct Numbers {
    seed: u64,
    drawn: u64,
    /// The factor that was used last.
    factor: (u32, Pair),
}

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers { seed, drawn: 0, factor: (0, Pair::ZERO) }
    }
}

impl Algebra for Numbers {
    type Elem = Pair;
    type Sum = Products;

    const ZERO: Pair = Pair::ZERO;

    fn input(&mut self, block: &Block, at: &[usize]) -> Pair {
        let rank = block.rank.map_or(0, |r| r as u64 + 1);
        let mut words = vec![self.seed, 1, block.tensor as u64, block.group as u64, rank];
        words.extend(at.iter().map(|i| *i as u64));
        random(&words)
    }

    #[inline(always)]
    fn add(&mut self, a: Pair, b: Pair) -> Pair {
        a.add(b)
    }

    #[inline(always)]
    fn mul(&mut self, a: Pair, b: Pair) -> Pair {
        a.mul(b)
    }

    fn sum_from(&mut self, a: Pair) -> Products {
        Products::of(a)
    }

    #[inline(always)]
    fn add_product(&mut self, sum: &mut Products, a: Pair, b: Pair) {
        sum.add(a, b);
    }

    fn sum(&mut self, sum: Products) -> Pair {
        sum.sum()
    }

    fn scale(&mut self, a: Pair, factor: f32) -> Pair {
        if self.factor.0 != factor.to_bits() {
            self.factor = (factor.to_bits(), Pair::real(factor));
        }
        a.mul(self.factor.1)
    }

    fn apply(&mut self, f: Function, a: Pair) -> Pair {
        a.keyed(self.seed, 0x100 + f.key())
    }

    fn difference(&mut self, a: Pair, b: Pair) -> Pair {
        a.add(b.negate())
    }

    fn settled(&mut self, a: Pair) -> Pair {
        a.settled(self.seed ^ 5)
    }

    fn exp_of_difference(&mut self, a: Pair, b: Pair) -> Pair {
        a.add(b.negate()).exp()
    }

    fn any(&mut self) -> Pair {
        self.drawn += 1;
        random(&[self.seed, 2, self.drawn])
    }

    fn quotient(&mut self, a: Pair, b: Pair) -> Pair {
        a.mul(b.recip()).settled(self.seed ^ 3)
    }

    fn logarithm(&mut self, sum: Pair, max: Pair) -> Pair {
        sum.mul(max.exp()).settled(self.seed ^ 4)
    }
}

/// Tracks which input blocks an element depends on: a graph of unions, expanded into a set on demand. Nodes and
/// operations are bounded; past the bound elements depend on nothing, and [`Algebra::spent`] is true.
pub(super) struct Contributions {
    /// `(LEAF, block)`, or the union of two earlier nodes.
    nodes: Vec<(u32, u32)>,
    /// Cache of recent unions, by a hash of both nodes: the union's node, or 0.
    lately: Vec<u32>,
    /// Operations left.
    left: u64,
    blocks: Vec<Block>,
    block_ids: HashMap<Block, u32>,
}

/// Marks a node that is a block.
const LEAF: u32 = u32::MAX;
/// Most unions, of 8 bytes each.
const MAX_UNIONS: usize = 1 << 25;
/// Most operations.
const MAX_OPERATIONS: u64 = 1 << 26;
/// Entries of the cache of unions.
const LATELY: usize = 1 << 16;

impl Contributions {
    pub fn new() -> Contributions {
        Contributions::within(MAX_OPERATIONS)
    }

    /// Bounded by `left` operations.
    pub fn within(left: u64) -> Contributions {
        Contributions {
            // Node 0 is the empty set.
            nodes: vec![(LEAF, LEAF)],
            lately: vec![0; LATELY],
            left,
            blocks: Vec::new(),
            block_ids: HashMap::new(),
        }
    }

    fn node(&mut self, a: u32, b: u32) -> u32 {
        if self.nodes.len() >= MAX_UNIONS {
            self.left = 0;
            return 0;
        }
        self.nodes.push((a, b));
        self.nodes.len() as u32 - 1
    }

    /// The blocks of an element.
    pub fn of(&self, elem: u32) -> BTreeSet<Block> {
        let (mut seen, mut open) = (vec![false; elem as usize + 1], vec![elem]);
        let mut found = BTreeSet::new();
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut seen[at as usize], true) {
                continue;
            }
            match self.nodes[at as usize] {
                (LEAF, block) => found.extend(self.blocks.get(block as usize).cloned()),
                (a, b) => open.extend([a, b]),
            }
        }
        found
    }
}

impl Algebra for Contributions {
    type Elem = u32;
    type Sum = u32;

    const ZERO: u32 = 0;

    fn input(&mut self, block: &Block, _: &[usize]) -> u32 {
        let next = self.blocks.len() as u32;
        if let Some(node) = self.block_ids.get(block) {
            return *node;
        }
        let node = self.node(LEAF, next);
        self.blocks.push(block.clone());
        self.block_ids.insert(block.clone(), node);
        node
    }

    fn add(&mut self, a: u32, b: u32) -> u32 {
        if a == b || b == 0 {
            return a;
        }
        if a == 0 {
            return b;
        }
        if self.left == 0 {
            return 0;
        }
        self.left -= 1;
        let (a, b) = (a.min(b), a.max(b));
        let slot = mix(u64::from(a) << 32 | u64::from(b)) as usize % LATELY;
        let known = self.lately[slot];
        if known > 0 && self.nodes[known as usize] == (a, b) {
            return known;
        }
        let node = self.node(a, b);
        self.lately[slot] = node;
        node
    }

    fn mul(&mut self, a: u32, b: u32) -> u32 {
        // Zero times anything depends on nothing.
        if a == 0 || b == 0 { 0 } else { self.add(a, b) }
    }

    fn sum_from(&mut self, a: u32) -> u32 {
        a
    }

    fn add_product(&mut self, sum: &mut u32, a: u32, b: u32) {
        self.add_mul(sum, a, b);
    }

    fn sum(&mut self, sum: u32) -> u32 {
        sum
    }

    fn scale(&mut self, a: u32, _: f32) -> u32 {
        a
    }

    fn apply(&mut self, _: Function, a: u32) -> u32 {
        a
    }

    fn difference(&mut self, a: u32, b: u32) -> u32 {
        self.add(a, b)
    }

    fn settled(&mut self, a: u32) -> u32 {
        a
    }

    fn exp_of_difference(&mut self, a: u32, b: u32) -> u32 {
        self.add(a, b)
    }

    fn any(&mut self) -> u32 {
        0
    }

    fn quotient(&mut self, a: u32, b: u32) -> u32 {
        self.add(a, b)
    }

    fn logarithm(&mut self, sum: u32, max: u32) -> u32 {
        self.add(sum, max)
    }

    fn spent(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(i: usize) -> Block {
        Block { tensor: i / 10, group: 0, rank: None, cells: vec![i % 10] }
    }

    #[test]
    fn an_element_is_made_of_the_blocks_that_were_added_to_it() {
        let mut sets = Contributions::new();
        let of = |sets: &mut Contributions, i: usize| sets.input(&block(i), &[]);
        let inputs: Vec<u32> = (0..40).map(|i| of(&mut sets, i)).collect();
        assert_eq!(of(&mut sets, 7), inputs[7]);
        // Sums of sums, with parts in common.
        let mut all = vec![(0, BTreeSet::new())];
        all.extend(inputs.iter().enumerate().map(|(i, e)| (*e, BTreeSet::from([block(i)]))));
        for i in 0..200 {
            let (a, b) = (all[i * 7 % all.len()].clone(), all[i * 13 % all.len()].clone());
            all.push((sets.add(a.0, b.0), &a.1 | &b.1));
            let product = if a.0 == 0 || b.0 == 0 { BTreeSet::new() } else { &a.1 | &b.1 };
            all.push((sets.mul(a.0, b.0), product));
        }
        for (elem, want) in &all {
            assert_eq!(sets.of(*elem), *want);
        }
        assert!(!sets.spent());
    }

    #[test]
    fn it_gives_up_when_it_has_made_enough() {
        let mut sets = Contributions::within(20);
        let mut sum = 0;
        for i in 0..30 {
            assert_eq!(sets.spent(), i > 20, "{i}");
            let next = sets.input(&block(i), &[]);
            sum = sets.add(sum, next);
        }
    }
}
