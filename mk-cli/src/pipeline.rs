//! From the command line to a plan: reads, checks, binds, lowers, verifies.

use crate::{
    failure::Failure,
    gpus,
    options::{DEFAULT_RANKS, PipelineArgs, has_extension, once},
    progress::Progress,
};
use mk::{
    Bound, Program,
    cost::DeviceModel,
    file,
    ir::Plan,
    passes::{self},
    runtime::{World, jit::JitOptions},
    settings::Config,
    tune,
    valid::{self, Proof, Violation},
};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// What the PIPELINE argument stands for.
pub struct Loaded {
    /// The plan.
    pub plan: Plan,
    /// What it was made from, or what it is said to compute; nothing for a plan that was read, and of which that is not known.
    pub pipeline: Option<Pipeline>,
    /// Whether it was read, and not made here.
    is_read: bool,
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

/// Longest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// What the PIPELINE argument says, before it is lowered.
pub enum Opened {
    /// A plan, how long reading took, and the pipeline that it is said to compute.
    Plan(Box<Plan>, Duration, Option<Box<Pipeline>>),
    /// A pipeline.
    Pipeline(Box<Pipeline>),
}

/// Reads the PIPELINE argument; of a plan, also the pipeline that it is said to compute. Options for sizes are then the pipeline's.
pub fn open(args: &PipelineArgs, reference: Option<&str>) -> Result<Opened, Failure> {
    let begin = Instant::now();
    match (args.is_plan(), reference) {
        (true, None) => Ok(Opened::Plan(Box::new(read_plan(args)?), begin.elapsed(), None)),
        (true, Some(reference)) => {
            let pipeline = bind(&PipelineArgs { pipeline: reference.into(), ..args.clone() })?;
            let sizes = PipelineArgs { shapes: Vec::new(), dims: Vec::new(), ..args.clone() };
            let plan = read_plan(&sizes)?;
            Ok(Opened::Plan(Box::new(plan), begin.elapsed(), Some(Box::new(pipeline))))
        }
        (false, None) => Ok(Opened::Pipeline(Box::new(bind(args)?))),
        (false, Some(_)) => Err(Failure::with_help(
            "`--reference` says what a plan computes, and a pipeline is its own reference",
            "leave the option out",
        )),
    }
}

impl Opened {
    /// Whether nothing says what it computes.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Opened::Plan(_, _, None))
    }

    /// Number of ranks.
    pub fn ranks(&self, args: &PipelineArgs) -> u32 {
        match self {
            Opened::Plan(plan, ..) => plan.mesh.size(),
            Opened::Pipeline(_) => args.ranks.unwrap_or(DEFAULT_RANKS),
        }
    }

    /// Lowers it with the settings of the options, for the GPUs of a world where there is one.
    pub fn lower(self, args: &PipelineArgs, world: Option<&World>) -> Result<Loaded, Failure> {
        let pipeline = match self {
            Opened::Pipeline(pipeline) => pipeline,
            Opened::Plan(plan, time, reference) => {
                let pipeline = reference.map(|pipeline| *pipeline);
                return Ok(Loaded { plan: *plan, pipeline, is_read: true, time });
            }
        };
        let mut config = chosen(args, &pipeline)?;
        if let Some(world) = world {
            gpus::fit(&mut config, world, args)?;
        }
        let begin = Instant::now();
        let plan =
            passes::lower(&pipeline.program, &pipeline.bound, &config).map_err(Failure::new)?;
        let time = begin.elapsed();
        Ok(Loaded { plan, pipeline: Some(*pipeline), is_read: false, time })
    }
}

/// Makes or reads the plan.
pub fn load(args: &PipelineArgs) -> Result<Loaded, Failure> {
    open(args, None)?.lower(args, None)
}

/// [`load`], then the verifier.
pub fn load_verified(args: &PipelineArgs) -> Result<Loaded, Failure> {
    let loaded = load(args)?;
    loaded.verify()?;
    Ok(loaded)
}

impl Loaded {
    /// Proves the plan right, and says how long that took.
    pub fn verify(&self) -> Result<(Proof, Duration), Failure> {
        let _progress = Progress::new("verifying");
        let begin = Instant::now();
        let failure = match valid::verify(&self.plan) {
            Ok(proof) => return Ok((proof, begin.elapsed())),
            Err(failure) => failure,
        };
        let too_large = |v: &Violation| matches!(v, Violation::Limit { .. });
        Err(if failure.violations.iter().all(too_large) {
            let help = match self.is_read {
                false => "use smaller numbers (`--dim`, `--shape`)",
                true => {
                    "the numbers stand in the plan: make them smaller there, or make the plan anew from its pipeline with smaller ones"
                }
            };
            Failure::with_help(failure.to_string().trim_end(), help)
        } else if !self.is_read {
            Failure::new(format!("internal error, a pass is wrong: {failure}"))
        } else {
            Failure::new(failure.to_string())
        })
    }
}

/// The text of a file that a person or mk has written; of one that does not end, a device say, no more than such a file may have.
pub fn read(path: &Path) -> Result<String, Failure> {
    let failed = |what: String| Failure::new(format!("cannot read {}: {what}", path.display()));
    let file = std::fs::File::open(path).map_err(|e| failed(e.to_string()))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    let length = read.map_err(|e| failed(e.to_string()))? as u64;
    if length > MAX_FILE_BYTES {
        return Err(failed(format!("it is longer than {} MiB", MAX_FILE_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8 text".into()))
}

fn read_plan(args: &PipelineArgs) -> Result<Plan, Failure> {
    let path = &args.pipeline;
    if let Some(flag) = args.given().first() {
        return Err(Failure::with_help(
            format!("{path} is a plan, which has its numbers already: `{flag}` does not apply"),
            "give the pipeline that it was made from, or leave the option out",
        ));
    }
    let plan: Plan =
        read(Path::new(path))?.parse().map_err(|e| Failure::new(format!("{path}: {e}")))?;
    plan.check_structure().map_err(|errors| {
        let list: Vec<String> = errors.iter().map(|e| format!("\n  {e}")).collect();
        Failure::new(format!("{path} is not a well-formed plan:{}", list.concat()))
    })?;
    Ok(plan)
}

/// Reads and checks the pipeline, and gives its symbols numbers.
pub fn bind(args: &PipelineArgs) -> Result<Pipeline, Failure> {
    if args.is_plan() {
        return Err(Failure::with_help(
            format!("{} is a plan, which has its settings already", args.pipeline),
            "give the pipeline that it was made from",
        ));
    }
    let is_file = has_extension(&args.pipeline, "mk");
    let text = if is_file { read(Path::new(&args.pipeline))? } else { args.pipeline.clone() };
    let place = |mistakes: mk::Diagnostics| match is_file {
        true => mistakes.in_file(&args.pipeline),
        false => mistakes,
    };
    let hint = match !is_file && Path::new(&args.pipeline).is_file() {
        true => "\n\nnote: there is a file of that name; a pipeline is read from files x.mk only",
        false => "",
    };
    let program = Program::parse(&text)
        .map_err(|mistakes| Failure::rendered(format!("{}{hint}", place(mistakes))))?;
    let shapes = once("shape", &args.shapes).map_err(Failure::new)?;
    let mut dims = if is_file {
        file::defaults(&text).map_err(|mistakes| Failure::rendered(place(mistakes)))?
    } else {
        Default::default()
    };
    // A shape on the command line is worth more than a default.
    for name in shapes.keys() {
        for dim in program.tensor(name).map_or(&[][..], |t| &t.ty.dims) {
            if let mk::syntax::Dim::Sym(symbol) = dim {
                dims.remove(&program.symbols()[symbol.index()].name);
            }
        }
    }
    dims.extend(once("dim", &args.dims).map_err(Failure::new)?);
    let bound = program
        .bind(&dims, &shapes)
        .map_err(|mistakes| Failure::rendered(format!("{mistakes}{hint}")))?;
    Ok(Pipeline { program, bound })
}

/// The name of the GPU that is meant: the first of this machine, or the one that mk has figures of.
pub fn gpu_name() -> String {
    let found = World::local(1).and_then(|world| world.gpu_name(0));
    found.unwrap_or_else(|_| DeviceModel::h200().gpu.clone())
}

/// Whether the settings are left to mk.
pub fn searched(args: &PipelineArgs) -> Result<bool, Failure> {
    match args.settings().next() {
        Some((setting, value)) if args.tuned => Err(Failure::with_help(
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
pub fn chosen(args: &PipelineArgs, pipeline: &Pipeline) -> Result<Config, Failure> {
    let given = config(args)?;
    if !args.tuned {
        return Ok(given);
    }
    searched(args)?;
    let (program, bound) = (&pipeline.program, &pipeline.bound);
    let cache = tune::Cache::new(&JitOptions::default());
    let _progress = Progress::new("choosing settings");
    let decision = tune::decide(program, bound, given.ranks, &gpu_name(), cache.as_ref());
    for note in &decision.notes {
        note_on_stderr(note);
    }
    Ok(decision.config)
}

/// Says what does not stop anything.
pub fn note_on_stderr(note: impl std::fmt::Display) {
    say_on_stderr(format_args!("note: {note}"));
}

/// A line, or several, on stderr.
pub fn say_on_stderr(text: impl std::fmt::Display) {
    // Without stderr there is nobody left to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The world and the settings that the options say.
pub fn config(args: &PipelineArgs) -> Result<Config, Failure> {
    args.config().map_err(Failure::new)
}
