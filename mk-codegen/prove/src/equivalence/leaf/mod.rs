//! What leaves compute, element by element: as the executor has it (`sim/leaf`), in another arithmetic. A file for each
//! leaf.

mod attend;
mod attend_grad;
mod copy;
mod dot;
mod epilogue;
mod idle;
mod merge;
mod mma;
mod norm;
mod quant;
mod reduce;
mod rope;
mod sink;
mod stats;
mod swiglu_grad;

use super::{
    algebra::Algebra,
    cells::Cells,
    context::{Context, Misfit},
    linker::Linker,
    unroll::{TaskRun, Touch},
};
use mk_plan::{Family, Leaf, Mask, Operand, Point, Side, of_leaf};
use std::ops::Range;

/// A task: its number, and what it touches.
pub(super) struct Task<'t> {
    pub number: u32,
    pub run: &'t TaskRun,
    pub touches: &'t [Touch],
}

type Linked = Result<(), String>;
/// How many products arithmetic took.
type Work = Result<u64, Misfit>;
type Stored<A> = Result<Vec<<A as Algebra>::Elem>, Misfit>;
/// Where queries and keys are in the scaled sequence, where they mask.
type Places<'c> = Option<InSequence<'c>>;

/// Places of the first query and key in the scaled sequence, which is a line.
#[derive(Clone, Copy)]
pub(super) struct InSequence<'c> {
    pub first: [usize; 2],
    pub cells: &'c Cells,
    pub line: u32,
    pub bounds: Option<Bounds<'c>>,
    /// Rows of each query: one of each of its heads.
    pub heads: usize,
}

/// Bounds of a tile's rows, two each, and the places of the first query and key in the unscaled sequence.
#[derive(Clone, Copy)]
pub(super) struct Bounds<'c> {
    pub rows: &'c [i32],
    pub first: [i64; 2],
}

impl Bounds<'_> {
    /// Those of a row at a place of the unscaled sequence; the first row is at `from`.
    fn of(&self, place: i64, from: i64) -> [i64; 2] {
        let row = usize::try_from(place - from).ok();
        let pair = row.and_then(|row| self.rows.get(2 * row..2 * row + 2));
        pair.map_or([0, 0], |pair| [i64::from(pair[0]), i64::from(pair[1])])
    }
}

/// Which keys, so many from a place of a scaled line on, a query at another place sees.
pub(super) fn seen(
    mask: Mask,
    (cells, line): (&Cells, u32),
    query: usize,
    (first, keys): (usize, usize),
) -> Range<usize> {
    let within = |place: usize| place.saturating_sub(first).min(keys);
    let gone = mask.window().map_or(0, |keys| cells.before(line, query, keys));
    let end = if mask == Mask::Full { keys } else { within(query + 1) };
    within(gone).min(end)..end
}

/// Which of a step's keys its `i`th query sees.
fn sees(places: Places<'_>, (mask, side): (Mask, Side), i: usize, keys: usize) -> Range<usize> {
    let Some(p) = places else { return 0..keys };
    let (Some(bounds), Mask::Bounds) = (p.bounds, mask) else {
        return seen(mask, (p.cells, p.line), p.first[0] + i, (p.first[1], keys));
    };
    let query = p.cells.original(p.line, p.first[0] + i);
    let key = |j: usize| p.cells.original(p.line, p.first[1] + j);
    let met = |j: &usize| {
        let ([from, end], other) = match side {
            Side::Queries => (bounds.of(query, bounds.first[0]), key(*j)),
            Side::Keys => (bounds.of(key(*j), bounds.first[1]), query),
        };
        (from..end).contains(&other)
    };
    // Bounds ascend, so that keys that meet a query follow each other.
    let from = (0..keys).find(met).unwrap_or(keys);
    from..(from..keys).find(|j| !met(j)).unwrap_or(keys)
}

/// Which dimensions of a leaf's operands are the same index.
trait Links {
    /// Links them.
    fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked;
}

/// A write: of which family, what, to a region of so many rows and columns, and the last phase of its task.
pub(super) struct Write<'p> {
    pub family: &'p Family,
    pub touch: &'p Touch,
    pub size: [usize; 2],
    /// Of a result that is quantised, the block of 128 that each column is in.
    pub blocks: &'p [usize],
    pub last: u32,
}

/// The arithmetic of a leaf.
trait Meaning<A: Algebra> {
    /// Operands that move: the arithmetic is where the latest of these is.
    fn moving(&self) -> &'static [Operand] {
        &[]
    }

    /// Arithmetic when all that a phase reads is there.
    fn consume(&self, _: &mut Context<A::Elem>, _: &mut A, _: Places) -> Work {
        Ok(0)
    }

    /// What a write stores.
    fn stored(&self, to: &Write<'_>, context: &mut Context<A::Elem>, algebra: &mut A) -> Stored<A>;
}

fn meaning<A: Algebra>(leaf: &Leaf) -> &dyn Meaning<A> {
    of_leaf!(leaf, x => x)
}

/// Links dimensions of a task's operands.
pub(super) fn link(leaf: &Leaf, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
    of_leaf!(leaf, x => x.link(linker, of))
}

/// Arithmetic when all that a phase reads is there.
pub(super) fn consume<A: Algebra>(
    context: &mut Context<A::Elem>,
    algebra: &mut A,
    family: &Family,
    point: Point,
    phase: u32,
    places: Places<'_>,
) -> Work {
    let moving = meaning::<A>(&family.leaf).moving();
    let theirs = family.accesses.iter().filter(|a| moving.contains(&a.operand));
    if theirs.map(|a| a.at).max() != Some(point) {
        return Ok(0);
    }
    let work = meaning(&family.leaf).consume(context, algebra, places)?;
    context.pieces.retain(|p| p.touch.phase != phase || !moving.contains(&p.touch.operand));
    Ok(work)
}

/// What a write stores.
pub(super) fn stored<A: Algebra>(
    to: &Write<'_>,
    context: &mut Context<A::Elem>,
    algebra: &mut A,
) -> Stored<A> {
    meaning(&to.family.leaf).stored(to, context, algebra)
}
