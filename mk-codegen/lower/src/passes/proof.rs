//! Whether a plan is right, and computes what it shall.

use super::{
    error::{LowerError, too_large},
    scaled::Smaller,
};
use mk_plan::Plan;
use mk_prove::{
    equivalence::{self, Evaluation, FieldError},
    valid::{self, Failure, Proof, Violation},
};
use mk_syntax::{Bound, Program};
use std::{
    panic::resume_unwind,
    thread,
    time::{Duration, Instant},
};
use thiserror::Error;

/// Values of a run-time dimension at which a plan from a text is evaluated: more than for plans of the passes.
const VALUES_OF_A_TEXT: usize = 24;

/// A plan, and what is said of it.
#[derive(Clone, Copy)]
pub struct Claim<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// What it computes, and with which sizes; nothing where that is not known.
    pub computes: Option<(&'a Program, &'a Bound)>,
    /// Plans that are looked at in its place, where it is a large one that was made here.
    smaller: Option<&'a Smaller>,
    /// Whether it was read, and not made here.
    is_read: bool,
}

/// What was shown of a plan.
#[derive(Clone, Debug)]
pub struct Shown {
    /// What the verifier proved.
    pub proof: Proof,
    /// What was compared with what it shall compute, where that is known.
    pub evaluation: Option<Evaluation>,
    /// How long the proof took.
    pub verify_time: Duration,
    /// How long the evaluation took: beside the proof, of a plan that was made here.
    pub evaluate_time: Duration,
}

/// Why a plan is not shown to be right.
#[derive(Debug, Error)]
pub enum NotProved {
    /// The verifier refuses it, or it is too large to verify.
    #[error(transparent)]
    Verify(Failure),
    /// It computes something else, or is too large to evaluate.
    #[error(transparent)]
    Compute(FieldError),
}

impl NotProved {
    /// Nothing is wrong with it but its size, as far as is known.
    pub fn is_too_large(&self) -> bool {
        match self {
            NotProved::Verify(failure) => {
                failure.violations.iter().all(Violation::is_too_large)
                    && !failure.violations.is_empty()
            }
            NotProved::Compute(error) => matches!(error, FieldError::TooLarge { .. }),
        }
    }
}

impl From<NotProved> for LowerError {
    fn from(error: NotProved) -> LowerError {
        match error {
            NotProved::Compute(FieldError::TooLarge { what }) => {
                too_large(format!("too many {what}"))
            }
            NotProved::Compute(error) => LowerError::Compute(error),
            NotProved::Verify(failure) => match failure.violations.first() {
                Some(first) if failure.violations.iter().all(Violation::is_too_large) => {
                    too_large(first.to_string())
                }
                _ => LowerError::Verify(failure),
            },
        }
    }
}

/// What [`Claim::prove_with`] is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The verifier's proof.
    Verify,
    /// The comparison with what the plan shall compute.
    Evaluate,
    /// Both, side by side.
    Both,
}

impl<'a> Claim<'a> {
    /// Of a plan that was read: what it computes is known, or not.
    pub fn read(plan: &'a Plan, computes: Option<(&'a Program, &'a Bound)>) -> Claim<'a> {
        Claim { plan, computes, smaller: None, is_read: true }
    }

    /// Of a plan that the passes made of a pipeline.
    pub fn made(
        plan: &'a Plan,
        program: &'a Program,
        bound: &'a Bound,
        smaller: Option<&'a Smaller>,
    ) -> Claim<'a> {
        Claim { plan, computes: Some((program, bound)), smaller, is_read: false }
    }

    /// [`valid::verify`], and [`equivalence::evaluate`] where it is known what the plan shall compute.
    ///
    /// # Errors
    /// What is not so.
    pub fn prove(&self) -> Result<Shown, NotProved> {
        self.prove_with(|_| ())
    }

    /// [`Claim::prove`]; `begins` is told of each stage, and what it returns is held until the stage ends.
    ///
    /// # Errors
    /// As [`Claim::prove`].
    pub fn prove_with<T>(&self, begins: impl Fn(Stage) -> T) -> Result<Shown, NotProved> {
        match self.computes {
            Some((program, bound)) if !self.is_read => {
                let _stage = begins(Stage::Both);
                self.side_by_side(program, bound)
            }
            // What was read is evaluated once it has verified: the evaluation takes that for granted.
            computes => {
                let stage = begins(Stage::Verify);
                let (proof, verify_time) = timed(|| self.proof());
                let (proof, mut evaluation) = (proof.map_err(NotProved::Verify)?, None);
                drop(stage);
                let mut evaluate_time = Duration::ZERO;
                if let Some((program, bound)) = computes {
                    let _stage = begins(Stage::Evaluate);
                    let (found, time) = timed(|| self.evaluate(program, bound, proof.period));
                    evaluation = Some(found.map_err(NotProved::Compute)?);
                    evaluate_time = time;
                }
                Ok(Shown { proof, evaluation, verify_time, evaluate_time })
            }
        }
    }

    /// Neither needs the other's answer: side by side, where there is a thread for it.
    fn side_by_side(&self, program: &Program, bound: &Bound) -> Result<Shown, NotProved> {
        let period = valid::period(self.plan).map_err(NotProved::Verify)?;
        let evaluate = || timed(|| self.evaluate(program, bound, period));
        let ((proved, verify_time), evaluated) = thread::scope(|threads| {
            let beside = thread::Builder::new().spawn_scoped(threads, evaluate);
            let proved = timed(|| self.proof());
            let evaluated =
                beside.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            (proved, evaluated.ok())
        });
        let proof = proved.map_err(NotProved::Verify)?;
        let (evaluated, evaluate_time) = evaluated.unwrap_or_else(evaluate);
        let evaluation = Some(evaluated.map_err(NotProved::Compute)?);
        Ok(Shown { proof, evaluation, verify_time, evaluate_time })
    }

    /// The verifier's part of [`Claim::prove`] alone.
    ///
    /// # Errors
    /// The violations, as counterexamples.
    pub fn verify(&self) -> Result<Proof, NotProved> {
        self.proof().map_err(NotProved::Verify)
    }

    fn proof(&self) -> Result<Proof, Failure> {
        match self.smaller {
            None => valid::verify(self.plan),
            Some(smaller) => smaller.verify(self.plan),
        }
    }

    fn evaluate(
        &self,
        program: &Program,
        bound: &Bound,
        period: u32,
    ) -> Result<Evaluation, FieldError> {
        let mut options = equivalence::Options { period, ..equivalence::Options::default() };
        if self.is_read {
            options.values = VALUES_OF_A_TEXT;
        }
        match self.smaller {
            None => equivalence::evaluate(self.plan, program, bound, &options),
            Some(smaller) => smaller.evaluate(program, &options),
        }
    }
}

fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let begin = Instant::now();
    let result = f();
    (result, begin.elapsed())
}
