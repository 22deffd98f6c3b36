//! What is known of a plan: whether it is right, whether it computes its pipeline, and whether it has a kernel, or why
//! not. Every path to a kernel calls it.

use mk_abi::KernelSource;
use mk_emit::emit::{EmitError, Options, Refusals, emit_with};
use mk_lower::passes::{NotProved, Shown, Stage};
use mk_plan::Plan;
use thiserror::Error;

pub use mk_lower::passes::Claim;

/// A plan that is right.
#[derive(Debug)]
pub struct Checked {
    /// What was proved and compared.
    pub shown: Shown,
    /// Its kernel, or what in it no template carries out. Such a plan runs on the executor alone.
    pub kernel: Result<KernelSource, Refusals>,
}

/// Why nothing is made of a plan.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// It is not shown to be right.
    #[error(transparent)]
    NotProved(#[from] NotProved),
    /// It is right, and no template carries it out.
    #[error("no kernel can be emitted for this plan: {0}")]
    NoKernel(Refusals),
    /// The emitter contradicts itself or the proof: a mistake in mk.
    #[error(transparent)]
    Emit(EmitError),
}

impl Checked {
    /// The kernel of a plan that has one.
    ///
    /// # Errors
    /// [`CheckError::NoKernel`].
    pub fn into_kernel(self) -> Result<KernelSource, CheckError> {
        self.kernel.map_err(CheckError::NoKernel)
    }
}

/// Proves, evaluates and emits.
///
/// # Errors
/// [`CheckError::NotProved`], [`CheckError::Emit`].
pub fn check(claim: &Claim<'_>, options: Options) -> Result<Checked, CheckError> {
    check_with(claim, options, |_| ())
}

/// [`check`]; `begins` is told of each stage, and what it returns is held until the stage ends.
///
/// # Errors
/// As [`check`].
pub fn check_with<T>(
    claim: &Claim<'_>,
    options: Options,
    begins: impl Fn(Stage) -> T,
) -> Result<Checked, CheckError> {
    let shown = claim.prove_with(begins)?;
    let kernel = match kernel(claim.plan, options) {
        Ok(kernel) => Ok(kernel),
        Err(CheckError::NoKernel(refusals)) => Err(refusals),
        Err(other) => return Err(other),
    };
    Ok(Checked { shown, kernel })
}

/// The kernel of a plan that is right, or shall be proved beside: the last step of [`check`].
///
/// # Errors
/// [`CheckError::NoKernel`], [`CheckError::Emit`].
pub fn kernel(plan: &Plan, options: Options) -> Result<KernelSource, CheckError> {
    emit_with(plan, options).map_err(|error| match error {
        EmitError::Refused(refusals) => CheckError::NoKernel(refusals),
        other => CheckError::Emit(other),
    })
}
