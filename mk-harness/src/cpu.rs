//! Plans on the CPU executor.

use super::{
    Case, Dense, Expected, HarnessError, Held, Inputs, Judgement, Result, Routing, check_work,
    grid::Grid, judge, math::round,
};
use mk_abi::DType;
use mk_codegen::{
    plan::{BufId, Buffer, Entity, Mesh, Plan, Space, TabId, TableSource},
    sim::{self, Caller, Options, RunReport, Schedule},
};
use mk_function::build::Composition;
use mk_runtime::reference::random_value;
use mk_syntax::ValueId;
use std::collections::BTreeMap;

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// The order of steps.
    pub schedule: Schedule,
    /// Seed of inputs and schedule.
    pub seed: u64,
    /// Launches in a row, each with other inputs.
    pub launches: u32,
    /// Whether to keep what ranks hold in the last launch.
    pub keep: bool,
    /// How many rows experts have.
    pub routing: Routing,
}

impl Default for CpuOptions {
    /// Random order, seed 0, 3 launches; nothing is kept.
    fn default() -> CpuOptions {
        CpuOptions {
            schedule: Schedule::Random,
            seed: 0,
            launches: 3,
            keep: false,
            routing: Routing::default(),
        }
    }
}

impl CpuOptions {
    pub(super) fn executor(&self) -> Options {
        Options {
            schedule: self.schedule,
            seed: self.seed,
            launches: self.launches,
            ..Options::default()
        }
    }
}

/// A run that came to its end.
#[derive(Clone, Debug)]
pub struct CpuRun {
    /// What the executor did.
    pub report: RunReport,
    /// What each rank left, all results together, by launch (from 0) and rank.
    pub judged: Vec<Vec<Judgement>>,
    /// What ranks held in the last launch, where that is kept: inputs and results.
    pub held: Vec<Held>,
}

/// Runs a plan and compares every rank of every launch with the dense reference.
///
/// # Errors
/// [`HarnessError::TooLarge`] before anything runs; [`HarnessError::Mismatch`] for a plan of another pipeline;
/// [`HarnessError::Sim`].
pub fn run_on_cpu(case: Case<'_>, plan: &Plan, options: &CpuOptions) -> Result<CpuRun> {
    run_by(case, plan, options, |plan, user| Ok(sim::run(plan, user, &options.executor())?))
}

/// Runs a plan by `run`, with the caller that makes its inputs and judges its results.
pub(super) fn run_by(
    case: Case<'_>,
    plan: &Plan,
    options: &CpuOptions,
    run: impl FnOnce(&Plan, &mut dyn Caller) -> Result<RunReport>,
) -> Result<CpuRun> {
    check_work(case, options.launches)?;
    let plan = &at(plan, case);
    let mut user = User::new(case, &plan.mesh, options)?;
    user.keep = Keep::new(plan, options);
    let values = case.program.tensors().iter().map(|t| (t.name.as_str(), t.id)).collect();
    user.meet(plan, &values, case.program.results())?;
    let report = run(plan, &mut user)?;
    match user.failure {
        Some(error) => Err(error),
        None => Ok(CpuRun { report, judged: user.judged, held: user.keep.list }),
    }
}

/// [`run_on_cpu`] of a pipeline as it is made: of one kernel, or of its parts, each of which gets what those before it
/// left. The reference is that of the whole. Returns the report of each kernel.
///
/// # Errors
/// As [`run_on_cpu`].
pub fn run_made_on_cpu(
    case: Case<'_>,
    made: &Composition,
    options: &CpuOptions,
) -> Result<(Vec<RunReport>, Vec<Vec<Judgement>>)> {
    if let ([], [planned]) = (made.parts.as_slice(), made.kernels.as_slice()) {
        let run = run_on_cpu(case, &planned.plan, options)?;
        return Ok((vec![run.report], run.judged));
    }
    check_work(case, options.launches)?;
    let alone = Mesh::world(case.ranks as u32);
    let mesh = made.kernels.first().map_or(&alone, |planned| &planned.plan.mesh);
    let mut user = User::new(case, mesh, options)?;
    let mut reports = Vec::new();
    for (part, planned) in made.parts.iter().zip(&made.kernels) {
        let names = part.program.tensors().iter().map(|t| t.name.as_str());
        let values = names.zip(part.inputs.iter().copied()).collect();
        user.meet(&planned.plan, &values, &part.results)?;
        reports.push(sim::run(&planned.plan, &mut user, &options.executor())?);
    }
    match user.failure {
        Some(error) => Err(error),
        None => Ok((reports, user.judged)),
    }
}

/// The plan as a launch with the case's sizes runs it.
fn at(plan: &Plan, case: Case<'_>) -> Plan {
    let Some((dim, _)) = plan.runtime_dim() else { return plan.clone() };
    let name = plan.dims.get(dim).map(|d| d.name.as_str()).unwrap_or_default();
    let symbol = case.program.symbol(name).map(mk_syntax::Dim::Sym);
    let value = symbol.and_then(|s| case.bound.dim(s)).and_then(|v| i32::try_from(v).ok());
    value.map_or_else(|| plan.clone(), |value| plan.at(dim, value))
}

/// What ranks should hold of a result, and how many ranks have not been judged.
struct Awaited {
    left: usize,
    of_ranks: Vec<Option<Expected>>,
}

/// The caller of a run: makes inputs, judges outputs.
struct User<'a> {
    /// Of each group along the pipeline's axes.
    inputs: Vec<Inputs<'a>>,
    case: Case<'a>,
    grid: Grid,
    /// What the plan's tensors are in the pipeline, and whether each rank has its own number of their rows.
    tensors: BTreeMap<BufId, (ValueId, bool)>,
    results: BTreeMap<BufId, ValueId>,
    /// What ranks hold of values that a plan left for another one, by launch.
    between: BTreeMap<(i64, usize, ValueId), Vec<f32>>,
    /// What each rank should hold, of the launches that some rank is still in.
    expected: BTreeMap<(i64, usize, ValueId), Awaited>,
    judged: Vec<Vec<Judgement>>,
    keep: Keep,
    failure: Option<HarnessError>,
}

/// What is kept of a run.
#[derive(Default)]
struct Keep {
    /// The launch, from 1; none where nothing is kept.
    launch: Option<i64>,
    /// Names, types and directions of a plan's tensors.
    tensors: BTreeMap<BufId, (String, DType, bool)>,
    list: Vec<Held>,
}

impl Keep {
    /// What `options` ask for of a plan.
    fn new(plan: &Plan, options: &CpuOptions) -> Keep {
        let ends = plan.buffers.iter().filter(|(_, b)| matches!(b.space, Space::In | Space::Out));
        let of = |b: &Buffer| (b.name.clone(), b.dtype, b.space == Space::In);
        Keep {
            launch: options.keep.then_some(i64::from(options.launches)),
            tensors: ends.map(|(id, b)| (id, of(b))).collect(),
            list: Vec::new(),
        }
    }

    fn take(&mut self, epoch: i64, rank: usize, buffer: BufId, shape: &[usize], values: &[f32]) {
        let Some((name, dtype, input)) = self.tensors.get(&buffer) else { return };
        if self.launch != Some(epoch) {
            return;
        }
        self.list.push(Held {
            name: name.clone(),
            rank,
            input: *input,
            shape: shape.iter().map(|n| *n as u64).collect(),
            dtype: *dtype,
            values: values.to_vec(),
        });
    }
}

impl<'a> User<'a> {
    fn new(case: Case<'a>, mesh: &Mesh, options: &CpuOptions) -> Result<User<'a>> {
        let grid = Grid::new(case, mesh)?;
        let inputs = (0..grid.groups())
            .map(|group| grid.inputs(case, options.seed, group).routed(options.routing));
        let (inputs, world) = (inputs.collect(), grid.world);
        Ok(User {
            inputs,
            case,
            grid,
            tensors: BTreeMap::new(),
            results: BTreeMap::new(),
            between: BTreeMap::new(),
            expected: BTreeMap::new(),
            judged: vec![vec![Judgement::default(); world]; options.launches as usize],
            keep: Keep::default(),
            failure: None,
        })
    }

    /// The next run is of this plan, whose inputs and results are these values of the pipeline.
    fn meet(
        &mut self,
        plan: &Plan,
        values: &BTreeMap<&str, ValueId>,
        results: &[ValueId],
    ) -> Result<()> {
        self.tensors.clear();
        for (id, buffer) in plan.buffers.iter().filter(|(_, b)| b.space == Space::In) {
            let value = values.get(buffer.name.as_str()).ok_or_else(|| {
                HarnessError::mismatch(format!("the pipeline has no tensor `{}`", buffer.name))
            })?;
            self.tensors.insert(id, (*value, buffer.own_rows));
        }
        let outputs = plan.buffers.iter().filter(|(_, b)| b.space == Space::Out);
        self.results = outputs.map(|o| o.0).zip(results.iter().copied()).collect();
        if self.results.len() != results.len() {
            return Err(HarnessError::mismatch("the plan and the pipeline have other results"));
        }
        Ok(())
    }

    fn judge(
        &mut self,
        launch: i64,
        rank: usize,
        result: ValueId,
        shape: &[usize],
        values: &[f32],
    ) -> Result<()> {
        let (group, place) = self.grid.of(rank);
        let (ranks, key) = (self.case.ranks, (launch, group, result));
        if !self.expected.contains_key(&key) {
            let dense = Dense::new(self.inputs[group], launch as u64);
            let of_ranks = dense.expected(result)?.into_iter().map(Some).collect();
            self.expected.insert(key, Awaited { left: ranks, of_ranks });
        }
        let Some(awaited) = self.expected.get_mut(&key) else { return Ok(()) };
        let want = awaited.of_ranks.get_mut(place).and_then(Option::take);
        awaited.left -= 1;
        if awaited.left == 0 {
            self.expected.remove(&key);
        }
        let mut want = want.ok_or_else(|| HarnessError::mismatch("a result that comes twice"))?;
        if let Some(own) = self.inputs[group].own_rows(launch as u64, result, place) {
            let columns = want.matrix.cols;
            want.matrix = want.matrix.pick(columns, 0..own * columns);
        }
        let n = want.matrix.data.len();
        if n != values.len() {
            let what = format!(
                "rank {rank} holds {shape:?} of the result, {} elements, where the pipeline gives {n}",
                values.len(),
            );
            return Err(HarnessError::mismatch(what));
        }
        let judged = judge(values, &want);
        let of_launch = self.judged.get_mut(launch as usize - 1);
        if let Some(all) = of_launch.and_then(|ranks| ranks.get_mut(rank)) {
            *all = std::mem::take(all).and(judged);
        }
        Ok(())
    }
}

impl Caller for User<'_> {
    fn input(&mut self, epoch: i64, rank: usize, buffer: BufId, shape: &[usize]) -> Vec<f32> {
        let Some((value, own_rows)) = self.tensors.get(&buffer) else { return Vec::new() };
        let Some(tensor) = self.case.program.tensors().get(value.index()) else {
            // The executor refuses what is not there.
            return self.between.get(&(epoch, rank, *value)).cloned().unwrap_or_default();
        };
        let (group, place) = self.grid.of(rank);
        let element = self.inputs[group].elements(epoch as u64, tensor, place);
        let mut shape = shape.to_vec();
        // Fewer than the plan has room for, where they come with the launch.
        let inputs = &self.inputs[group];
        let given = || Some(*inputs.layout(tensor, place).ok()?.shape().first()? as usize);
        let own = inputs.own_rows(epoch as u64, tensor.id, place);
        if let (true, Some(rows)) = (*own_rows, shape.first_mut()) {
            *rows = own.or_else(given).map_or(*rows, |own| own.min(*rows));
        }
        let values: Vec<f32> = (0..shape.iter().product()).map(|i| element(i) as f32).collect();
        self.keep.take(epoch, rank, buffer, &shape, &values);
        values
    }

    fn table(&mut self, _: i64, _: usize, _: TabId) -> Vec<i32> {
        // A pipeline has no tables; the executor refuses an empty one.
        Vec::new()
    }

    fn output(&mut self, epoch: i64, rank: usize, buffer: BufId, shape: &[usize], values: &[f32]) {
        let Some(result) = self.results.get(&buffer).copied() else { return };
        self.keep.take(epoch, rank, buffer, shape, values);
        let program = self.case.program;
        if program.nodes().iter().any(|n| n.inputs.contains(&result)) {
            self.between.insert((epoch, rank, result), values.to_vec());
        }
        if !program.results().contains(&result) {
            return;
        }
        if let Err(error) = self.judge(epoch, rank, result, shape, values) {
            self.failure.get_or_insert(error);
        }
    }
}

/// Runs a plan of which the pipeline is not known, once under the schedule and once under another one, with other
/// random choices.
///
/// # Errors
/// [`HarnessError::Unsupported`] for a plan with run-time tables; [`HarnessError::Sim`].
pub fn repeat_on_cpu(plan: &Plan, options: &CpuOptions) -> Result<Repeated> {
    if plan.tables.values().any(|t| matches!(t.source, TableSource::Runtime { .. })) {
        return Err(HarnessError::unsupported(
            "a plan with run-time tables, which its caller makes",
        ));
    }
    let (report, first, held) = record(plan, options, &options.executor())?;
    let schedule = match options.schedule {
        Schedule::Reversed => Schedule::Random,
        _ => Schedule::Reversed,
    };
    let other = Options { schedule, seed: options.seed.wrapping_add(1), ..options.executor() };
    let (_, second, _) = record(plan, &CpuOptions { keep: false, ..*options }, &other)?;
    let nonfinite = first.values().flatten().filter(|x| !x.is_finite()).count();
    let pairs = first.values().flatten().zip(second.values().flatten());
    let differ = pairs.filter(|(x, y)| x.to_bits() != y.to_bits()).count();
    Ok(Repeated { report, nonfinite, differ, held })
}

/// Two runs of a plan in different orders.
#[derive(Clone, Debug)]
pub struct Repeated {
    /// What the executor did in the first.
    pub report: RunReport,
    /// Elements of the first one's results that are not finite.
    pub nonfinite: usize,
    /// Elements that differ in a bit.
    pub differ: usize,
    /// What ranks held in the last launch of the first, where that is kept: inputs and results.
    pub held: Vec<Held>,
}

type Outputs = BTreeMap<(i64, usize, BufId), Vec<f32>>;

/// Runs with inputs that follow from the seed of `run`, and keeps all outputs; what is asked for in full.
fn record(plan: &Plan, run: &CpuOptions, how: &Options) -> Result<(RunReport, Outputs, Vec<Held>)> {
    let mut recorder =
        Recorder { seed: run.seed, outputs: Outputs::new(), keep: Keep::new(plan, run) };
    let report = sim::run(plan, &mut recorder, how)?;
    Ok((report, recorder.outputs, recorder.keep.list))
}

/// The caller of a plan of which the pipeline is not known.
struct Recorder {
    seed: u64,
    outputs: Outputs,
    keep: Keep,
}

impl Caller for Recorder {
    fn input(&mut self, epoch: i64, rank: usize, buffer: BufId, shape: &[usize]) -> Vec<f32> {
        let place = (epoch as u64) << 32 | (rank as u64) << 16 | buffer.index() as u64;
        let seed = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(place);
        let n: usize = shape.iter().product();
        let dtype = self.keep.tensors.get(&buffer).map_or(DType::F32, |t| t.1);
        let values = (0..n as u64).map(|i| f64::from(random_value(seed, i, 1.0)));
        let values: Vec<f32> = values.map(|x| round(dtype, x) as f32).collect();
        self.keep.take(epoch, rank, buffer, shape, &values);
        values
    }

    fn table(&mut self, _: i64, _: usize, _: TabId) -> Vec<i32> {
        Vec::new()
    }

    fn output(&mut self, epoch: i64, rank: usize, buffer: BufId, shape: &[usize], values: &[f32]) {
        self.keep.take(epoch, rank, buffer, shape, values);
        self.outputs.insert((epoch, rank, buffer), values.to_vec());
    }
}
