//! From the command line to a plan: reads, checks, binds, lowers, verifies.

use crate::{
    failure::{Failure, Kind, Result},
    gpus,
    options::{PipelineArgs, has_extension, once},
    progress::Progress,
    source::{self, Form, STDIN},
    terminal::note_on_stderr,
};
use mk::{
    Bound, Program,
    abi::KernelSource,
    check::{self, CheckError, Checked, Claim},
    cost::{DeviceModel, Gpu},
    emit::Options,
    equivalence::FieldError,
    file,
    passes::{self, NotProved, Shown, Stage},
    plan::{Places, Plan},
    runtime::{World, jit::JitOptions},
    settings::Config,
    syntax::Op,
    tune,
};
use std::path::Path;
use std::time::{Duration, Instant};

/// What the PIPELINE argument stands for.
pub struct Loaded {
    /// The plan.
    pub plan: Plan,
    /// What it was made from, or what it is said to compute; nothing for a plan that was read, and of which that is not
    /// known.
    pub pipeline: Option<Pipeline>,
    /// Plans that are looked at in its place, if it is a large one that was made here.
    pub smaller: Option<passes::Smaller>,
    /// Whether it was read, and not made here.
    pub is_read: bool,
    /// How long lowering, or reading, took.
    pub time: Duration,
}

/// A pipeline with numbers for its symbols.
pub struct Pipeline {
    /// The pipeline.
    pub program: Program,
    /// Its sizes.
    pub bound: Bound,
}

impl Pipeline {
    /// With the sizes that it has on so many ranks of a mesh.
    fn on(mut self, ranks: u32, mesh: &[(String, u32)], args: &PipelineArgs) -> Result<Pipeline> {
        let ranks = self.program.ranks_of_experts(ranks, mesh);
        let bound = self.bound.on(&self.program, ranks);
        self.bound = bound.map_err(|mistakes| Failure::in_numbers(&mistakes, hint(args)))?;
        Ok(self)
    }

    /// Over the axes that a plan of it places tensors over.
    fn over_placed_axes(self) -> Pipeline {
        let program = self.program.over_placed_axes().into_owned();
        Pipeline { program, ..self }
    }

    /// The places along its axes of a plan's mesh.
    pub fn places(&self, plan: &Plan) -> Result<Places> {
        let [places, _] = plan.mesh.places(self.program.mesh_axes()).map_err(|name| {
            let what = format!("the plan's mesh has no axis `{name}`, which the pipeline is over");
            let help = "name another pipeline, or another axis in it";
            Failure::usage(what, help)
        })?;
        Ok(places)
    }
}

/// What the PIPELINE argument says, before it is lowered.
pub enum Opened {
    /// A plan, how long reading took, and the pipeline that it is said to compute.
    Plan(Box<Plan>, Duration, Option<Box<Pipeline>>),
    /// A pipeline.
    Pipeline(Box<Pipeline>),
}

/// Reads the PIPELINE argument; of a plan, also the pipeline that the option `flag` says it computes. Options for sizes
/// are then the pipeline's.
pub fn open(args: &PipelineArgs, flag: &str, reference: Option<&str>) -> Result<Opened> {
    let begin = Instant::now();
    match (args.is_plan(), reference) {
        (true, None) => Ok(Opened::Plan(Box::new(read_plan(args)?), begin.elapsed(), None)),
        (true, Some(STDIN)) if args.pipeline == STDIN => Err(Failure::usage(
            format!("stdin cannot be a plan and the pipeline of `{flag}`"),
            "give one of them as a file",
        )),
        (true, Some(reference)) => {
            let pipeline = bind(&PipelineArgs { pipeline: reference.into(), ..args.clone() })?;
            let sizes = PipelineArgs { shapes: Vec::new(), dims: Vec::new(), ..args.clone() };
            let plan = read_plan(&sizes)?;
            Ok(Opened::Plan(Box::new(plan), begin.elapsed(), Some(Box::new(pipeline))))
        }
        (false, None) => Ok(Opened::Pipeline(Box::new(bind(args)?))),
        (false, Some(_)) => Err(Failure::usage(
            format!("`{flag}` says what a plan computes, and a pipeline says so itself"),
            "leave the option out",
        )),
    }
}

impl Opened {
    /// Whether nothing says what it computes.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Opened::Plan(_, _, None))
    }

    /// Whether rows go to experts, or tokens are in documents; nothing where that is not known.
    pub fn is_routed(&self) -> Option<bool> {
        let pipeline = match self {
            Opened::Plan(_, _, None) => return None,
            Opened::Plan(_, _, Some(pipeline)) | Opened::Pipeline(pipeline) => pipeline,
        };
        let is_routed =
            |op: Op| matches!(op, Op::GroupedGemm { .. } | Op::GroupedWgrad | Op::Dispatch { .. });
        let nodes = pipeline.program.nodes();
        Some(nodes.iter().any(|node| is_routed(node.op) || node.documents().is_some()))
    }

    /// Number of ranks.
    pub fn ranks(&self, args: &PipelineArgs) -> u32 {
        match self {
            Opened::Plan(plan, ..) => plan.mesh.size(),
            Opened::Pipeline(_) => args.ranks(),
        }
    }

    /// Number of nodes that the ranks are on.
    pub fn nodes(&self, args: &PipelineArgs) -> u32 {
        match self {
            Opened::Plan(plan, ..) => {
                let local = plan.nic.and_then(|nic| nic.local);
                local.map_or(1, |local| plan.mesh.size() / local.max(1))
            }
            Opened::Pipeline(_) => args.nodes.unwrap_or(1),
        }
    }

    /// Lowers it with the settings of the options, for the GPUs of a world where there is one.
    pub fn lower(self, args: &PipelineArgs, world: Option<&World>) -> Result<Loaded> {
        let pipeline = match self {
            Opened::Pipeline(pipeline) => pipeline,
            Opened::Plan(plan, time, reference) => {
                let (ranks, mesh) = (plan.mesh.size(), &plan.mesh.axes);
                let pipeline = |pipeline: Box<Pipeline>| {
                    Ok::<_, Failure>(pipeline.on(ranks, mesh, args)?.over_placed_axes())
                };
                let pipeline = reference.map(pipeline).transpose()?;
                return Ok(Loaded { plan: *plan, pipeline, smaller: None, is_read: true, time });
            }
        };
        let mut config = chosen(args, &pipeline)?;
        if let Some(world) = world {
            gpus::fit(&mut config, world, args)?;
        }
        let begin = Instant::now();
        let pipeline = pipeline.on(config.ranks, &config.mesh, args)?;
        let Pipeline { program, bound } = &pipeline;
        let plan = passes::lower(program, bound, &config)
            .map_err(|error| error.with_what_fits(program, bound, &config))?;
        let time = begin.elapsed();
        tracing::debug!(plan = plan.name, ?time, ranks = plan.mesh.size(), "lowered");
        let smaller = passes::smaller(&pipeline.program, &pipeline.bound, &config, &plan);
        let pipeline = Some(pipeline.over_placed_axes());
        Ok(Loaded { plan, pipeline, smaller, is_read: false, time })
    }
}

/// Makes or reads the plan.
pub fn load(args: &PipelineArgs) -> Result<Loaded> {
    open(args, "", None)?.lower(args, None)
}

impl Loaded {
    /// The plan, and what is said of it.
    fn claim(&self) -> Claim<'_> {
        let computes = self.pipeline.as_ref().map(|p| (&p.program, &p.bound));
        match computes {
            Some((program, bound)) if !self.is_read => {
                Claim::made(&self.plan, program, bound, self.smaller.as_ref())
            }
            computes => Claim::read(&self.plan, computes),
        }
    }

    /// Whether the plan is right, computes what it shall, and has a kernel.
    pub fn check(&self, options: Options) -> Result<Checked> {
        let checked = check::check_with(&self.claim(), options, |stage| {
            Progress::new(match stage {
                Stage::Verify => "verifying",
                Stage::Evaluate => "evaluating",
                Stage::Both => "proving",
            })
        });
        let checked = checked.map_err(|error| self.refused(error))?;
        let Shown { verify_time, evaluate_time, .. } = checked.shown;
        tracing::debug!(plan = self.plan.name, ?verify_time, ?evaluate_time, "proved");
        Ok(checked)
    }

    /// The kernel of a plan that is right, and has one.
    pub fn kernel(&self, options: Options) -> Result<KernelSource> {
        self.check(options)?.into_kernel().map_err(|error| self.refused(error))
    }

    /// Proves the plan right, for a run that is judged by results: whether it computes what it shall, and has a kernel,
    /// is not asked.
    pub fn verify(&self) -> Result<()> {
        let _progress = Progress::new("verifying");
        self.claim().verify().map(drop).map_err(|failure| self.refused(failure.into()))
    }

    /// What is said of a plan that is refused.
    pub fn refused(&self, error: CheckError) -> Failure {
        let error = match error {
            CheckError::NotProved(error) => error,
            CheckError::NoKernel(refusals) => return Failure::no_kernel(&refusals),
            error => return error.into(),
        };
        let is_too_large = error.is_too_large();
        match (error, self.is_read) {
            (NotProved::Compute(error), _) if is_too_large => Failure::new(Kind::TooLarge, error),
            (NotProved::Compute(error @ FieldError::Unsupported { .. }), _) => {
                Failure::new(Kind::Unsupported, error)
            }
            (NotProved::Compute(error), false) => {
                Failure::new(Kind::Internal, format!("internal error, a pass is wrong: {error}"))
            }
            (NotProved::Compute(error), true) => Failure::new(Kind::Refused, error),
            (NotProved::Verify(failure), false) if is_too_large => {
                Failure::too_large(&failure, "use smaller numbers (`--dim`, `--shape`)")
            }
            (NotProved::Verify(failure), true) if is_too_large => Failure::too_large(
                &failure,
                "the numbers stand in the plan: make them smaller there, or make the plan anew from its pipeline with \
                 smaller ones",
            ),
            (NotProved::Verify(failure), false) => {
                let before = "internal error, a pass is wrong: ";
                Failure::refused(Kind::Internal, before, &failure, None)
            }
            (NotProved::Verify(failure), true) => {
                Failure::refused(Kind::Refused, "", &failure, None)
            }
        }
    }
}

fn read_plan(args: &PipelineArgs) -> Result<Plan> {
    let path = &args.pipeline;
    if let Some(flag) = args.given().first() {
        return Err(Failure::usage(
            format!("{path} is a plan, which has its numbers already: `{flag}` does not apply"),
            "give the pipeline that it was made from, or leave the option out",
        ));
    }
    let (path, text) = match path.as_str() {
        STDIN => ("stdin", source::stdin()?.to_string()),
        path => (path, source::read(Path::new(path))?),
    };
    let plan: Plan = match source::form(&args.pipeline) == Form::PlanJson {
        true => Plan::from_json(&text)
            .map_err(|e| Failure::new(Kind::Pipeline, format!("{path}: {e}")))?,
        false => text.parse().map_err(|e| Failure::new(Kind::Pipeline, format!("{path}: {e}")))?,
    };
    plan.check_structure().map_err(|errors| {
        let list: Vec<String> = errors.iter().map(|e| format!("\n  {e}")).collect();
        match errors.iter().all(|e| e.too_large) {
            true => Failure::new(Kind::TooLarge, format!("{path} is too large:{}", list.concat())),
            false => {
                let what = format!("{path} is not a well-formed plan:{}", list.concat());
                Failure::new(Kind::Pipeline, what)
            }
        }
    })?;
    Ok(plan)
}

/// Reads and checks the pipeline, and gives its symbols numbers.
pub fn bind(args: &PipelineArgs) -> Result<Pipeline> {
    let (program, text) = parse(args)?;
    let shapes = once("shape", &args.shapes).map_err(usage)?;
    let dims = file::defaults_beside(&text, &program, shapes.keys());
    let mut dims = dims.map_err(|mistakes| mistaken(args, &mistakes, ""))?;
    // Several pipelines have one header.
    if args.item.is_some() {
        dims.retain(|name, _| program.symbol(name).is_some());
    }
    dims.extend(once("dim", &args.dims).map_err(usage)?);
    let ranks = args.config().map_or(1, |c| program.ranks_of_experts(c.ranks, &c.mesh));
    let bound = program
        .bind(&dims, &shapes)
        .and_then(|bound| bound.on(&program, ranks))
        .map_err(|mistakes| Failure::in_numbers(&mistakes, hint(args)))?;
    Ok(Pipeline { program, bound })
}

/// What may be meant by the PIPELINE argument instead.
fn hint(args: &PipelineArgs) -> &'static str {
    let is_file = args.pipeline == STDIN || has_extension(&args.pipeline, "mk");
    match !is_file && Path::new(&args.pipeline).is_file() {
        true => "\n\nnote: there is a file of that name; a pipeline is read from files x.mk only",
        false => "",
    }
}

/// Mistakes in the text of the PIPELINE argument.
fn mistaken(args: &PipelineArgs, mistakes: &mk::Diagnostics, more: &str) -> Failure {
    let is_stdin = args.pipeline == STDIN;
    let origin = if is_stdin { "stdin" } else { args.pipeline.as_str() };
    match is_stdin || has_extension(&args.pipeline, "mk") {
        true => Failure::in_text(&mistakes.clone().in_file(origin), origin, more),
        false => Failure::in_text(mistakes, "pipeline", more),
    }
}

/// The options for each pipeline of a file, or of stdin, that has several; for anything else the options as they are.
pub fn each(args: &PipelineArgs) -> Result<Vec<PipelineArgs>> {
    let is_text = args.pipeline == STDIN || has_extension(&args.pipeline, "mk");
    if args.is_plan() || !is_text {
        return Ok(vec![args.clone()]);
    }
    let items = file::items(&parse_text(args)?);
    if items.len() == 1 {
        return Ok(vec![args.clone()]);
    }
    Ok(items.into_iter().map(|item| PipelineArgs { item: Some(item), ..args.clone() }).collect())
}

/// Reads the PIPELINE argument, which is no plan: the pipeline, without sizes, and its text.
pub fn parse(args: &PipelineArgs) -> Result<(Program, String)> {
    if args.is_plan() {
        return Err(Failure::usage(
            format!("{} is a plan, which has its settings already", args.pipeline),
            "give the pipeline that it was made from",
        ));
    }
    let text = parse_text(args)?;
    let program =
        Program::parse(&text).map_err(|mistakes| mistaken(args, &mistakes, hint(args)))?;
    Ok((program, text))
}

/// Its text.
fn parse_text(args: &PipelineArgs) -> Result<String> {
    let is_stdin = args.pipeline == STDIN;
    let is_file = is_stdin || has_extension(&args.pipeline, "mk");
    let text = match is_file {
        _ if args.item.is_some() => args.item.clone().unwrap_or_default(),
        _ if is_stdin => source::stdin()?.to_string(),
        true => source::read(Path::new(&args.pipeline))?,
        false => args.pipeline.clone(),
    };
    let nothing = !is_file && file::is_path(&args.pipeline) && !Path::new(&args.pipeline).exists();
    if nothing {
        return Err(Failure::with_help(
            Kind::File,
            format!("there is no file `{}`", args.pipeline),
            "give a pipeline, such as 'gather(a) -> gemm(b)', or a file: x.mk is a pipeline, x.plan or x.json a plan",
        ));
    }
    Ok(text)
}

/// The GPU that is meant: the first of this machine, or the one that mk has figures of.
pub fn gpu() -> Gpu {
    let found = World::local(1).and_then(|world| tune::gpu_of(&world, 0));
    found.unwrap_or_else(|_| DeviceModel::h200().gpu.as_str().into())
}

/// Refuses nodes, and axes, where settings are measured.
pub fn unmeasured(args: &PipelineArgs) -> Result<()> {
    no_mesh(args)?;
    if !args.over_nodes() {
        return Ok(());
    }
    let what = "nothing is measured over several nodes";
    let help = "leave out `--nodes`; `mk explain --nodes` takes what the cost model chooses";
    Err(Failure::usage(what, help))
}

/// Refuses axes where settings are searched.
pub fn no_mesh(args: &PipelineArgs) -> Result<()> {
    if args.mesh.is_none() {
        return Ok(());
    }
    let what = "settings are not searched over the axes of a `--mesh`";
    let help = "say by `--ranks` how many ranks are along the pipeline's axis";
    Err(Failure::usage(what, help))
}

/// Whether the settings are left to mk.
pub fn searched(args: &PipelineArgs) -> Result<bool> {
    no_mesh(args)?;
    match args.settings().next() {
        Some((setting, value)) if args.tuned => Err(Failure::usage(
            format!(
                "`--tuned` leaves settings to mk, and `--set {}={value}` sets one",
                setting.name
            ),
            "leave either out",
        )),
        first => Ok(first.is_none()),
    }
}

/// The settings of the options, or those that `--tuned` finds.
pub fn chosen(args: &PipelineArgs, pipeline: &Pipeline) -> Result<Config> {
    let given = config(args)?;
    if !args.tuned {
        return Ok(given);
    }
    searched(args)?;
    let (program, bound) = (&pipeline.program, &pipeline.bound);
    let cache = tune::Cache::new(&JitOptions::default());
    let _progress = Progress::new("choosing settings");
    let decision = tune::decide_in(program, bound, &given, &gpu(), cache.as_ref());
    for note in &decision.notes {
        note_on_stderr(note);
    }
    Ok(decision.config)
}

/// Options that contradict themselves.
fn usage(what: String) -> Failure {
    Failure::new(Kind::CommandLine, what)
}

/// The world and the settings that the options say.
pub fn config(args: &PipelineArgs) -> Result<Config> {
    args.config().map_err(usage)
}
