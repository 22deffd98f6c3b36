//! Measures many configs of one pipeline in one process.
//!
//! Planning, proving and compiling run in parallel. Kernels are then bound, judged and timed for a few rounds, one
//! beside the other, in batches that fit memory; the best of all batches stay bound and are timed for more rounds,
//! interleaved. The rig on which all of them run is made once.

use mk_abi::KernelSource;
use mk_codegen::settings::{self, Config, Facts};
use mk_function::{FunctionError, Kernel, build, choice, in_parallel};
use mk_runtime::{
    ErrorNorm, InstanceOptions, World,
    bench::median,
    jit::{Compiled, JitOptions},
};
use mk_syntax::{Bound, Program};
use std::{collections::HashMap, time::Duration};
use thiserror::Error;

/// How much effort a measurement takes.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Rounds in which everything is timed. Default: 5.
    pub rounds: usize,
    /// How many of the best are timed again. Default: 8.
    pub finalists: usize,
    /// Rounds in which those are timed. Default: 20.
    pub final_rounds: usize,
    /// Symmetric and scratch memory that kernels of one batch have together, in bytes a rank. Default: 24 GiB.
    pub batch_bytes: u64,
    /// Bound on every wait inside a kernel. Default: 5 s.
    pub wait_limit: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            rounds: 5,
            finalists: 8,
            final_rounds: 20,
            batch_bytes: 24 << 30,
            wait_limit: Duration::from_secs(5),
        }
    }
}

/// What became of a config.
#[derive(Debug)]
pub struct Trial {
    /// The config.
    pub config: Config,
    /// Its time, or why it has none.
    pub outcome: Result<Timed, Refused>,
}

impl Trial {
    /// The median in milliseconds, if it was timed.
    pub fn ms(&self) -> Option<f32> {
        self.outcome.as_ref().ok().map(|t| t.median_ms)
    }
}

/// A time: the slowest rank's, from the moment all ranks are released; inputs rotate, caches are flushed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// The median, in milliseconds.
    pub median_ms: f32,
    /// The shortest, in milliseconds.
    pub least_ms: f32,
    /// Rounds that the median is of.
    pub rounds: usize,
    /// Error against the reference.
    pub norms: ErrorNorm,
}

/// Whether results are right.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Their error against a reference, the worst of all results and ranks.
    pub norms: ErrorNorm,
    /// What is wrong with them; nothing where they are right.
    pub wrong: Option<String>,
}

/// What the candidates of one pipeline are launched on, the same tensors for each, and a reference for what they leave
/// there.
pub trait Rig {
    /// Why a launch failed, or could not be judged.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Launches a kernel on outputs that hold nothing of an earlier launch, and judges every result of every rank.
    ///
    /// # Errors
    /// What keeps this kernel from being launched or judged; others may be.
    fn judge(&self, kernel: &mut Kernel) -> Result<Judged, Self::Error>;

    /// Milliseconds of one launch on the slowest rank, from the moment all ranks are released, with inputs that no
    /// cache holds: those that are due in this `round`.
    ///
    /// # Errors
    /// As [`Rig::judge`].
    fn time_ms(&self, kernel: &mut Kernel, round: usize) -> Result<f32, Self::Error>;
}

/// Why a config has no time.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Refused {
    /// It has no plan, no kernel, or cannot be compiled or bound.
    #[error(transparent)]
    Build(#[from] FunctionError),
    /// It could not be launched or judged, or gave up.
    #[error(transparent)]
    Run(Box<dyn std::error::Error + Send + Sync>),
    /// Its result is wrong.
    #[error("the result is wrong: {0}")]
    Wrong(String),
    /// It makes the same kernel as another config.
    #[error("the same kernel as {0}")]
    Same(String),
}

/// Times configs of one pipeline on the GPUs of a world, best first; those without a time come last. `rig` makes what
/// they run on, for the first kernel that can be bound; all kernels of a pipeline take the same tensors.
///
/// # Errors
/// What `rig` says. What goes wrong with one config is its [`Trial::outcome`].
pub fn measure<R: Rig>(
    world: &World,
    (program, bound): (&Program, &Bound),
    configs: &[Config],
    jit: &JitOptions,
    limits: &Limits,
    rig: impl FnOnce(&Kernel) -> Result<R, R::Error>,
) -> Result<Vec<Trial>, R::Error> {
    let facts = choice::facts(program, bound, world.size());
    let build = |config: &Config| build_one(program, bound, config, jit).map_err(Refused::from);
    let mut built: Vec<Result<Built, Refused>> = in_parallel(configs, build);
    only_once(&mut built, configs, &facts);
    let mut race = Race {
        world,
        program,
        limits,
        rig: None,
        make_rig: Some(rig),
        trials: Vec::new(),
        leaders: Vec::new(),
    };
    let mut batch = Vec::new();
    let mut bytes = 0;
    for (config, built) in configs.iter().zip(built) {
        match built {
            Err(refused) => race.refuse(config.clone(), refused),
            Ok(built) => {
                let space = &built.source.workspace;
                let needs = space.symmetric_bytes + space.scratch_bytes;
                if bytes > 0 && bytes + needs > limits.batch_bytes {
                    race.heat(std::mem::take(&mut batch))?;
                    bytes = 0;
                }
                bytes += needs;
                batch.push((config.clone(), built));
            }
        }
    }
    race.heat(batch)?;
    Ok(race.finish())
}

struct Built {
    source: KernelSource,
    compiled: Compiled,
}

fn build_one(
    program: &Program,
    bound: &Bound,
    config: &Config,
    jit: &JitOptions,
) -> Result<Built, FunctionError> {
    let planned = build::plan(program, bound, config)?;
    let compiled = planned.compile(jit)?;
    Ok(Built { source: planned.source, compiled })
}

/// Configs that make a kernel that another one makes, too, are not measured twice.
fn only_once(built: &mut [Result<Built, Refused>], configs: &[Config], facts: &Facts) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (i, made) in built.iter_mut().enumerate() {
        let Ok(b) = made else { continue };
        match seen.get(&b.source.cuda) {
            Some(first) => {
                let first = configs.get(*first).map(|c| settings::write(c, facts));
                *made = Err(Refused::Same(first.unwrap_or_default()));
            }
            None => {
                seen.insert(b.source.cuda.clone(), i);
            }
        }
    }
}

/// A config that is bound.
struct Runner {
    config: Config,
    kernel: Kernel,
    norms: ErrorNorm,
    times: Vec<f32>,
}

struct Race<'a, R, F> {
    world: &'a World,
    program: &'a Program,
    limits: &'a Limits,
    /// Made for the first kernel that can be bound.
    rig: Option<R>,
    make_rig: Option<F>,
    trials: Vec<Trial>,
    /// The best so far, still bound.
    leaders: Vec<Runner>,
}

impl<R: Rig, F: FnOnce(&Kernel) -> Result<R, R::Error>> Race<'_, R, F> {
    fn refuse(&mut self, config: Config, why: impl Into<Refused>) {
        self.trials.push(Trial { config, outcome: Err(why.into()) });
    }

    /// The error of a kernel's results, where they are right. Without a rig nothing is.
    fn judge(&self, kernel: &mut Kernel) -> Result<ErrorNorm, Refused> {
        let Some(rig) = &self.rig else {
            return Err(Refused::Wrong("nothing was made that could judge it".into()));
        };
        let judged = rig.judge(kernel).map_err(|e| Refused::Run(Box::new(e)))?;
        judged.wrong.map_or(Ok(judged.norms), |what| Err(Refused::Wrong(what)))
    }

    /// Binds, judges and times a batch; what is not among the best so far is let go.
    fn heat(&mut self, batch: Vec<(Config, Built)>) -> Result<(), R::Error> {
        let mut runners = Vec::new();
        for (config, built) in batch {
            match self.bind(&built) {
                Err(why) => self.refuse(config, why),
                Ok(mut kernel) => {
                    if let Some(make) = self.make_rig.take() {
                        self.rig = Some(make(&kernel)?);
                    }
                    match self.judge(&mut kernel) {
                        Err(why) => self.refuse(config, why),
                        Ok(norms) => {
                            runners.push(Runner { config, kernel, norms, times: Vec::new() });
                        }
                    }
                }
            }
        }
        let runners = self.rounds(runners, self.limits.rounds);
        self.leaders.extend(runners);
        self.leaders.sort_by(|a, b| middle(&a.times).0.total_cmp(&middle(&b.times).0));
        let rest = self.leaders.split_off(self.limits.finalists.max(1).min(self.leaders.len()));
        self.trials.extend(rest.into_iter().map(Runner::done));
        Ok(())
    }

    fn bind(&self, built: &Built) -> Result<Kernel, FunctionError> {
        let options = InstanceOptions {
            wait_limit: self.limits.wait_limit,
            entry_limit: self.limits.wait_limit,
            ..InstanceOptions::default()
        };
        Kernel::bind(self.world, self.program, &built.source, &built.compiled, &options)
    }

    /// Times each for some rounds, after one to warm up. Each round begins with another one.
    fn rounds(&mut self, mut runners: Vec<Runner>, rounds: usize) -> Vec<Runner> {
        let Some(rig) = &self.rig else { return runners };
        runners.iter_mut().for_each(|r| r.times.clear());
        let mut failed = Vec::new();
        for round in 0..=rounds {
            if !runners.is_empty() {
                let n = runners.len();
                runners.rotate_left(round % n);
            }
            let mut going = Vec::with_capacity(runners.len());
            for mut runner in runners {
                match rig.time_ms(&mut runner.kernel, round) {
                    Ok(ms) => {
                        if round > 0 {
                            runner.times.push(ms);
                        }
                        going.push(runner);
                    }
                    Err(why) => failed.push((runner.config, Refused::Run(Box::new(why)))),
                }
            }
            runners = going;
        }
        failed.into_iter().for_each(|(config, why)| self.refuse(config, why));
        runners
    }

    /// Times the best again, and judges them again: what is reported was right after the last launch, too.
    fn finish(mut self) -> Vec<Trial> {
        let leaders = std::mem::take(&mut self.leaders);
        let leaders = self.rounds(leaders, self.limits.final_rounds);
        for mut runner in leaders {
            match self.judge(&mut runner.kernel) {
                Err(why) => self.refuse(runner.config, why),
                Ok(_) => self.trials.push(runner.done()),
            }
        }
        // More rounds first: a median of few is not compared with one of many.
        self.trials.sort_by(|a, b| match (&a.outcome, &b.outcome) {
            (Ok(a), Ok(b)) => b.rounds.cmp(&a.rounds).then(a.median_ms.total_cmp(&b.median_ms)),
            (a, b) => a.is_err().cmp(&b.is_err()),
        });
        self.trials
    }
}

impl Runner {
    fn done(self) -> Trial {
        let (median_ms, least_ms) = middle(&self.times);
        let timed = Timed { median_ms, least_ms, rounds: self.times.len(), norms: self.norms };
        Trial { config: self.config, outcome: Ok(timed) }
    }
}

/// The median of times in milliseconds, and the least.
fn middle(times: &[f32]) -> (f32, f32) {
    let least = times.iter().copied().fold(f32::INFINITY, f32::min);
    (median(&mut times.to_vec()), least)
}
