//! Integers of one launch: tables in memory are made of what tasks read, entry by entry, and are those of the launch.
//!
//! Copies and tables read the memory, ranks, rows and buffers that the plan names. Leaves make of it what the
//! executor's do (`plan/src/routes.rs`). Unlike numbers, integers have no cells: every one of them is there.

use super::{
    FieldError, Result,
    context::{paired, sources},
    dims::Dims,
    unroll::{self, Moved, Touch, Unrolled},
};
use mk_plan::{Entity, Leaf, Operand, Points, Source, Space, Tabulate};
use mk_syntax::{Def, Op};
use std::borrow::Cow;

/// Most integers of all memory, and those that tasks read.
const MAX_INTEGERS: usize = 1 << 27;
const MAX_READ: usize = 1 << 32;

/// A version of a buffer on a rank.
struct Slab {
    shape: Vec<usize>,
    data: Vec<i32>,
    written: Vec<bool>,
    /// How many nobody has written.
    unwritten: usize,
}

impl Slab {
    /// Where a region's contiguous rows begin, and how long each is.
    fn rows(&self, region: &[(i32, i32)]) -> (Vec<usize>, usize) {
        let (mut starts, mut len, mut pitch) = (vec![0], 1, 1);
        for ((base, n), extent) in region.iter().zip(&self.shape).rev() {
            let (base, n) = (*base as usize, *n as usize);
            if len == pitch {
                starts.iter_mut().for_each(|s| *s += base * pitch);
                len *= n;
            } else {
                let at = |i: usize| starts.iter().map(move |s| s + (base + i) * pitch);
                starts = (0..n).flat_map(at).collect();
            }
            pitch *= extent;
        }
        (starts, len)
    }

    /// What a region has; none if nobody has written some of it.
    fn read(&self, region: &[(i32, i32)]) -> Option<Cow<'_, [i32]>> {
        let (starts, len) = self.rows(region);
        let there = |s: &usize| self.written[*s..s + len].iter().all(|w| *w);
        if self.unwritten > 0 && !starts.iter().all(there) {
            return None;
        }
        match starts[..] {
            [start] => Some(Cow::Borrowed(&self.data[start..start + len])),
            _ => Some(starts.iter().flat_map(|s| self.data[*s..s + len].iter().copied()).collect()),
        }
    }

    /// Whether nobody has written any of it before.
    fn write(&mut self, region: &[(i32, i32)], values: &[i32]) -> bool {
        let (starts, len) = self.rows(region);
        let mut fresh = true;
        for (start, from) in starts.iter().zip(values.chunks(len.max(1))) {
            self.data[*start..start + len].copy_from_slice(from);
            let written = &mut self.written[*start..start + len];
            fresh &= written.iter().all(|w| !w);
            written.fill(true);
            self.unwritten = self.unwritten.saturating_sub(len);
        }
        fresh
    }
}

/// Whether all tables in memory that a launch fills are those of the launch, and results the pipeline's.
pub(super) fn check(points: &Points<'_>, epoch: i64, dims: &Dims<'_>) -> Result<()> {
    let plan = points.plan;
    let fills = plan.families.values().map(|f| Moved::Integers.by(plan, f));
    if !fills.collect::<Result<Vec<_>, _>>()?.contains(&true) {
        return Ok(());
    }
    let unrolled = unroll::unroll(points, epoch, Moved::Integers)?;
    let mut memory = given(points, &unrolled)?;
    let mut pending: Vec<usize> = (0..unrolled.tasks.len()).collect();
    let mut read = 0;
    while !pending.is_empty() {
        let (before, mut later) = (pending.len(), Vec::new());
        for task in pending {
            match made(&unrolled, &memory, task, &mut read)? {
                Ok(made) => {
                    for (touch, values) in made {
                        let slab = &mut memory[touch.slab as usize];
                        if !slab.write(unrolled.region(&touch), &values) {
                            let message =
                                format!("{} is written twice", unrolled.described(&touch));
                            return Err(FieldError::misfit(unrolled.place(task), message));
                        }
                    }
                }
                Err(missing) => later.push((task, missing)),
            }
        }
        if let (true, Some((task, missing))) = (later.len() == before, later.first()) {
            let region = unrolled.described(missing);
            return Err(FieldError::Unwritten { place: unrolled.place(*task), region });
        }
        if read > MAX_READ {
            return Err(FieldError::TooLarge { what: "integers that tasks read".into() });
        }
        pending = later.into_iter().map(|(task, _)| task).collect();
    }
    compare(points, &unrolled, &memory)?;
    results(&unrolled, &memory, dims)
}

/// Memory of which inputs are given.
fn given(points: &Points<'_>, unrolled: &Unrolled<'_>) -> Result<Vec<Slab>> {
    let plan = points.plan;
    let (mut all, mut total) = (Vec::new(), 0usize);
    for slab in &unrolled.slabs {
        let shape = &unrolled.shapes[slab.buffer.index()][slab.rank];
        let shape: Vec<usize> = shape.iter().map(|n| (*n).max(0) as usize).collect();
        let len = shape.iter().product::<usize>();
        total = total.saturating_add(len);
        if total > MAX_INTEGERS {
            return Err(FieldError::TooLarge { what: "integers of memory".into() });
        }
        let buffer = &plan.buffers[slab.buffer];
        let table = plan.tables.iter().find(|(_, t)| t.stored == Some(slab.buffer));
        let known = match (buffer.space, table) {
            (Space::In, Some((id, _))) => Some(points.contents(slab.rank, id)),
            (Space::In, None) => {
                let what = format!("`{}`, memory of integers", buffer.name);
                return Err(FieldError::unsupported(what, "keep tensors in floating point"));
            }
            _ => None,
        };
        let mut data = known.map_or_else(|| vec![0; len], <[i32]>::to_vec);
        data.resize(len, 0);
        let unwritten = if known.is_some() { 0 } else { len };
        all.push(Slab { shape, data, written: vec![known.is_some(); len], unwritten });
    }
    Ok(all)
}

type Written = Vec<(Touch, Vec<i32>)>;

/// What a task writes, or the first region of those that it reads that is not there.
fn made(
    unrolled: &Unrolled<'_>,
    memory: &[Slab],
    task: usize,
    read: &mut usize,
) -> Result<Result<Written, Touch>> {
    let run = &unrolled.tasks[task];
    let family = &unrolled.plan.families[run.family];
    let touches = &unrolled.touches[run.touches.start as usize..run.touches.end as usize];
    let mut there = Vec::new();
    for t in touches.iter().filter(|t| !t.write) {
        let region = unrolled.region(t);
        let Some(data) = memory[t.slab as usize].read(region) else { return Ok(Err(*t)) };
        *read = read.saturating_add(data.len());
        there.push((*t, data));
    }
    let mut out = Vec::new();
    for t in touches.iter().filter(|t| t.write) {
        let values = match &family.leaf {
            Leaf::Tabulate(Tabulate { of }) => {
                let lines = family.accesses.iter().enumerate();
                let lines = lines.filter(|(_, a)| a.operand == Operand::Src);
                let source = |(line, _)| {
                    let own = there.iter().find(|(t, _)| usize::from(t.access) == line);
                    own.map_or_else(Source::default, |(t, data)| {
                        let region = unrolled.region(t);
                        let columns = region.last().map_or(1, |d| d.1 as usize);
                        let first_row = region.first().map_or(0, |d| d.0 as usize);
                        Source { data: Cow::Borrowed(&**data), columns, first_row }
                    })
                };
                let src: Vec<Source<'_>> = lines.map(source).collect();
                let results = family.accesses.iter().enumerate();
                let mut results = results.filter(|(_, a)| a.operand == Operand::Dst);
                let result = results.position(|(line, _)| line == usize::from(t.access));
                of.filled(&src, unrolled.region(t), run.rank as usize, result)
                    .map_err(|e| FieldError::misfit(unrolled.place(task), e.to_string()))?
            }
            leaf if leaf.copies() => {
                let mut from = there.iter().map(|(t, _)| *t).enumerate().collect();
                sources(&mut from, t.phase, run.last);
                let from = paired(&from, t.each);
                from.iter().flat_map(|i| there[*i].1.iter().copied()).collect()
            }
            other => {
                let what = format!("arithmetic of {} on integers", other.name());
                return Err(FieldError::unsupported(what, "keep tensors in floating point"));
            }
        };
        let len = unrolled.region(t).iter().map(|d| d.1 as usize).product::<usize>();
        if values.len() != len {
            let what = format!("`{}` takes {len} integers, and gets {}", t.operand, values.len());
            return Err(FieldError::misfit(unrolled.place(task), what));
        }
        out.push((*t, values));
    }
    Ok(Ok(out))
}

/// Results of integers are what the pipeline makes.
fn results(unrolled: &Unrolled<'_>, memory: &[Slab], dims: &Dims<'_>) -> Result<()> {
    let outputs = unrolled.plan.buffers.iter().filter(|(_, b)| b.space == Space::Out);
    for ((buffer, b), value) in outputs.zip(dims.program.results()) {
        let Some(Def::Node(node)) = dims.program.def(*value) else { continue };
        if node.op != Op::Dropped {
            continue;
        }
        for rank in 0..dims.world {
            let want = dims.dropped(node.inputs[1], dims.place(rank));
            let mut slabs = unrolled.slabs.iter().zip(memory);
            let own = slabs.find(|(s, _)| (s.buffer, s.rank) == (buffer, rank));
            let is = own.and_then(|(_, slab)| slab.read(&[(0, 1)])).map(|all| all[0]);
            let Some(is) = is else {
                let place = format!("the result `{}`", b.name);
                return Err(FieldError::Unwritten { place, region: format!("it on rank {rank}") });
            };
            if is != want {
                let table = format!("the result `{}`", b.name);
                return Err(FieldError::Entry { table, rank, entry: 0, is, want });
            }
        }
    }
    Ok(())
}

/// Tables in memory have the entries of the launch, where they were written.
fn compare(points: &Points<'_>, unrolled: &Unrolled<'_>, memory: &[Slab]) -> Result<()> {
    for (id, t) in points.plan.tables.iter() {
        let Some(buffer) = t.stored else { continue };
        let slabs = unrolled.slabs.iter().zip(memory).filter(|(s, _)| s.buffer == buffer);
        for (slab, has) in slabs {
            let want = points.contents(slab.rank, id);
            let all = has.data.iter().zip(&has.written).zip(want).enumerate();
            let mut wrong = all.filter(|(_, ((is, written), want))| **written && is != want);
            if let Some((entry, ((is, _), want))) = wrong.next() {
                return Err(FieldError::Entry {
                    table: format!("{id} {:?}", t.name),
                    rank: slab.rank,
                    entry,
                    is: *is,
                    want: *want,
                });
            }
        }
    }
    Ok(())
}
