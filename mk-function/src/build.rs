//! From a pipeline with sizes to a loadable kernel: plan, proof, CUDA, CUBIN. Needs no GPU.

use crate::{
    choice::{Choice, Fusion, Part, Verdict, parts},
    error::FunctionError,
    parallel::in_parallel,
};
use mk_abi::KernelSource;
use mk_codegen::{
    emit::{self, emit_with},
    ir::Plan,
    passes::{self},
    settings::{Block, Config},
    valid::Proof,
};
use mk_runtime::{
    Error,
    jit::{self, Compiled, JitOptions},
};
use mk_syntax::{Bound, Program};

/// A plan that was proved right, and its kernel as CUDA text.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The tile plan.
    pub plan: Plan,
    /// What the verifier proved of it.
    pub proof: Proof,
    /// The CUDA text, and what the runtime must allocate and encode for it.
    pub source: KernelSource,
}

/// Lowers, verifies and emits. A function of its arguments: every rank that calls it with the same gets the same.
///
/// # Errors
/// [`FunctionError::Lower`] for what the passes do not cover, [`FunctionError::Emit`] for what the emitter does not.
pub fn plan(program: &Program, bound: &Bound, config: &Config) -> Result<Planned, FunctionError> {
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
) -> Result<Planned, FunctionError> {
    let (plan, proof) = passes::compile(program, bound, config)?;
    let source = emit_with(&plan, emission)?;
    Ok(Planned { plan, proof, source })
}

impl Planned {
    /// Compiles the kernel, or reads it from the disk cache.
    ///
    /// # Errors
    /// [`FunctionError::Runtime`]: see [`jit::compile`].
    pub fn compile(&self, options: &JitOptions) -> Result<Compiled, FunctionError> {
        Ok(jit::compile(&self.source, options)?)
    }
}

/// Tiles that leave most epilogues the registers that they need.
const NARROW: Block = [128, 128, 64];

/// Whether NVRTC and ptxas make no kernel of the text, or one that keeps registers in memory: of other settings they may.
fn is_no_kernel(error: &FunctionError) -> bool {
    use Error::{Compile, Serialised, Spill};
    matches!(error, FunctionError::Runtime(Spill { .. } | Serialised { .. } | Compile { .. }))
}

/// What takes the place of settings that have no kernel, the nearest first: they with narrower tiles; without clusters; those of `instead`;
/// those with narrower tiles.
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
pub struct Composition {
    /// As one kernel or apart, and why.
    pub verdict: Verdict,
    /// What the kernels are of; nothing for one kernel of the whole.
    pub parts: Vec<Part>,
    /// The kernels.
    pub kernels: Vec<Planned>,
    /// How each was lowered.
    pub configs: Vec<Config>,
    /// Choices of settings before these that have no kernel, as the compiler found out.
    pub gave_way: u32,
}

impl Composition {
    /// Lowers, verifies and emits what was chosen.
    ///
    /// # Errors
    /// As [`plan`]; [`FunctionError::Mismatch`] for a choice of another pipeline.
    pub fn new(
        program: &Program,
        bound: &Bound,
        choice: &Choice,
        emission: emit::Options,
    ) -> Result<Composition, FunctionError> {
        let verdict = choice.verdict;
        let parts = match verdict.made {
            Fusion::Fused => Vec::new(),
            Fusion::Apart => parts(program, bound)
                .map_err(|why| FunctionError::mismatch(format!("it does not come apart: {why}")))?,
        };
        let list = parts.iter().map(|p| (&p.program, &p.bound));
        let whole = parts.is_empty().then_some((program, bound));
        let list: Vec<_> = list.chain(whole).zip(&choice.configs).collect();
        let (n, wanted) = (choice.configs.len(), parts.len().max(1));
        if n != wanted {
            let what = format!("{n} settings were chosen for {wanted} kernels");
            return Err(FunctionError::mismatch(what));
        }
        let one = |((program, bound), config): &((&Program, &Bound), &_)| {
            plan_with(program, bound, config, emission)
        };
        let kernels = in_parallel(&list, one).into_iter().collect::<Result<_, _>>()?;
        Ok(Composition { verdict, parts, kernels, configs: choice.configs.clone(), gave_way: 0 })
    }

    /// [`Composition::new`] and [`Composition::compile`]. Settings that nobody asked for give way where they have no kernel, which only the
    /// compiler finds out: to narrower tiles, to no clusters, to those of `instead`, and to those with narrower tiles; [`Composition::gave_way`] counts. Where
    /// a kernel takes too many registers with them as well, some are spilled, with a warning.
    ///
    /// # Errors
    /// As [`Composition::new`] and [`Composition::compile`].
    pub fn make(
        program: &Program,
        bound: &Bound,
        choice: &Choice,
        emission: emit::Options,
        options: &JitOptions,
        instead: Option<&Config>,
    ) -> Result<(Composition, Vec<Compiled>), FunctionError> {
        let mut made = Composition::new(program, bound, choice, emission)?;
        let mut refused = match made.compile(options) {
            Ok(compiled) => return Ok((made, compiled)),
            Err(error) => error,
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
            let Ok(other) = Composition::new(program, bound, &choice, emission) else { continue };
            tracing::debug!(error = %refused, "chosen settings have no kernel: the next ones are tried");
            made = Composition { gave_way: made.gave_way + 1, ..other };
            refused = match made.compile(options) {
                Ok(compiled) => return Ok((made, compiled)),
                Err(error) => error,
            };
        }
        if instead.is_none() || !matches!(refused, FunctionError::Runtime(Error::Spill { .. })) {
            return Err(refused);
        }
        tracing::warn!(error = %refused, "registers are spilled, which costs time");
        let compiled = made.compile(&JitOptions { allow_spills: true, ..options.clone() })?;
        Ok((made, compiled))
    }

    /// Compiles all kernels, or reads them from the disk cache.
    ///
    /// # Errors
    /// As [`Planned::compile`].
    pub fn compile(&self, options: &JitOptions) -> Result<Vec<Compiled>, FunctionError> {
        in_parallel(&self.kernels, |k| k.compile(options)).into_iter().collect()
    }
}
