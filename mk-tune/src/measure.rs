//! Measures many configs of one pipeline in one process.
//!
//! Planning, proving and compiling run in parallel. Kernels are then bound, judged and timed for a few rounds, one beside
//! the other, in batches that fit memory; the best of all batches stay bound and are timed for more rounds, interleaved.
//! Inputs and reference are made once.

use super::{choose::in_parallel, facts::Facts, space};
use crate::{
    build,
    function::{FunctionError, Kernel},
    harness::{Case, HarnessError, Norms, Tolerance, gpu::Bench, gpu::middle},
};
use mk_abi::KernelSource;
use mk_codegen::passes::Config;
use mk_runtime::{
    InstanceOptions, World,
    jit::{Compiled, JitOptions},
};
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
    /// Seed of the inputs. Default: 0.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            rounds: 5,
            finalists: 8,
            final_rounds: 20,
            batch_bytes: 24 << 30,
            wait_limit: Duration::from_secs(5),
            seed: 0,
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
    pub norms: Norms,
}

/// Why a config has no time.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Refused {
    /// It has no plan, no kernel, or cannot be compiled or bound.
    #[error(transparent)]
    Build(#[from] FunctionError),
    /// It could not be launched, or gave up.
    #[error(transparent)]
    Run(#[from] HarnessError),
    /// Its result is wrong.
    #[error("the result is wrong: error {:.2e}, worst tile {:.2e}, {} elements not finite", .0.global, .0.worst_tile, .0.nonfinite)]
    Wrong(Norms),
    /// It makes the same kernel as another config.
    #[error("the same kernel as {0}")]
    Same(String),
}

/// Times configs of one pipeline on the GPUs of a world, best first; those without a time come last.
///
/// # Errors
/// [`HarnessError`] where not even inputs or reference can be made. What goes wrong with one config is its
/// [`Trial::outcome`].
pub fn measure(
    world: &World,
    case: Case<'_>,
    configs: &[Config],
    jit: &JitOptions,
    limits: &Limits,
) -> Result<Vec<Trial>, HarnessError> {
    let facts = Facts::new(case.program, case.bound, world.size());
    let mut built: Vec<Result<Built, Refused>> =
        in_parallel(configs, |config| build_one(case, config, jit).map_err(Refused::from));
    only_once(&mut built, configs, &facts);
    let mut race =
        Race { world, case, jit, limits, bench: None, trials: Vec::new(), leaders: Vec::new() };
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
    race.finish()
}

struct Built {
    source: KernelSource,
    compiled: Compiled,
}

fn build_one(case: Case<'_>, config: &Config, jit: &JitOptions) -> Result<Built, FunctionError> {
    let planned = build::plan(case.program, case.bound, config)?;
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
                let first = configs.get(*first).map(|c| space::write(c, facts));
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
    norms: Norms,
    times: Vec<f32>,
}

struct Race<'a> {
    world: &'a World,
    case: Case<'a>,
    jit: &'a JitOptions,
    limits: &'a Limits,
    /// Made with the first kernel that can be bound.
    bench: Option<Bench<'a>>,
    trials: Vec<Trial>,
    /// The best so far, still bound.
    leaders: Vec<Runner>,
}

impl Race<'_> {
    fn refuse(&mut self, config: Config, why: impl Into<Refused>) {
        self.trials.push(Trial { config, outcome: Err(why.into()) });
    }

    /// Binds, judges and times a batch; what is not among the best so far is let go.
    fn heat(&mut self, batch: Vec<(Config, Built)>) -> Result<(), HarnessError> {
        let mut runners = Vec::new();
        for (config, built) in batch {
            match self.bind(&built) {
                Err(why) => self.refuse(config, why),
                Ok(mut kernel) => {
                    if self.bench.is_none() {
                        let seed = self.limits.seed;
                        self.bench =
                            Some(Bench::new(self.world, self.case, &kernel, self.jit, seed)?);
                    }
                    let Some(bench) = &self.bench else { continue };
                    match bench.judge(&mut kernel) {
                        Err(why) => self.refuse(config, why),
                        Ok(norms) if !Tolerance::default().accepts(&norms) => {
                            self.refuse(config, Refused::Wrong(norms));
                        }
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
        Kernel::bind(self.world, self.case.program, &built.source, &built.compiled, &options)
    }

    /// Times each for some rounds, after one to warm up. Each round begins with another one.
    fn rounds(&mut self, mut runners: Vec<Runner>, rounds: usize) -> Vec<Runner> {
        let Some(bench) = &self.bench else { return runners };
        runners.iter_mut().for_each(|r| r.times.clear());
        let mut failed = Vec::new();
        for round in 0..=rounds {
            if !runners.is_empty() {
                let n = runners.len();
                runners.rotate_left(round % n);
            }
            let mut going = Vec::with_capacity(runners.len());
            for mut runner in runners {
                match bench.time_ms(&mut runner.kernel, round) {
                    Ok(ms) => {
                        if round > 0 {
                            runner.times.push(ms);
                        }
                        going.push(runner);
                    }
                    Err(why) => failed.push((runner.config, why)),
                }
            }
            runners = going;
        }
        failed.into_iter().for_each(|(config, why)| self.refuse(config, why));
        runners
    }

    /// Times the best again, and judges them again: what is reported was right after the last launch, too.
    fn finish(mut self) -> Result<Vec<Trial>, HarnessError> {
        let leaders = std::mem::take(&mut self.leaders);
        let leaders = self.rounds(leaders, self.limits.final_rounds);
        for mut runner in leaders {
            let Some(bench) = &self.bench else { continue };
            match bench.judge(&mut runner.kernel) {
                Err(why) => self.refuse(runner.config, why),
                Ok(norms) if !Tolerance::default().accepts(&norms) => {
                    self.refuse(runner.config, Refused::Wrong(norms));
                }
                Ok(_) => self.trials.push(runner.done()),
            }
        }
        // More rounds first: a median of few is not compared with one of many.
        self.trials.sort_by(|a, b| match (&a.outcome, &b.outcome) {
            (Ok(a), Ok(b)) => b.rounds.cmp(&a.rounds).then(a.median_ms.total_cmp(&b.median_ms)),
            (a, b) => a.is_err().cmp(&b.is_err()),
        });
        Ok(self.trials)
    }
}

impl Runner {
    fn done(self) -> Trial {
        let (median_ms, least_ms) = middle(&self.times);
        let timed = Timed { median_ms, least_ms, rounds: self.times.len(), norms: self.norms };
        Trial { config: self.config, outcome: Ok(timed) }
    }
}
