//! From the command line to a plan: reads, checks, binds, lowers, verifies.

use crate::{
    failure::Failure,
    options::{AllReduce, Consumers, DEFAULT_RANKS, Fold, PipelineArgs, Sums, TileSchedule, once},
    progress::Progress,
};
use mk::{
    Bound, Program,
    cost::DeviceModel,
    file,
    ir::Plan,
    passes::{self, Config},
    runtime::{World, jit::JitOptions},
    tune,
    valid::{self, Proof, Violation},
};
use std::io::{Read as _, Write as _};
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

/// What the PIPELINE argument stands for.
pub struct Loaded {
    /// The plan.
    pub plan: Plan,
    /// What it was made from; nothing for a plan that was read.
    pub pipeline: Option<Pipeline>,
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

/// Makes or reads the plan.
pub fn load(args: &PipelineArgs) -> Result<Loaded, Failure> {
    let begin = Instant::now();
    if is_plan(&args.pipeline) {
        let plan = read_plan(args)?;
        return Ok(Loaded { plan, pipeline: None, time: begin.elapsed() });
    }
    let pipeline = bind(args)?;
    let config = chosen(args, &pipeline)?;
    let begin = Instant::now();
    let plan = passes::lower(&pipeline.program, &pipeline.bound, &config).map_err(Failure::new)?;
    Ok(Loaded { plan, pipeline: Some(pipeline), time: begin.elapsed() })
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
            let help = match &self.pipeline {
                Some(_) => "use smaller numbers (`--dim`, `--shape`)",
                None => {
                    "the numbers stand in the plan: make them smaller there, or make the plan anew from its pipeline with smaller ones"
                }
            };
            Failure::with_help(failure.to_string().trim_end(), help)
        } else if self.pipeline.is_some() {
            Failure::new(format!("internal error, a pass is wrong: {failure}"))
        } else {
            Failure::new(failure.to_string())
        })
    }
}

/// Whether the argument is a plan's file: text or JSON.
fn is_plan(path: &str) -> bool {
    has_extension(path, "plan") || has_extension(path, "json")
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|e| e == extension)
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
    let text = String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8 text".into()))?;
    // Editors of some systems write a byte order mark.
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_string(),
        None => text,
    })
}

fn read_plan(args: &PipelineArgs) -> Result<Plan, Failure> {
    let path = &args.pipeline;
    if let Some(flag) = args.given().first() {
        return Err(Failure::with_help(
            format!("{path} is a plan, which has its numbers already: `{flag}` does not apply"),
            "give the pipeline that it was made from, or leave the option out",
        ));
    }
    let text = read(Path::new(path))?;
    let plan: Plan = match has_extension(path, "json") {
        true => Plan::from_json(&text).map_err(|e| Failure::new(format!("{path}: {e}")))?,
        false => text.parse().map_err(|e| Failure::new(format!("{path}: {e}")))?,
    };
    plan.check_structure().map_err(|errors| {
        let list: Vec<String> = errors.iter().map(|e| format!("\n  {e}")).collect();
        Failure::new(format!("{path} is not a well-formed plan:{}", list.concat()))
    })?;
    Ok(plan)
}

/// Whether an argument is a path and no pipeline: those have brackets.
fn looks_like_a_file(text: &str) -> bool {
    let path = Path::new(text);
    !text.contains(['(', ' ', '\n']) && (path.extension().is_some() || text.contains('/'))
}

/// Reads and checks the pipeline, and gives its symbols numbers.
pub fn bind(args: &PipelineArgs) -> Result<Pipeline, Failure> {
    if is_plan(&args.pipeline) {
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
    let nothing =
        !is_file && looks_like_a_file(&args.pipeline) && !Path::new(&args.pipeline).exists();
    if nothing {
        return Err(Failure::with_help(
            format!("there is no file `{}`", args.pipeline),
            "give a pipeline, such as 'gather(a) -> gemm(b)', or a file: x.mk is a pipeline, x.plan or x.json a plan",
        ));
    }
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

/// Whether it is left to mk how to lower, as it is where no option says it.
pub fn searched(args: &PipelineArgs) -> Result<bool, Failure> {
    match args.lowering().first() {
        Some(flag) if args.tuned => Err(Failure::with_help(
            format!("`--tuned` leaves it to mk how to lower, and `{flag}` says it"),
            "leave either out",
        )),
        first => Ok(first.is_none()),
    }
}

/// How the options say to lower, or how tuning does.
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

/// How the options say to lower.
pub fn config(args: &PipelineArgs) -> Result<Config, Failure> {
    let mut default = Config::default();
    if let Some(block) = args.block {
        default.set_block(block);
    }
    Ok(Config {
        ranks: args.ranks.unwrap_or(DEFAULT_RANKS),
        sms: once("sms", &args.sms).map_err(Failure::new)?,
        all_reduce: match args.all_reduce {
            Some(AllReduce::OneShot) => passes::AllReduce::OneShot,
            Some(AllReduce::ByColumns) => passes::AllReduce::ByColumns,
            Some(AllReduce::TwoPhase) | None => passes::AllReduce::TwoPhase,
        },
        sums: match args.sums {
            Some(Sums::After) => passes::Sums::After,
            Some(Sums::Ring) => passes::Sums::Ring,
            Some(Sums::OnWrite) => passes::Sums::OnWrite,
            Some(Sums::Epilogue) => passes::Sums::Epilogue,
            Some(Sums::Beside) | None => passes::Sums::Beside,
        },
        chunk_bytes: args.chunk_bytes.unwrap_or(default.chunk_bytes),
        k_slices: args.k_slices.unwrap_or(default.k_slices),
        gather: args.gather.unwrap_or(default.gather),
        tail: args.tail.and_then(|tail| tail.0),
        own_columns: args.own_columns.and_then(|columns| columns.0).map(NonZeroU32::get),
        head: args.head.and_then(|head| head.0),
        split_k: args.split_k.unwrap_or(default.split_k),
        fold: match args.fold {
            Some(Fold::Owner) => passes::Fold::Owner,
            Some(Fold::Rank) | None => passes::Fold::Rank,
        },
        group_rows: args.group_rows.unwrap_or(default.group_rows),
        consumers: match args.consumers {
            Some(Consumers::PingPong) => passes::Consumers::PingPong,
            Some(Consumers::Cooperative) | None => passes::Consumers::Cooperative,
        },
        tile_schedule: match args.tile_schedule {
            Some(TileSchedule::Dynamic) => passes::Schedule::Dynamic,
            Some(TileSchedule::Static) | None => passes::Schedule::Static,
        },
        ..default
    })
}
