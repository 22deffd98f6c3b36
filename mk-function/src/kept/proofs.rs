//! Plans that were proved and evaluated before.

use super::{Prove, Shelf};
use crate::progress::doing;
use mk_abi::KernelSource;
use mk_codegen::{
    emit,
    passes::{self, LowerError},
    plan::Plan,
    settings::Config,
    target,
    valid::Proof,
};
use mk_runtime::{
    jit::JitOptions,
    store::{Key, Kind},
};
use mk_syntax::{Bound, Program};
use sha2::{Digest as _, Sha256};
use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

/// What tells a plan and its kernel from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// SHA-256 of the plan's text, in hexadecimal digits.
    plan: String,
    /// SHA-256 of the kernel's text and of everything that the host does for it.
    kernel: String,
}

impl Digests {
    /// Of a plan and the kernel that was emitted from it.
    pub fn of(plan: &Plan, source: &KernelSource) -> Digests {
        Digests { plan: hex(&plan.to_string()), kernel: hex(&format!("{source:?}")) }
    }
}

fn hex(text: &str) -> String {
    Sha256::digest(text).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// That a plan was proved and evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proved {
    /// Which plan, and which kernel of it.
    pub digests: Digests,
    /// What was proved.
    pub proof: Proof,
    /// Whether an earlier process did it, or another rank.
    pub is_kept: bool,
    /// How long that took, here.
    pub time: Duration,
}

/// First line of a record; the number counts changes of what it means.
const HEAD: &str = "proved and evaluated 1";

impl Proved {
    /// Lines of its text.
    pub const LINES: usize = 4;

    /// As text, for [`Proved::read`].
    pub fn write(&self) -> String {
        let Digests { plan, kernel } = &self.digests;
        format!("{HEAD}\nplan {plan}\nkernel {kernel}\n{}\n", self.proof.write())
    }

    /// What [`Proved::write`] wrote; `None` of anything else.
    pub fn read(text: &str) -> Option<Proved> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        (lines.next()? == HEAD).then_some(())?;
        let digests = Digests {
            plan: lines.next()?.strip_prefix("plan ")?.into(),
            kernel: lines.next()?.strip_prefix("kernel ")?.into(),
        };
        let proof = Proof::read(lines.next()?)?;
        let time = Duration::ZERO;
        lines.next().is_none().then_some(Proved { digests, proof, is_kept: true, time })
    }
}

/// Proofs of earlier processes, and the way to new ones.
#[derive(Clone, Debug)]
pub struct Proofs {
    pub(super) shelf: Option<Shelf>,
}

impl Proofs {
    /// In the store of these options.
    pub fn new(jit: &JitOptions, prove: Prove) -> Proofs {
        Proofs { shelf: Shelf::open(jit, prove) }
    }

    /// None are taken or kept.
    pub fn none() -> Proofs {
        Proofs { shelf: None }
    }

    /// The proof of a plan that was lowered from these: that of an earlier process, if it was of the same plan and
    /// kernel, else a new one, which is kept.
    ///
    /// # Errors
    /// As [`passes::prove`].
    pub fn prove(
        &self,
        program: &Program,
        bound: &Bound,
        config: &Config,
        emission: emit::Options,
        plan: &Plan,
        source: &KernelSource,
    ) -> Result<Proved, LowerError> {
        let begin = Instant::now();
        let _doing = doing(format!("proving `{}`", plan.name));
        let digests = Digests::of(plan, source);
        let place = self.shelf.as_ref().map(|s| (s, s.proof_key(program, bound, config, emission)));
        if let Some((shelf, key)) = &place
            && let Some(known) = shelf.recall(key)
        {
            if known.digests == digests {
                return Ok(Proved { time: begin.elapsed(), ..known });
            }
            tracing::warn!(plan = plan.name, "a kept proof is of another plan: this one is proved");
        }
        let proof = passes::prove(program, bound, config, plan)?;
        let proved = Proved { digests, proof, is_kept: false, time: begin.elapsed() };
        if let Some((shelf, key)) = place {
            shelf.store.write(Kind::Proof, &key, proved.write().as_bytes());
        }
        Ok(proved)
    }
}

impl Shelf {
    /// Of all that decides a plan and its proof.
    pub(super) fn proof_key(
        &self,
        program: &Program,
        bound: &Bound,
        config: &Config,
        emission: emit::Options,
    ) -> Key {
        let machine = format!("{:?}", target::by_name(&config.target));
        self.proof_key_on(program, bound, config, emission, &machine)
    }

    pub(super) fn proof_key_on(
        &self,
        program: &Program,
        bound: &Bound,
        config: &Config,
        emission: emit::Options,
        machine: &str,
    ) -> Key {
        let (config, emission) = (format!("{config:?}"), format!("{emission:?}"));
        self.key("proof", program, bound, &[&config, &emission, machine])
    }

    fn recall(&self, key: &Key) -> Option<Proved> {
        let text = String::from_utf8(self.store.read(Kind::Proof, key)?).ok();
        let known = text.as_deref().and_then(Proved::read);
        if known.is_none() {
            tracing::warn!(key = key.hex(), "a kept proof makes no sense: the plan is proved");
        }
        known
    }
}
