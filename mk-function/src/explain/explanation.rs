//! What an explanation holds.

use crate::choice::{Damaged, Indivisible, Origin, Times, Verdict};
use mk_abi::KernelSource;
use mk_codegen::{cost::Prediction, settings::Config};

/// Why a pipeline takes as long as it does. `Display` is the text.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Number of ranks.
    pub ranks: u32,
    /// The GPU of the figures, and where they come from.
    pub machine: String,
    /// How the whole pipeline is lowered as one kernel.
    pub config: Config,
    /// The same as text.
    pub settings: String,
    /// Where the settings come from.
    pub origin: Origin,
    /// What the cost model says of that kernel.
    pub prediction: Prediction,
    /// Its time by `mk tune`, in milliseconds, if it was measured.
    pub measured_ms: Option<f64>,
    /// The best of the settings that differ in one value: time in milliseconds, and settings.
    pub others: Vec<(f64, String)>,
    /// The same as separate kernels.
    pub apart: Apart,
    /// What a rank must have for it.
    pub workspace: Workspace,
    /// What was made, where something was: as one kernel or apart, and why.
    pub made: Option<Verdict>,
    /// Choices of settings before those that were made that have no kernel.
    pub gave_way: u32,
    /// Operations and settings of each kernel, where it was made apart.
    pub kernels: Vec<(String, String)>,
    /// Whether functions look for settings, so that they take the faster of one kernel and several.
    pub searched: bool,
    /// Cache files that were not used.
    pub notes: Vec<Damaged>,
    /// Tasks of the critical chain that are said.
    pub(super) chain: usize,
}

/// Of physical memory that a driver maps: `cuMemGetAllocationGranularity`'s answer, bytes.
const PAGE: u64 = 2 << 20;

/// Memory of a rank beside its tensors, in bytes: whole pages where peers map it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workspace {
    /// That kernels of a world have in common, unless their proofs forbid it: of several, what the largest needs.
    pub shared: u64,
    /// That each has for itself, signals among it.
    pub own: u64,
}

impl Workspace {
    /// Of kernels that are launched one after the other.
    pub fn of<'a>(kernels: impl IntoIterator<Item = &'a KernelSource>) -> Workspace {
        kernels.into_iter().fold(Workspace::default(), |all, kernel| {
            let space = &kernel.workspace;
            let shared = (space.symmetric_bytes - space.zeroed_bytes).next_multiple_of(PAGE);
            let own = space.zeroed_bytes.next_multiple_of(PAGE) + space.scratch_bytes;
            Workspace { shared: all.shared.max(shared), own: all.own + own }
        })
    }
}

/// A pipeline as a kernel for each of its operations.
#[derive(Clone, Debug)]
pub enum Apart {
    /// It does not come apart.
    Indivisible(Indivisible),
    /// This part has no kernel by itself.
    NoPart(String),
    /// It does.
    Parts {
        /// Operations of each part, and what is known of its time.
        parts: Vec<(String, Times)>,
        /// Which of the two is faster by these times.
        verdict: Verdict,
    },
}
