//! What a caller decides about an instance, and what it passes to a launch.

use crate::gpu::{DeviceTensor, TensorRef};
use crate::net::Net;
use crate::{Error, Result};
use mk_abi::KernelSource;
use std::time::Duration;

/// How an instance behaves.
#[derive(Clone, Debug)]
pub struct InstanceOptions {
    /// Bound on every wait inside the kernel, counted from the peers' entry. Default: 30 s.
    pub wait_limit: Duration,
    /// Bound on the wait for a peer to enter the launch; compiles and checkpoints are legal there. Default: 10 min.
    pub entry_limit: Duration,
    /// SMs that must stay free on every GPU, for work of others. Default: 0.
    pub reserve_sms: u32,
    /// Lets launches run at the same time as those of other instances that are bound with `overlap`, in whatever order
    /// the ranks start them. Such an instance holds the SMs of its grid from bind to drop; bind refuses one that does
    /// not fit beside the others and the largest `reserve_sms` of them ([`Error::SmBudget`]). Give plans that shall
    /// overlap fewer CTAs each. Without it, launches run one after the other and each may use the whole GPU.
    /// Dropping one waits for the GPU and keeps this process's launches waiting: ranks drop them in the same order, as
    /// they bind them.
    /// Default: false.
    pub overlap: bool,
    /// Whether workspace, but for signals, may be memory of other instances of the world that are bound so. For kernels
    /// of plans that touch no rank's workspace outside of that rank's own kernel, which their proof says
    /// (`Proof::exclusive` is empty). Without effect with `overlap`, and over nodes. Default: false.
    pub pooled: bool,
    /// The network of a kernel over nodes. Default: the world's ([`Net::of`]).
    pub net: Option<Net>,
    /// Test hook: with a seed other than 0, agents sleep a pseudo-random time below `chaos_max` before each task.
    /// Default: 0.
    pub chaos_seed: u32,
    /// Test hook: upper bound of the injected delay; the hardware sleeps a millisecond at most. Default: 0.
    pub chaos_max: Duration,
    /// Test hook: fills the workspace with this byte at bind, except for the part that must start as zero.
    /// Default: none.
    pub poison: Option<u8>,
}

impl Default for InstanceOptions {
    fn default() -> Self {
        InstanceOptions {
            wait_limit: Duration::from_secs(30),
            entry_limit: Duration::from_secs(600),
            reserve_sms: 0,
            overlap: false,
            pooled: false,
            net: None,
            chaos_seed: 0,
            chaos_max: Duration::ZERO,
            poison: None,
        }
    }
}

impl InstanceOptions {
    /// `(wait_limit, entry_limit, chaos_max)` in nanoseconds, refused when they do not fit the kernel's fields.
    pub(super) fn nanoseconds(&self, source: &KernelSource) -> Result<(u64, u64, u32)> {
        let refuse =
            |what: &str| Error::BadSource { kernel: source.name.clone(), what: what.into() };
        let limit = |d: Duration, what| match u64::try_from(d.as_nanos()) {
            Ok(ns @ 1..) => Ok(ns),
            _ => Err(refuse(what)),
        };
        Ok((
            limit(self.wait_limit, "wait_limit must be more than 0 and less than 584 years")?,
            limit(self.entry_limit, "entry_limit must be more than 0 and less than 584 years")?,
            u32::try_from(self.chaos_max.as_nanos())
                .map_err(|_| refuse("chaos_max must be less than 4.29 s"))?,
        ))
    }
}

/// The tensor arguments of one rank, in the order of `KernelSource::tensors`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankTensors {
    /// Address and size of each.
    pub tensors: Vec<TensorRef>,
}

impl RankTensors {
    /// The arguments of a rank from tensors that mk allocated.
    pub fn new<'a>(tensors: impl IntoIterator<Item = &'a DeviceTensor>) -> RankTensors {
        RankTensors { tensors: tensors.into_iter().map(DeviceTensor::as_arg).collect() }
    }
}

impl From<Vec<TensorRef>> for RankTensors {
    fn from(tensors: Vec<TensorRef>) -> RankTensors {
        RankTensors { tensors }
    }
}
