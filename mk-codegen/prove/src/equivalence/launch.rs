//! One launch: tasks in an order in which each reads what was written, whatever that order is.

use super::{
    FieldError, Result,
    algebra::Algebra,
    cells::Cells,
    context::{Context, Piece},
    leaf::{self, Write},
    tile::Tile,
    unroll::{Touch, Unrolled},
};
use crate::hash::FastMap;
use mk_plan::{AttendTile, Family, Leaf, MMA_STEP_BYTES, Operand, Point, quantized, scales_steps};
use std::collections::VecDeque;

/// Most elements of all memory, scaled; and of all values of a pipeline.
pub(super) const MAX_ELEMENTS: usize = 1 << 24;

/// Nobody has written an element.
const NOBODY: u32 = 0;
/// The caller has; task `n` is `n + 2`.
const CALLER: u32 = 1;

/// One version of a buffer on a rank, scaled.
pub(super) struct Scaled<E> {
    pub shape: Vec<usize>,
    pub data: Vec<E>,
    writers: Vec<u32>,
}

impl<E: Copy> Scaled<E> {
    /// Memory that the caller has written.
    pub fn given(shape: Vec<usize>, data: Vec<E>) -> Scaled<E> {
        let writers = vec![CALLER; data.len()];
        Scaled { shape, data, writers }
    }

    /// Whether an element was written, and the task that did.
    pub fn written(&self, at: usize) -> Option<Option<usize>> {
        match self.writers[at] {
            NOBODY => None,
            writer => Some(writer.checked_sub(CALLER + 1).map(|w| w as usize)),
        }
    }
}

/// Runs all tasks on memory of which inputs are given, with at most so many multiplications; `line_of` gives the first
/// line of a slab, `sequence` is the line of places in a sequence.
pub(super) fn run<A: Algebra>(
    algebra: &mut A,
    unrolled: &Unrolled<'_>,
    cells: &Cells,
    (line_of, sequence): (impl Fn(u32) -> u32, u32),
    most: u64,
    given: impl Fn(&mut A, u32) -> Option<Scaled<A::Elem>>,
) -> Result<Vec<Scaled<A::Elem>>> {
    let mut memory = Vec::new();
    let mut total = 0;
    for (i, slab) in unrolled.slabs.iter().enumerate() {
        let line = line_of(i as u32);
        let n = unrolled.plan.buffers[slab.buffer].shape.len() as u32;
        let shape: Vec<usize> = (0..n).map(|d| cells.extent(line + d)).collect();
        let len = shape.iter().product::<usize>();
        total += len;
        if total > MAX_ELEMENTS {
            return Err(FieldError::TooLarge { what: "elements of memory".into() });
        }
        memory.push(match given(algebra, i as u32) {
            Some(given) => given,
            None => Scaled { shape, data: vec![A::ZERO; len], writers: vec![NOBODY; len] },
        });
    }
    let mut launch = Launch {
        unrolled,
        cells,
        line_of,
        sequence,
        memory,
        waiting: FastMap::default(),
        begun: FastMap::default(),
        left: most,
    };
    let mut queue: VecDeque<usize> = (0..unrolled.tasks.len()).collect();
    while let Some(task) = queue.pop_front() {
        launch.advance(algebra, task, &mut queue)?;
        if algebra.spent() {
            return Err(FieldError::explanation());
        }
    }
    let first = launch.waiting.iter().flat_map(|(at, tasks)| tasks.iter().map(move |t| (*t, *at)));
    match first.min() {
        None => Ok(launch.memory),
        Some((task, _)) => {
            let next = launch.begun.get(&task).map_or(0, |b| b.0);
            let touch = &unrolled.touches[unrolled.tasks[task].touches.start as usize + next];
            Err(FieldError::Unwritten {
                place: unrolled.place(task),
                region: unrolled.described(touch),
            })
        }
    }
}

struct Launch<'l, 'a, E, F> {
    unrolled: &'l Unrolled<'a>,
    cells: &'l Cells,
    line_of: F,
    sequence: u32,
    memory: Vec<Scaled<E>>,
    /// Tasks that wait for an element.
    waiting: FastMap<(u32, usize), Vec<usize>>,
    /// Tasks that have begun: how many touches are done, and what they have.
    begun: FastMap<usize, (usize, Context<E>)>,
    /// Multiplications.
    left: u64,
}

impl<E: Copy + PartialEq, F: Fn(u32) -> u32> Launch<'_, '_, E, F> {
    /// Runs a task as far as what it reads is there.
    fn advance<A: Algebra<Elem = E>>(
        &mut self,
        algebra: &mut A,
        task: usize,
        queue: &mut VecDeque<usize>,
    ) -> Result<()> {
        let unrolled = self.unrolled;
        let run = &unrolled.tasks[task];
        let family = &unrolled.plan.families[run.family];
        let touches = &unrolled.touches[run.touches.start as usize..run.touches.end as usize];
        let (from, mut context) = self.begun.remove(&task).unwrap_or_default();
        let misfit = |message| FieldError::misfit(unrolled.place(task), message);
        for (i, t) in touches.iter().enumerate().skip(from) {
            let rows = self.rows(t);
            if !t.write {
                match self.read(t, &rows) {
                    Ok(tile) => {
                        let blocks = self.blocks(family, t);
                        context.pieces.push(Piece { touch: *t, tile, blocks });
                    }
                    Err(missing) => {
                        self.waiting.entry((t.slab, missing)).or_default().push(task);
                        self.begun.insert(task, (i, context));
                        return Ok(());
                    }
                }
            }
            // Reads come first in a phase.
            let after = touches.get(i + 1);
            let last_read = !t.write && after.is_none_or(|n| n.write || n.phase != t.phase);
            if last_read {
                let point = match t.phase {
                    0 => Point::Start,
                    p if p == run.last => Point::End,
                    _ => Point::Inner,
                };
                let bounds = unrolled.bounds.get(&(task as u32)).copied();
                let places = unrolled.positions.get(&(task as u32, t.phase));
                let places = places.map(|at| leaf::InSequence {
                    first: at.map(|x| self.cells.at(self.sequence, x)),
                    cells: self.cells,
                    line: self.sequence,
                    bounds: bounds.map(|rows| leaf::Bounds { rows, first: at.map(i64::from) }),
                    heads: self.heads(family, touches),
                });
                let work = leaf::consume(&mut context, algebra, family, point, t.phase, places);
                let left = self.left.checked_sub(work.map_err(misfit)?);
                self.left = left.ok_or_else(FieldError::multiplications)?;
            }
            if t.write {
                let len = rows.starts.len() * rows.cols;
                let size = [rows.starts.len(), rows.cols];
                let c = touches.iter().find(|c| c.write && c.operand == Operand::C);
                let [_, blocks] = match c.filter(|_| quantized(family.leaf.epilogue()).is_some()) {
                    Some(c) => self.in_blocks(c),
                    None => [Vec::new(), Vec::new()],
                };
                let data = leaf::stored(
                    &Write { family, touch: t, size, blocks: &blocks, last: run.last },
                    &mut context,
                    algebra,
                )
                .map_err(misfit)?;
                if data.len() != len {
                    let what =
                        format!("`{}` takes {len} elements, and gets {}", t.operand, data.len());
                    return Err(misfit(what));
                }
                self.write(task, t, &rows, &data, queue)?;
            }
        }
        Ok(())
    }

    /// Heads of each query that are rows of a tile, in scaled memory.
    fn heads(&self, family: &Family, touches: &[Touch]) -> usize {
        let Leaf::AttendTile(AttendTile { heads: 2.., .. }) = family.leaf else { return 1 };
        let Some(q) = touches.iter().find(|t| t.operand == Operand::Q) else { return 1 };
        let region = self.unrolled.region(q);
        let Some(d) = region.len().checked_sub(2) else { return 1 };
        let (line, (base, len)) = ((self.line_of)(q.slab) + d as u32, region[d]);
        (self.cells.at(line, base + len) - self.cells.at(line, base)).max(1)
    }

    /// In which block of 128 of the touch each of its rows and columns is, of operands whose blocks have factors.
    fn blocks(&self, family: &Family, t: &Touch) -> [Vec<usize>; 2] {
        let quantises = matches!(family.leaf, Leaf::QuantTile(_)) && t.operand == Operand::Src;
        let operand = matches!(t.operand, Operand::A | Operand::B);
        if !quantises && (!operand || !scales_steps(family.leaf.epilogue())) {
            return [Vec::new(), Vec::new()];
        }
        self.in_blocks(t)
    }

    /// In which block of 128 of the touch each of its rows and columns is.
    fn in_blocks(&self, t: &Touch) -> [Vec<usize>; 2] {
        let region = self.unrolled.region(t);
        [2, 1].map(|from_end| {
            let Some(d) = region.len().checked_sub(from_end) else { return Vec::new() };
            let (line, (base, len)) = ((self.line_of)(t.slab) + d as u32, region[d]);
            let step = MMA_STEP_BYTES as i32;
            let block = |b: i32| {
                let end = self.cells.at(line, base + len.min((b + 1) * step));
                let n = end.saturating_sub(self.cells.at(line, base + b * step));
                std::iter::repeat_n(b as usize, n)
            };
            (0..(len + step - 1) / step).flat_map(block).collect()
        })
    }

    /// The contiguous rows of a touch in scaled memory.
    fn rows(&self, t: &Touch) -> Rows {
        let line = (self.line_of)(t.slab);
        let shape = &self.memory[t.slab as usize].shape;
        let scaled = |(d, (base, len)): (usize, &(i32, i32))| {
            let at = self.cells.at(line + d as u32, *base);
            (at, self.cells.at(line + d as u32, base + len) - at)
        };
        let region = self.unrolled.region(t);
        let Some((last, outer)) = region.split_last() else {
            return Rows { starts: vec![0], cols: 1 };
        };
        let (base, cols) = scaled((outer.len(), last));
        let mut starts = vec![0];
        for (d, dim) in outer.iter().enumerate() {
            let (at, len) = scaled((d, dim));
            let n = shape[d];
            starts = starts.iter().flat_map(|s| (at..at + len).map(move |i| s * n + i)).collect();
        }
        let n = shape[outer.len()];
        starts.iter_mut().for_each(|s| *s = *s * n + base);
        Rows { starts, cols }
    }

    /// What memory holds, or the first element that nobody has written.
    fn read(&self, t: &Touch, rows: &Rows) -> Result<Tile<E>, usize> {
        let slab = &self.memory[t.slab as usize];
        let mut data = Vec::with_capacity(rows.starts.len() * rows.cols);
        for start in &rows.starts {
            let row = *start..start + rows.cols;
            if let Some(i) = slab.writers[row.clone()].iter().position(|w| *w == NOBODY) {
                return Err(start + i);
            }
            data.extend_from_slice(&slab.data[row]);
        }
        Ok(Tile { rows: rows.starts.len(), cols: rows.cols, data })
    }

    fn write(
        &mut self,
        task: usize,
        t: &Touch,
        rows: &Rows,
        data: &[E],
        queue: &mut VecDeque<usize>,
    ) -> Result<()> {
        let slab = &mut self.memory[t.slab as usize];
        for (start, from) in rows.starts.iter().zip(data.chunks(rows.cols.max(1))) {
            for (at, x) in (*start..).zip(from) {
                if slab.writers[at] != NOBODY {
                    let region = self.unrolled.described(t);
                    let message = format!("{region} is written twice in one version");
                    return Err(FieldError::misfit(self.unrolled.place(task), message));
                }
                (slab.data[at], slab.writers[at]) = (*x, task as u32 + CALLER + 1);
                if !self.waiting.is_empty()
                    && let Some(tasks) = self.waiting.remove(&(t.slab, at))
                {
                    queue.extend(tasks);
                }
            }
        }
        Ok(())
    }
}

/// Rows of scaled memory: where each begins, and how long all are.
struct Rows {
    starts: Vec<usize>,
    cols: usize,
}
