//! What decides a function, apart from its pipeline and its world.

use super::sizes::Sizes;
use crate::{choice::Fuse, kept::Prove};
use mk_codegen::{emit, settings::Config};
use mk_runtime::{InstanceOptions, jit::JitOptions};
use std::time::Duration;

/// What waiting for rank 0's choice takes at least: it may be simulating.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What decides a function, apart from its pipeline and its world.
#[derive(Clone, Debug, Default)]
pub struct FunctionOptions {
    /// Sizes that do not follow from the tensors of a call: global shapes of ragged shards. Default: none.
    pub sizes: Sizes,
    /// How to lower. `ranks`, `nodes` and `net` are the world's, and `reserved_sms` follows from it and from what
    /// `instance` keeps free ([`reserved_sms`](super::reserved_sms)).
    pub config: Config,
    /// What kernels do beside their plan: record what their agents do, for [`Function::trace`](super::Function::trace).
    /// The same in every process of the world. Default: nothing.
    pub emission: emit::Options,
    /// Whether settings are looked for where `config` is the default one.
    pub tuning: Tuning,
    /// Whether the pipeline becomes one kernel, or one for each of its operations with the elementwise ones that follow
    /// it ([`choice::parts`](crate::choice::parts)). Default: the faster one, as far as is known; one kernel where
    /// `config` is not the default one or `tuning` is off, with [`InstanceOptions::overlap`], and where ranks share a
    /// GPU. What came of it: [`Function::verdict`](super::Function::verdict).
    pub fuse: Fuse,
    /// Whether proofs and searched settings of earlier processes are taken. Default: they are, where this very binary
    /// found them.
    pub prove: Prove,
    /// How to compile.
    pub jit: JitOptions,
    /// How kernels behave.
    pub instance: InstanceOptions,
}

/// Who chooses how a function is lowered. In a world of several processes rank 0 chooses, and all take its choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tuning {
    /// A config that is not the default one is taken as it is, and any in a world whose ranks share a GPU. Else what
    /// [`choice::decide_in`](crate::choice::decide_in) says: a measured winner (`mk tune`), what the cost model takes
    /// for the best, the default.
    #[default]
    Auto,
    /// The config is taken as it is.
    Off,
}
