//! From a pipeline with sizes to a loadable kernel: plan, proof, CUDA, CUBIN. Needs no GPU.

use crate::function::FunctionError;
use mk_abi::KernelSource;
use mk_codegen::{
    emit::{self, emit_with},
    ir::Plan,
    passes::{self, Config},
    valid::Proof,
};
use mk_runtime::jit::{self, Compiled, JitOptions};
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
