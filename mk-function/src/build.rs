//! From a pipeline with sizes to a loadable kernel: plan, proof, CUDA, CUBIN. Needs no GPU.

use crate::{
    FunctionError, Result,
    choice::{Choice, Fusion, Part, Verdict, parts},
    kept::{Digests, Proofs, Proved},
    parallel::in_parallel,
    progress::doing,
};
use mk_abi::KernelSource;
use mk_codegen::{
    check, emit,
    passes::{self},
    plan::Plan,
    settings::{Block, Config},
    valid::Proof,
};
use mk_runtime::{
    Error, InstanceOptions,
    jit::{self, Compiled, JitOptions},
};
use mk_syntax::{Bound, Program};
use std::{
    panic::resume_unwind,
    thread,
    time::{Duration, Instant},
};

/// A plan that is not proved yet, and its kernel as CUDA text.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The tile plan.
    pub plan: Plan,
    /// The CUDA text, and what the runtime must allocate and encode for it.
    pub source: KernelSource,
    /// How long lowering and emission took.
    pub time: Duration,
}

/// A plan that was proved right, and its kernel as CUDA text.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The tile plan.
    pub plan: Plan,
    /// What the verifier proved of it.
    pub proof: Proof,
    /// Whether an earlier process or another rank proved it ([`Proofs`]).
    pub is_kept: bool,
    /// The CUDA text, and what the runtime must allocate and encode for it.
    pub source: KernelSource,
    /// How long lowering and emission took.
    pub lower_time: Duration,
    /// How long the proof took to make, or to find.
    pub prove_time: Duration,
}

/// Lowers and emits. A function of its arguments: every rank that calls it with the same gets the same.
///
/// # Errors
/// [`FunctionError::Lower`] for what the passes do not cover, [`FunctionError::Check`] for what the emitter does not.
pub fn lower(
    program: &Program,
    bound: &Bound,
    config: &Config,
    emission: emit::Options,
) -> Result<Lowered> {
    let begin = Instant::now();
    let plan = passes::lower(program, bound, config)?;
    let source = check::kernel(&plan, emission)?;
    Ok(Lowered { plan, source, time: begin.elapsed() })
}

/// [`lower`], then the proof, by this process.
///
/// # Errors
/// As [`lower`]; [`FunctionError::Lower`] for what is too large to prove.
pub fn plan(program: &Program, bound: &Bound, config: &Config) -> Result<Planned> {
    plan_with(program, bound, config, emit::Options::default())
}

/// [`plan`], with options for the kernel.
///
/// # Errors
/// As [`plan`].
pub fn plan_with(
    program: &Program,
    bound: &Bound,
    config: &Config,
    emission: emit::Options,
) -> Result<Planned> {
    let lowered = lower(program, bound, config, emission)?;
    let (plan, source) = (&lowered.plan, &lowered.source);
    let proved = Proofs::none().prove(program, bound, config, emission, plan, source)?;
    Ok(lowered.proved(proved))
}

impl Lowered {
    /// With its proof.
    fn proved(self, Proved { proof, is_kept, time, .. }: Proved) -> Planned {
        let Lowered { plan, source, time: lower_time } = self;
        Planned { plan, proof, is_kept, source, lower_time, prove_time: time }
    }
}

impl Planned {
    /// How its kernel is bound: with workspace in common with other kernels of the world, where its proof allows that.
    pub(crate) fn instance_options(&self, options: &InstanceOptions) -> InstanceOptions {
        InstanceOptions { pooled: self.proof.exclusive.is_empty(), ..options.clone() }
    }

    /// Compiles the kernel, or reads it from the disk cache.
    ///
    /// # Errors
    /// [`FunctionError::Runtime`]: see [`jit::compile`].
    pub fn compile(&self, options: &JitOptions) -> Result<Compiled> {
        Ok(jit::compile(&self.source, options)?)
    }
}

/// Tiles that leave most epilogues the registers that they need.
const NARROW: Block = [128, 128, 64];

/// Whether NVRTC and ptxas make no kernel of the text, or one that keeps registers in memory: of other settings they
/// may.
fn is_no_kernel(error: &FunctionError) -> bool {
    use Error::{Compile, Serialised, Spill};
    matches!(error, FunctionError::Runtime(Spill { .. } | Serialised { .. } | Compile { .. }))
}

/// What takes the place of settings that have no kernel, the nearest first: they with narrower tiles; without clusters;
/// those of `instead`; those with narrower tiles.
fn nearest(chosen: &[Config], instead: &Config) -> Vec<Vec<Config>> {
    let narrow = |c: &Config| Config { block: NARROW, stages: None, ..c.clone() };
    let apart = |c: &Config| Config { cluster: 1, multicast: None, stages: None, ..c.clone() };
    let all = |of: &dyn Fn(&Config) -> Config| chosen.iter().map(of).collect();
    let defaults = [instead.clone(), narrow(instead)];
    let defaults = defaults.map(|config| vec![config; chosen.len()]);
    [all(&narrow), all(&apart)].into_iter().chain(defaults).collect()
}

/// A pipeline as it is made: its kernel, or those of its parts in the order in which they are launched.
#[derive(Clone, Debug)]
pub struct Composition<K = Planned> {
    /// As one kernel or apart, and why.
    pub verdict: Verdict,
    /// What the kernels are of; nothing for one kernel of the whole.
    pub parts: Vec<Part>,
    /// The kernels.
    pub kernels: Vec<K>,
    /// How each was lowered.
    pub configs: Vec<Config>,
    /// Choices of settings before these that have no kernel, as the compiler found out.
    pub gave_way: u32,
}

/// What a pipeline is made of, beside the choice of its settings.
#[derive(Clone, Copy, Debug)]
pub struct Making<'a> {
    /// The pipeline.
    pub program: &'a Program,
    /// Its sizes.
    pub bound: &'a Bound,
    /// What kernels do beside their plan.
    pub emission: emit::Options,
}

/// Proofs, where this process makes them, and what the compiler made meanwhile.
type ProvedAndCompiled = (Option<Vec<Proved>>, Result<Vec<Compiled>>);

/// What a process has before ranks have agreed: kernels, and their proofs where it is the one that proves.
pub(crate) struct Draft {
    made: Composition<Lowered>,
    proved: Option<Vec<Proved>>,
    compiled: Vec<Compiled>,
}

impl Composition {
    /// Lowers, emits and proves what was chosen.
    ///
    /// # Errors
    /// As [`plan`]; [`FunctionError::Mismatch`] for a choice of another pipeline.
    pub fn new(
        program: &Program,
        bound: &Bound,
        choice: &Choice,
        emission: emit::Options,
    ) -> Result<Composition> {
        Composition::with(Making { program, bound, emission }, choice, &Proofs::none())
    }

    /// [`Composition::new`], with proofs of earlier processes.
    ///
    /// # Errors
    /// As [`Composition::new`].
    pub fn with(making: Making<'_>, choice: &Choice, proofs: &Proofs) -> Result<Composition> {
        let made = Composition::lower(making, choice)?;
        let proved = made.prove(making, proofs)?;
        Ok(made.proved(proved))
    }

    /// [`Composition::with`] and [`Composition::compile`], side by side. Settings that nobody asked for give way where
    /// they have no kernel, which only the compiler finds out: to narrower tiles, to no clusters, to those of
    /// `instead`, and to those with narrower tiles; [`Composition::gave_way`] counts. Where a kernel takes too many
    /// registers with them as well, some are spilled, with a warning.
    ///
    /// # Errors
    /// As [`Composition::with`] and [`Composition::compile`].
    pub fn make(
        making: Making<'_>,
        choice: &Choice,
        options: &JitOptions,
        instead: Option<&Config>,
        proofs: &Proofs,
    ) -> Result<(Composition, Vec<Compiled>)> {
        Draft::new(making, choice, options, instead, Some(proofs))?.finish()
    }

    /// Compiles all kernels, or reads them from the disk cache.
    ///
    /// # Errors
    /// As [`Planned::compile`].
    pub fn compile(&self, options: &JitOptions) -> Result<Vec<Compiled>> {
        in_parallel(&self.kernels, |k| k.compile(options)).into_iter().collect()
    }
}

impl Composition<Lowered> {
    /// Lowers and emits what was chosen.
    fn lower(making: Making<'_>, choice: &Choice) -> Result<Self> {
        let Making { program, bound, emission } = making;
        let verdict = choice.verdict;
        let parts = match verdict.made {
            Fusion::Fused => Vec::new(),
            Fusion::Apart => parts(program, bound)
                .map_err(|why| FunctionError::mismatch(format!("it does not come apart: {why}")))?,
        };
        let (n, wanted) = (choice.configs.len(), parts.len().max(1));
        if n != wanted {
            let what = format!("{n} settings were chosen for {wanted} kernels");
            return Err(FunctionError::mismatch(what));
        }
        let configs = choice.configs.clone();
        let made = Composition { verdict, parts, kernels: Vec::new(), configs, gave_way: 0 };
        let one = |(program, bound, config): &(&Program, &Bound, &Config)| {
            lower(program, bound, config, emission)
        };
        let kernels = in_parallel(&made.pieces(making), one).into_iter().collect::<Result<_, _>>();
        kernels.map(|kernels| Composition { kernels, ..made })
    }

    /// Pipeline, sizes and settings of each kernel.
    fn pieces<'a>(&'a self, making: Making<'a>) -> Vec<(&'a Program, &'a Bound, &'a Config)> {
        let list = self.parts.iter().map(|p| (&p.program, &p.bound));
        let whole = self.parts.is_empty().then_some((making.program, making.bound));
        list.chain(whole).zip(&self.configs).map(|((p, b), c)| (p, b, c)).collect()
    }

    /// The proof of each kernel's plan.
    fn prove(&self, making: Making<'_>, proofs: &Proofs) -> Result<Vec<Proved>> {
        let list: Vec<_> = self.pieces(making).into_iter().zip(&self.kernels).collect();
        let one = |((program, bound, config), k): &((&Program, &Bound, &Config), &Lowered)| {
            proofs.prove(program, bound, config, making.emission, &k.plan, &k.source)
        };
        Ok(in_parallel(&list, one).into_iter().collect::<Result<_, _>>()?)
    }

    fn proved(self, proved: Vec<Proved>) -> Composition {
        let Composition { verdict, parts, kernels, configs, gave_way } = self;
        let kernels = kernels.into_iter().zip(proved).map(|(k, proved)| k.proved(proved)).collect();
        Composition { verdict, parts, kernels, configs, gave_way }
    }

    fn compile(&self, options: &JitOptions) -> Result<Vec<Compiled>> {
        let all = in_parallel(&self.kernels, |k| {
            let _doing = doing(format!("compiling `{}`", k.source.name));
            jit::compile(&k.source, options)
        });
        Ok(all.into_iter().collect::<Result<_, _>>()?)
    }

    /// Compiles all kernels while their plans are proved, if this process proves them.
    fn compile_and_prove(
        &self,
        making: Making<'_>,
        options: &JitOptions,
        proofs: Option<&Proofs>,
    ) -> Result<ProvedAndCompiled> {
        let compile = || self.compile(options);
        let (proved, compiled) = thread::scope(|threads| {
            let beside = thread::Builder::new().spawn_scoped(threads, compile);
            let proved = proofs.map(|proofs| self.prove(making, proofs)).transpose();
            let compiled =
                beside.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            (proved, compiled.ok())
        });
        Ok((proved?, compiled.unwrap_or_else(compile)))
    }
}

impl Draft {
    /// What [`Composition::make`] makes, with proofs where `proofs` are given.
    pub(crate) fn new(
        making: Making<'_>,
        choice: &Choice,
        options: &JitOptions,
        instead: Option<&Config>,
        proofs: Option<&Proofs>,
    ) -> Result<Draft> {
        let made = Composition::lower(making, choice)?;
        let (mut proved, compiled) = made.compile_and_prove(making, options, proofs)?;
        let (mut made, mut refused) = match compiled {
            Ok(compiled) => return Ok(Draft { made, proved, compiled }),
            Err(error) => (made, error),
        };
        let mut tried = vec![choice.configs.clone()];
        for configs in instead.into_iter().flat_map(|c| nearest(&choice.configs, c)) {
            if !is_no_kernel(&refused) {
                return Err(refused);
            }
            if tried.contains(&configs) {
                continue;
            }
            tried.push(configs.clone());
            let choice = Choice { configs, ..choice.clone() };
            // What else was chosen may not go with them.
            let Ok(other) = Composition::lower(making, &choice) else { continue };
            let Ok((proof, compiled)) = other.compile_and_prove(making, options, proofs) else {
                continue;
            };
            tracing::debug!(error = %refused, "chosen settings have no kernel: the next ones are tried");
            (made, proved) = (Composition { gave_way: made.gave_way + 1, ..other }, proof);
            refused = match compiled {
                Ok(compiled) => return Ok(Draft { made, proved, compiled }),
                Err(error) => error,
            };
        }
        if instead.is_none() || !matches!(refused, FunctionError::Runtime(Error::Spill { .. })) {
            return Err(refused);
        }
        tracing::warn!(error = %refused, "registers are spilled, which costs time");
        let compiled = made.compile(&JitOptions { allow_spills: true, ..options.clone() })?;
        Ok(Draft { made, proved, compiled })
    }

    /// What this process says to those that do not prove: [`Draft::hear`]. Nothing of one that does not.
    pub(crate) fn say(&self) -> String {
        self.proved.iter().flatten().map(Proved::write).collect()
    }

    /// Takes the proofs of the process that proves, where they are of the same plans and kernels.
    ///
    /// # Errors
    /// [`FunctionError::Mismatch`] for what is no proof; [`Error::Disagree`], of this `rank`.
    pub(crate) fn hear(&mut self, said: &str, rank: u32) -> Result<()> {
        let lines: Vec<&str> = said.split_inclusive('\n').collect();
        let all = lines.chunks(Proved::LINES).map(|lines| Proved::read(&lines.concat()));
        let all: Option<Vec<Proved>> = all.collect();
        let all = all.ok_or_else(|| FunctionError::mismatch("rank 0 says a proof that is none"))?;
        let own = self.made.kernels.iter().map(|k| Digests::of(&k.plan, &k.source));
        if !all.iter().map(|proved| &proved.digests).eq(own.collect::<Vec<_>>().iter()) {
            let what = "the plan, which text, sizes, settings and the build of mk decide".into();
            return Err(
                Error::Disagree { during: "compiling".into(), what, rank, ranks: vec![0] }.into()
            );
        }
        self.proved = Some(all);
        Ok(())
    }

    /// With its proofs.
    ///
    /// # Errors
    /// [`FunctionError::Mismatch`] where there are none: an error of this crate.
    pub(crate) fn finish(self) -> Result<(Composition, Vec<Compiled>)> {
        let Draft { made, proved, compiled } = self;
        let proved =
            proved.ok_or_else(|| FunctionError::mismatch("nobody has proved the plans"))?;
        Ok((made.proved(proved), compiled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::Reason;
    use std::collections::BTreeMap;

    /// What a process has before ranks agree, without kernels: those need a compiler.
    fn draft(config: &Config, proves: bool) -> Draft {
        let text = "pub fn f(a: bf16[256, 128] @ shard(0), b: bf16[128, 512] @ shard(1)) { gather(a) -> gemm(b) }";
        let program = Program::parse(text).expect("a pipeline");
        let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("sizes");
        let emission = emit::Options::default();
        let making = Making { program: &program, bound: &bound, emission };
        let verdict = Verdict::new(Fusion::Fused, Reason::Given);
        let choice = Choice { verdict, configs: vec![config.clone()] };
        let made = Composition::lower(making, &choice).expect("a plan");
        let proved = proves.then(|| made.prove(making, &Proofs::none()).expect("a proof"));
        Draft { made, proved, compiled: Vec::new() }
    }

    #[test]
    fn one_rank_proves_for_those_that_have_the_same_plan() {
        let config = Config { ranks: 2, ..Config::default() };
        let first = draft(&config, true);
        let said = first.say();
        let mut other = draft(&config, false);
        assert!(other.say().is_empty(), "who does not prove says nothing");
        other.hear(&said, 1).expect("the same plan");
        let (made, _) = other.finish().expect("proved");
        let (own, _) = first.finish().expect("proved");
        let proofs =
            |made: &Composition| made.kernels.iter().map(|k| k.proof.clone()).collect::<Vec<_>>();
        assert_eq!(proofs(&made), proofs(&own));
        assert!(made.kernels[0].is_kept && !own.kernels[0].is_kept);

        let narrow = Config { block: NARROW, ..config.clone() };
        let mut astray = draft(&narrow, false);
        let error = astray.hear(&said, 1).expect_err("another plan");
        assert!(
            matches!(&error, FunctionError::Runtime(Error::Disagree { rank: 1, ranks, .. }) if *ranks == [0]),
            "{error}"
        );
        let without = draft(&config, false).finish().map(|_| ()).expect_err("no proof");
        assert!(without.to_string().contains("nobody has proved"), "{without}");
        for bad in ["nonsense", &said[..said.len() / 2], &said.repeat(2), ""] {
            assert!(draft(&config, false).hear(bad, 1).is_err(), "{bad:?}");
        }
    }
}
