//! What a plan and a program are evaluated in: numbers of the fields, or sets of inputs for messages.

use super::{
    hash::Map,
    number::{Pair, random},
};
use crate::ir::EpilogueOp;
use std::collections::{BTreeSet, HashMap};

/// What is done to one element, by a random function that has a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Gelu,
    Silu,
    Relu,
    RoundBf16,
    RoundF16,
    GeluTanh,
    /// The slope of a curve.
    GeluSlope,
    GeluTanhSlope,
    SiluSlope,
    ReluSlope,
}

impl Function {
    /// That of an operation of an epilogue, if it is one.
    pub fn of(op: EpilogueOp) -> Option<Function> {
        Some(match op {
            EpilogueOp::Gelu => Function::Gelu,
            EpilogueOp::Silu => Function::Silu,
            EpilogueOp::Relu => Function::Relu,
            EpilogueOp::GeluTanh => Function::GeluTanh,
            EpilogueOp::RoundBf16 => Function::RoundBf16,
            EpilogueOp::RoundF16 => Function::RoundF16,
            _ => return None,
        })
    }

    /// What an operation of an epilogue makes of its operand before it multiplies by it, if it is one that does.
    pub fn slope_of(op: EpilogueOp) -> Option<Function> {
        Some(match op {
            EpilogueOp::GeluGrad => Function::GeluSlope,
            EpilogueOp::GeluTanhGrad => Function::GeluTanhSlope,
            EpilogueOp::SiluGrad => Function::SiluSlope,
            EpilogueOp::ReluGrad => Function::ReluSlope,
            EpilogueOp::MulSilu => Function::Silu,
            _ => return None,
        })
    }
}

/// A block of an input: the tensor, the rank if its summands differ from rank to rank, and the cell in each dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Block {
    pub tensor: usize,
    pub rank: Option<usize>,
    pub cells: Vec<usize>,
}

/// Arithmetic of elements. Storing to memory, of whatever type, is no operation.
pub(super) trait Algebra {
    type Elem: Copy + PartialEq;

    const ZERO: Self::Elem;

    /// An element of an input: its block, and its place in the scaled tensor.
    fn input(&mut self, block: &Block, at: &[usize]) -> Self::Elem;
    fn add(&mut self, a: Self::Elem, b: Self::Elem) -> Self::Elem;
    fn mul(&mut self, a: Self::Elem, b: Self::Elem) -> Self::Elem;
    fn scale(&mut self, a: Self::Elem, factor: f32) -> Self::Elem;
    fn apply(&mut self, f: Function, a: Self::Elem) -> Self::Elem;
    fn difference(&mut self, a: Self::Elem, b: Self::Elem) -> Self::Elem;
    /// A sum of weighted values, as memory has it.
    fn settled(&mut self, a: Self::Elem) -> Self::Elem;
    /// `exp(a - b)`.
    fn exp_of_difference(&mut self, a: Self::Elem, b: Self::Elem) -> Self::Elem;
    /// Any number: what a running maximum may be.
    fn any(&mut self) -> Self::Elem;
    /// A sum of weighted values over the sum of the weights.
    fn quotient(&mut self, a: Self::Elem, b: Self::Elem) -> Self::Elem;
    /// `log(sum) + max`.
    fn logarithm(&mut self, sum: Self::Elem, max: Self::Elem) -> Self::Elem;
}

/// Numbers of the fields.
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

    const ZERO: Pair = Pair::ZERO;

    fn input(&mut self, block: &Block, at: &[usize]) -> Pair {
        let rank = block.rank.map_or(0, |r| r as u64 + 1);
        let mut words = vec![self.seed, 1, block.tensor as u64, rank];
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

    fn scale(&mut self, a: Pair, factor: f32) -> Pair {
        if self.factor.0 != factor.to_bits() {
            self.factor = (factor.to_bits(), Pair::real(factor));
        }
        a.mul(self.factor.1)
    }

    fn apply(&mut self, f: Function, a: Pair) -> Pair {
        a.keyed(self.seed, 0x100 + f as u64)
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

/// Which blocks of inputs an element is made of.
#[derive(Default)]
pub(super) struct Contributions {
    sets: Vec<BTreeSet<u32>>,
    ids: HashMap<BTreeSet<u32>, u32>,
    unions: Map<(u32, u32), u32>,
    blocks: Vec<Block>,
    block_ids: HashMap<Block, u32>,
}

impl Contributions {
    pub fn new() -> Contributions {
        let mut all = Contributions::default();
        all.intern(BTreeSet::new());
        all
    }

    fn intern(&mut self, set: BTreeSet<u32>) -> u32 {
        if let Some(id) = self.ids.get(&set) {
            return *id;
        }
        let id = self.sets.len() as u32;
        self.sets.push(set.clone());
        self.ids.insert(set, id);
        id
    }

    /// The blocks of a set.
    pub fn of(&self, elem: u32) -> BTreeSet<Block> {
        let set = self.sets.get(elem as usize);
        set.into_iter().flatten().map(|b| self.blocks[*b as usize].clone()).collect()
    }
}

impl Algebra for Contributions {
    type Elem = u32;

    const ZERO: u32 = 0;

    fn input(&mut self, block: &Block, _: &[usize]) -> u32 {
        let next = self.blocks.len() as u32;
        let id = *self.block_ids.entry(block.clone()).or_insert(next);
        if id == next {
            self.blocks.push(block.clone());
        }
        self.intern(BTreeSet::from([id]))
    }

    fn add(&mut self, a: u32, b: u32) -> u32 {
        if a == b || b == 0 {
            return a;
        }
        if a == 0 {
            return b;
        }
        let key = (a.min(b), a.max(b));
        if let Some(id) = self.unions.get(&key) {
            return *id;
        }
        let union = self.sets[a as usize].union(&self.sets[b as usize]).copied().collect();
        let id = self.intern(union);
        self.unions.insert(key, id);
        id
    }

    fn mul(&mut self, a: u32, b: u32) -> u32 {
        // Nothing comes of what nothing was added up to.
        if a == 0 || b == 0 { 0 } else { self.add(a, b) }
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
}
