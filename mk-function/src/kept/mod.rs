//! Proofs and choices that a process leaves for those after it, beside compiled kernels ([`mk_runtime::store`]).
//!
//! ```text
//! key: the compiler's binary, pipeline, sizes, settings with the world, figures of the machine, what else is asked
//! proof:  key ──> digest of the plan's text, digest of its kernel, Proof   taken where the plan that was lowered now has these digests
//! choice: key ──> Choice as text                                           taken where it reads, and lowered and proved as any other
//! ```
//!
//! A proof is of one plan: the plan is lowered and its kernel emitted at every start, and only verifying and evaluating
//! are left out. The binary is the file whose code is loaded, hashed ([`mk_runtime::binary`]); where that is not known,
//! nothing is kept and nothing taken.

mod choices;
mod proofs;

pub use choices::Choices;
pub use proofs::{Digests, Proofs, Proved};

use mk_codegen::passes;
use mk_runtime::{
    binary,
    jit::JitOptions,
    store::{Key, Store},
};
use mk_syntax::{Bound, Program};
use std::{fmt, str::FromStr, sync::OnceLock};

/// Whether what earlier processes found is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prove {
    /// A plan that this very compiler has proved before is not proved again, and settings that it has searched are not
    /// searched again.
    #[default]
    Cached,
    /// Every plan is proved and all settings are searched.
    Always,
}

impl fmt::Display for Prove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Prove::Cached => "cached",
            Prove::Always => "always",
        })
    }
}

impl FromStr for Prove {
    type Err = String;

    /// `cached` or `always`.
    fn from_str(text: &str) -> Result<Prove, String> {
        match text {
            "cached" => Ok(Prove::Cached),
            "always" => Ok(Prove::Always),
            _ => Err(format!("`{text}` is not `cached` or `always`")),
        }
    }
}

/// SHA-256 of the binary that holds the passes and the verifier.
type Compiler = [u8; 32];

/// That of this process, if it is known. The first call hashes a file.
fn compiler() -> Option<Compiler> {
    static KNOWN: OnceLock<Option<Compiler>> = OnceLock::new();
    *KNOWN.get_or_init(|| match binary::digest_of(passes::prove as *const ()) {
        Ok(digest) => Some(digest),
        Err(why) => {
            tracing::warn!(why, "proofs and choices are not kept");
            None
        }
    })
}

/// A store, and the compiler whose work is kept there.
#[derive(Clone, Debug)]
struct Shelf {
    store: Store,
    compiler: Compiler,
}

impl Shelf {
    /// Where these options keep kernels; `None` where nothing is kept, or nothing of it shall be taken.
    fn open(jit: &JitOptions, prove: Prove) -> Option<Shelf> {
        if prove == Prove::Always || !jit.use_cache {
            return None;
        }
        let store = Store::open(jit.cache_dir.as_deref())?;
        Some(Shelf { store, compiler: compiler()? })
    }

    /// The key of something about a pipeline.
    fn key(&self, what: &str, program: &Program, bound: &Bound, more: &[&str]) -> Key {
        let text = format!(
            "{} {:?} {:?} {:?} {:?}",
            program.name(),
            program.tensors(),
            program.symbols(),
            program.nodes(),
            program.results()
        );
        let sizes = format!("{bound:?}");
        let compiler: &[u8] = &self.compiler;
        let own = [what.as_bytes(), compiler, text.as_bytes(), sizes.as_bytes()];
        Key::of(own.into_iter().chain(more.iter().map(|field| field.as_bytes())))
    }
}

#[cfg(test)]
mod tests;
