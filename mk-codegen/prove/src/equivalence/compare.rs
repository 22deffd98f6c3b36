//! A plan's tensors beside the pipeline's, and what is wrong where they differ.

use super::{
    FieldError, Result,
    algebra::{Algebra, Block, Contributions, Numbers},
    budget::Budget,
    cells::{Cells, Lines},
    dims::{Dims, Tensor, Value},
    error::WrongElement,
    launch::{self, Scaled},
    links, program,
    unroll::Unrolled,
};
use mk_plan::{BufId, Buffer, Entity, Space};
use mk_syntax::ValueId;
use std::collections::{BTreeMap, BTreeSet};

/// One launch of a plan, and its pipeline.
pub(super) struct Case<'c, 'a> {
    unrolled: &'c Unrolled<'a>,
    dims: Dims<'c>,
    budget: Budget,
    /// Which of the pipeline's values the caller's tensors are.
    values: BTreeMap<BufId, ValueId>,
    /// The first line of each buffer on each rank.
    lines: Vec<Vec<u32>>,
    /// The line of places in a sequence.
    sequence: u32,
}

/// The first wrong element: a result, a rank, and places in what the rank has and in the whole.
pub(super) struct FirstWrong {
    result: BufId,
    rank: usize,
    at: Vec<usize>,
    wrong: (usize, usize),
    writer: Option<String>,
}

/// The outcome of a comparison.
pub(super) struct Comparison {
    pub wrong: Option<FirstWrong>,
    pub elements: u64,
    pub of: u64,
}

impl<'c, 'a> Case<'c, 'a> {
    /// Finds the caller's tensors in the pipeline, and links all dimensions.
    pub fn new(
        unrolled: &'c Unrolled<'a>,
        dims: Dims<'c>,
        budget: Budget,
        lines: &mut Lines,
    ) -> Result<Case<'c, 'a>> {
        let plan = unrolled.plan;
        let mut first = Vec::new();
        for of_ranks in &unrolled.shapes {
            let mut of_buffer = Vec::new();
            for shape in of_ranks {
                let all: Vec<u32> = shape.iter().map(|n| lines.line(*n)).collect();
                of_buffer.push(all.first().copied().unwrap_or(0));
            }
            first.push(of_buffer);
        }
        let sequence = lines.line(0);
        let values = BTreeMap::new();
        let mut case = Case { unrolled, dims, budget, values, lines: first, sequence };
        let interface = |what: String| FieldError::Interface { what };
        for (id, b) in plan.buffers.iter().filter(|(_, b)| b.space == Space::In) {
            let tensor = case.dims.program.tensor(&b.name);
            let tensor = tensor
                .ok_or_else(|| interface(format!("the pipeline has no tensor `{}`", b.name)))?;
            case.values.insert(id, tensor.id);
        }
        let outputs: Vec<BufId> =
            plan.buffers.iter().filter(|(_, b)| b.space == Space::Out).map(|(id, _)| id).collect();
        let results = case.dims.program.results();
        if outputs.len() != results.len() {
            let (n, m) = (outputs.len(), results.len());
            return Err(interface(format!("it has {n} results, and the pipeline {m}")));
        }
        case.values.extend(outputs.into_iter().zip(results.iter().copied()));
        for (id, buffer) in plan.buffers.iter() {
            if let Some(value) = case.values.get(&id) {
                case.meet(id, buffer, *value, lines)?;
            }
        }
        links::tasks(lines, unrolled, |slab| case.line(slab), sequence)?;
        for window in plan.families.values().filter_map(|f| f.leaf.mask()?.window()) {
            lines.apart(sequence, window);
        }
        Ok(case)
    }

    /// A caller's tensor has the type and extents of the value, and its dimensions are parts of the value's.
    fn meet(&self, id: BufId, buffer: &Buffer, value: ValueId, lines: &mut Lines) -> Result<()> {
        let of_pipeline = self.dims.program.ty(value).map(|t| t.dtype);
        let same = of_pipeline == Some(buffer.dtype);
        if !same {
            let want = of_pipeline.map_or("", mk_syntax::DType::name);
            let what =
                format!("`{}` is {}, and {want} in the pipeline", buffer.name, buffer.dtype.name());
            return Err(FieldError::Interface { what });
        }
        for rank in 0..self.dims.world {
            let n = self.dims.program.ty(value).map_or(0, |t| t.dims.len());
            let parts: Vec<_> =
                (0..n).map(|d| self.dims.stretches(value, self.dims.place(rank), d)).collect();
            let shape = &self.unrolled.shapes[id.index()][rank];
            let len = |part: &Vec<(i32, i32)>| part.iter().map(|p| i64::from(p.1)).sum();
            let want: Vec<i64> = parts.iter().map(len).collect();
            if *shape != want {
                let what = format!(
                    "`{}` is {shape:?} on rank {rank}, and {want:?} in the pipeline",
                    buffer.name
                );
                return Err(FieldError::Interface { what });
            }
            for (d, part) in parts.iter().enumerate() {
                let own = self.lines[id.index()][rank] + d as u32;
                let mut at = 0;
                for (base, len) in part.iter().filter(|p| p.1 > 0) {
                    lines.link((own, at, *len), (self.dims.line(value, d), *base, *len));
                    at += len;
                }
            }
        }
        Ok(())
    }

    /// The first line of a slab.
    fn line(&self, slab: u32) -> u32 {
        let slab = &self.unrolled.slabs[slab as usize];
        self.lines[slab.buffer.index()][slab.rank]
    }

    /// Both sides in some arithmetic: the pipeline's values, and the plan's memory.
    #[allow(clippy::type_complexity)]
    fn both<A: Algebra>(
        &self,
        algebra: &mut A,
        cells: &Cells,
    ) -> Result<(Vec<Vec<Value<A::Elem>>>, Vec<Scaled<A::Elem>>)> {
        let most = self.budget.work;
        let groups = 0..self.dims.world / self.dims.ranks.max(1);
        let values = groups.map(|g| program::evaluate(algebra, &self.dims, cells, g, most));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let given = |_: &mut A, slab: u32| {
            let slab = self.unrolled.slabs[slab as usize];
            let is_input = self.unrolled.plan.buffers[slab.buffer].space == Space::In;
            let value = self.values.get(&slab.buffer).filter(|_| is_input)?;
            let (shape, places) = self.places(*value, slab.rank, cells);
            let whole = self.of(&values, *value, slab.rank);
            Some(Scaled::given(shape, places.into_iter().map(|i| whole.data[i]).collect()))
        };
        let line_of = |slab| self.line(slab);
        let places = (line_of, self.sequence);
        let memory = launch::run(algebra, self.unrolled, cells, places, most, given)?;
        Ok((values, memory))
    }

    /// What a rank has of a value, where it is not sharded.
    fn of<'v, E>(&self, values: &'v [Vec<Value<E>>], value: ValueId, rank: usize) -> &'v Tensor<E> {
        values[self.dims.group(rank)][value.index()].on(self.dims.place(rank))
    }

    /// The scaled extents of a rank's part of a value, and where its elements are in the scaled whole.
    fn places(&self, value: ValueId, rank: usize, cells: &Cells) -> (Vec<usize>, Vec<usize>) {
        let (mut shape, mut places) = (Vec::new(), vec![0]);
        let dims = self.dims.program.ty(value).map_or(0, |t| t.dims.len());
        for d in 0..dims {
            let line = self.dims.line(value, d);
            let stretches = self.dims.stretches(value, self.dims.place(rank), d);
            let of = |(base, len): (i32, i32)| cells.at(line, base)..cells.at(line, base + len);
            let held: Vec<usize> = stretches.into_iter().flat_map(of).collect();
            let n = cells.extent(line);
            shape.push(held.len());
            places = places.iter().flat_map(|p| held.iter().map(move |i| p * n + i)).collect();
        }
        (shape, places)
    }

    /// The newest version of an element of a result: its slab.
    fn newest<E: Copy>(
        &self,
        memory: &[Scaled<E>],
        slabs: &[u32],
        at: usize,
    ) -> Option<(u32, Option<usize>)> {
        let written = slabs.iter().filter_map(|s| Some((*s, memory[*s as usize].written(at)?)));
        written.max_by_key(|(s, _)| self.unrolled.slabs[*s as usize].version)
    }

    fn slabs(&self, buffer: BufId, rank: usize) -> Vec<u32> {
        let all = self.unrolled.slabs.iter().enumerate();
        let own = all.filter(|(_, s)| s.buffer == buffer && s.rank == rank);
        own.map(|(i, _)| i as u32).collect()
    }

    fn results(&self) -> impl Iterator<Item = (BufId, ValueId)> {
        let outputs = self.unrolled.plan.buffers.iter().filter(|(_, b)| b.space == Space::Out);
        outputs.filter_map(|(id, _)| Some((id, *self.values.get(&id)?)))
    }

    /// Compares all results on all ranks.
    pub fn compare(&self, numbers: &mut Numbers, cells: &Cells) -> Result<Comparison> {
        let (values, memory) = self.both(numbers, cells)?;
        let mut found = Comparison { wrong: None, elements: 0, of: 0 };
        for (result, value) in self.results() {
            let (experts, along) = (self.dims.experts(value), self.dims.rows_along(value));
            for rank in 0..self.dims.world {
                let (shape, places) = self.places(value, rank, cells);
                let columns = whole_columns(&self.dims, value, cells);
                // Rows of no expert have no value.
                let none = |place: usize| {
                    experts.as_ref().is_some_and(|experts| {
                        let at = if along == 0 { place / columns } else { place % columns };
                        let row = cells.original(self.dims.line(value, along), at);
                        !matches!(experts.get(row as usize), Some(Some(_)))
                    })
                };
                let slabs = self.slabs(result, rank);
                let whole = self.of(&values, value, rank);
                let (mut wrong, mut first) = (0, None);
                for (i, place) in places.iter().enumerate() {
                    let newest = self.newest(&memory, &slabs, i);
                    let holds = newest.map(|(s, _)| memory[s as usize].data[i]);
                    if holds != Some(whole.data[*place]) && !none(*place) {
                        wrong += 1;
                        first.get_or_insert(i);
                    }
                }
                found.elements += places.len() as u64;
                let extents = &self.unrolled.shapes[result.index()][rank];
                found.of += extents.iter().map(|n| *n as u64).product::<u64>();
                if let (Some(i), None) = (first, &found.wrong) {
                    let at = unflattened(i, &shape);
                    let wrong = (wrong, places.len());
                    let writer = self.newest(&memory, &slabs, i).and_then(|(_, task)| task);
                    let writer = writer.map(|task| self.unrolled.place(task));
                    found.wrong = Some(FirstWrong { result, rank, at, wrong, writer });
                }
            }
        }
        Ok(found)
    }

    /// Puts into words what the first wrong element is made of, if the sets can say it.
    pub fn explain(
        &self,
        sets: &mut Contributions,
        cells: &Cells,
        first: FirstWrong,
        launch: String,
    ) -> Result<WrongElement> {
        let FirstWrong { result, rank, at, wrong, writer } = first;
        let line = self.lines[result.index()][rank];
        let element = at.iter().zip(line..).map(|(i, line)| cells.original(line, *i)).collect();
        let mut told = WrongElement {
            launch,
            result: self.unrolled.plan.buffers[result].name.clone(),
            rank,
            element,
            wrong,
            writer,
            listed: false,
            missing: Vec::new(),
            extra: Vec::new(),
            expected: Vec::new(),
        };
        let (values, memory) = match self.both(sets, cells) {
            Err(_) if sets.spent() => return Ok(told),
            both => both?,
        };
        let value = self.values[&result];
        let (shape, places) = self.places(value, rank, cells);
        let i = at.iter().zip(&shape).fold(0, |sum, (i, n)| sum * n + i);
        let newest = self.newest(&memory, &self.slabs(result, rank), i);
        let want = sets.of(self.of(&values, value, rank).data[places[i]]);
        let has = newest.map(|(s, _)| sets.of(memory[s as usize].data[i])).unwrap_or_default();
        let of = |blocks: &mut dyn Iterator<Item = &Block>| self.described(cells, blocks);
        told.missing = of(&mut want.difference(&has));
        told.extra = of(&mut has.difference(&want));
        told.expected = of(&mut want.iter());
        told.listed = true;
        Ok(told)
    }

    /// Blocks in words: by tensor and rank, as few boxes as a look tells.
    fn described(&self, cells: &Cells, blocks: &mut dyn Iterator<Item = &Block>) -> Vec<String> {
        let mut by_tensor: BTreeMap<_, Vec<&Block>> = BTreeMap::new();
        for b in blocks {
            by_tensor.entry((b.tensor, b.group, b.rank)).or_default().push(b);
        }
        let mut list = Vec::new();
        for ((tensor, group, place), blocks) in by_tensor {
            let ranks = || (0..self.dims.world).filter(move |r| self.dims.group(*r) == group);
            let rank = place.and_then(|place| ranks().find(|r| self.dims.place(*r) == place));
            let value = ValueId::new(tensor);
            let of_dim = |d: usize| {
                let of: BTreeSet<usize> = blocks.iter().map(|b| b.cells[d]).collect();
                let line = self.dims.line(value, d);
                let mut text: Vec<(i32, i32)> = Vec::new();
                for cell in &of {
                    let (begin, end) = cells.bounds(line, *cell);
                    match text.last_mut() {
                        Some(last) if last.1 == begin => last.1 = end,
                        _ => text.push((begin, end)),
                    }
                }
                let text: Vec<_> = text.iter().map(|(a, b)| format!("{a}:{b}")).collect();
                (of.len(), text.join(" and "))
            };
            let n = blocks[0].cells.len();
            let (sizes, texts): (Vec<usize>, Vec<String>) = (0..n).map(of_dim).unzip();
            let whole = sizes.iter().product::<usize>() == blocks.len();
            let name = &self.dims.program.tensors()[tensor].name;
            let part = if whole { "" } else { "parts of " };
            let owner = match rank {
                Some(rank) => format!(" of rank {rank}"),
                None => self.owners(value, cells, &blocks, ranks()),
            };
            list.push(format!("{part}{name}[{}]{owner}", texts.join(", ")));
        }
        list
    }

    /// The ranks that hold blocks of a sharded tensor.
    fn owners(
        &self,
        value: ValueId,
        cells: &Cells,
        blocks: &[&Block],
        of: impl Iterator<Item = usize>,
    ) -> String {
        let cut: Vec<usize> = self.dims.placements(value).iter().filter_map(|p| p.cut()).collect();
        if cut.is_empty() {
            return String::new();
        }
        let holds = |rank: &usize| {
            let inside = |b: &&Block, d: usize| {
                let stretches = self.dims.stretches(value, self.dims.place(*rank), d);
                let (begin, _) = cells.bounds(self.dims.line(value, d), b.cells[d]);
                stretches.iter().any(|(base, len)| (*base..base + len).contains(&begin))
            };
            blocks.iter().any(|b| cut.iter().all(|d| inside(b, *d)))
        };
        let ranks: Vec<String> = of.filter(holds).map(|r| r.to_string()).collect();
        match &ranks[..] {
            [one] => format!(" of rank {one}"),
            several if several.len() == self.dims.world => String::new(),
            several => format!(" of ranks {}", several.join(", ")),
        }
    }
}

/// Elements of a row of the scaled whole.
fn whole_columns(dims: &Dims<'_>, value: ValueId, cells: &Cells) -> usize {
    let n = dims.program.ty(value).map_or(0, |t| t.dims.len());
    (1..n).map(|d| cells.extent(dims.line(value, d))).product::<usize>().max(1)
}

fn unflattened(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        at[d] = i % shape[d];
        i /= shape[d];
    }
    at
}
