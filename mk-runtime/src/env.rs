//! Every environment variable that this crate reads: [`VARIABLES`].

use crate::launcher::{self, Launcher};
use crate::{Error, Result};
use std::{ops::RangeInclusive, path::PathBuf, str::FromStr};

/// Every environment variable that mk reads, and its meaning: what `mk --help` lists.
pub const VARIABLES: &[(&str, &str)] = &[
    ("MK_NVRTC_DIR", "directory that holds libnvrtc.so.13"),
    ("MK_CACHE_DIR", "directory of compiled kernels and tuning results"),
    ("MK_FABRIC_DIR", "directory that holds libfabric.so.1"),
    (
        "XDG_CACHE_HOME, HOME",
        "where they are kept if MK_CACHE_DIR is not set: in mk, or in .cache/mk",
    ),
    ("CUDA_HOME, CUDA_PATH", "CUDA toolkits in which NVRTC and nvdisasm are searched"),
    ("VIRTUAL_ENV, CONDA_PREFIX", "Python environments in which they are searched"),
    ("LD_LIBRARY_PATH, PATH", "where NVRTC, and where nvdisasm, is searched after that"),
    ("RANK, WORLD_SIZE", "this process in a world of processes; set by torchrun"),
    ("LOCAL_RANK, LOCAL_WORLD_SIZE", "the same on this host"),
    (
        "MASTER_ADDR, MASTER_PORT",
        "which run it belongs to; on several hosts rank 0 listens there, one port higher",
    ),
    ("TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT", "which run it belongs to"),
    ("SLURM_PROCID, SLURM_NTASKS, …", "the same, as srun sets it"),
    ("OMPI_COMM_WORLD_RANK, …", "the same, as Open MPI's mpirun sets it"),
    ("PMI_RANK, MPI_LOCALRANKID, …", "the same, as MPICH's and Intel's mpirun set it"),
    ("MK_RANK", "the same by hand, before any launcher's"),
    ("MK_WORLD_SIZE", "the number of ranks, by hand"),
    ("MK_LOCAL_RANK", "the place on this host, by hand"),
    ("MK_LOCAL_WORLD_SIZE", "the number of ranks on this host, by hand"),
    ("MK_MEET", "HOST:PORT at which rank 0 of several hosts meets the others"),
    ("MK_TOKEN_FILE", "file with the secret that hosts of a run share; needed off loopback"),
    ("MK_ADDRESS", "address of this host for the run's other hosts"),
    ("MK_NODES", "as if the ranks were on so many hosts, to try that on one"),
    ("MK_NET", "network between hosts: efa, verbs, tcp or a provider of libfabric"),
    ("MK_NET_MEMORY", "gpu: that network writes to GPUs; host, the default: to pinned memory"),
    (
        "MK_NET_FLUSH",
        "none, read-back or driver: before a GPU sees a word in its memory; by rule if not set",
    ),
    ("MK_NET_CARDS", "network cards of each rank, side by side; 1 if not set"),
    ("MK_NET_MIB", "MiB of that memory for all kernels of a rank; 256 if not set"),
    ("MK_SHARE_GPU", "1: processes may share a GPU, to try several on one"),
    ("NCCL_MAX_NCHANNELS", "SMs that reserve_sms=\"nccl\" keeps free in Python; 24 if not set"),
    ("CUDA_LAUNCH_BLOCKING", "refused: ranks wait for each other inside their kernels"),
];

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

fn path_list(name: &str) -> Vec<PathBuf> {
    std::env::var_os(name).map_or_else(Vec::new, |v| {
        std::env::split_paths(&v).filter(|p| !p.as_os_str().is_empty()).collect()
    })
}

fn text(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|v| !v.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}

/// What [`number`] says of a number that has no upper bound.
const FROM_ONE: &str = "a number from 1 on is needed";

/// A variable's value as a number of a range; refused for `what` is needed.
fn number<T: FromStr + PartialOrd>(
    variable: &'static str,
    value: Option<String>,
    range: RangeInclusive<T>,
    what: &str,
) -> Result<Option<T>> {
    let Some(value) = value else { return Ok(None) };
    match value.trim().parse() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        _ => Err(Error::Variable { variable, value, what: what.into() }),
    }
}

/// `MK_NVRTC_DIR`.
pub(crate) fn nvrtc_dir() -> Option<PathBuf> {
    path("MK_NVRTC_DIR")
}

/// `MK_FABRIC_DIR`.
pub(crate) fn fabric_dir() -> Option<PathBuf> {
    path("MK_FABRIC_DIR")
}

/// The directories of `LD_LIBRARY_PATH`.
pub(crate) fn library_path() -> Vec<PathBuf> {
    path_list("LD_LIBRARY_PATH")
}

/// The active Python environments: `VIRTUAL_ENV`, `CONDA_PREFIX`.
pub(crate) fn python_prefixes() -> Vec<PathBuf> {
    ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path).collect()
}

/// The directories of `PATH`.
pub(crate) fn executable_path() -> Vec<PathBuf> {
    path_list("PATH")
}

/// CUDA toolkits that the environment names: `CUDA_HOME`, `CUDA_PATH`.
pub(crate) fn cuda_homes() -> Vec<PathBuf> {
    ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path).collect()
}

/// `MK_CACHE_DIR`, else `$XDG_CACHE_HOME/mk`, else `$HOME/.cache/mk`.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    path("MK_CACHE_DIR")
        .or_else(|| path("XDG_CACHE_HOME").map(|d| d.join("mk")))
        .or_else(|| path("HOME").map(|d| d.join(".cache/mk")))
}

/// Whether the driver was told to make every launch synchronous.
pub(crate) fn launch_blocking() -> bool {
    std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|v| !v.is_empty() && v != "0")
}

/// The launcher's variables; refused when one is missing or makes no sense.
pub(crate) fn launcher() -> Result<Launcher> {
    let get = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    launcher::parse(&get)
}

/// `MK_NET`.
pub(crate) fn net() -> Option<String> {
    text("MK_NET")
}

/// `MK_NET_MEMORY`: whether arenas are memory of GPUs.
///
/// # Errors
/// [`Error::Variable`] for another place.
pub(crate) fn net_on_gpus() -> Result<bool> {
    match text("MK_NET_MEMORY").as_deref() {
        None | Some("host") => Ok(false),
        Some("gpu") => Ok(true),
        Some(other) => Err(Error::Variable {
            variable: "MK_NET_MEMORY",
            value: other.into(),
            what: "`host` or `gpu` is needed".into(),
        }),
    }
}

/// `MK_NET_FLUSH`, as it is written.
pub(crate) fn net_flush() -> Option<String> {
    text("MK_NET_FLUSH")
}

/// Most network cards of a rank.
pub(crate) const MOST_CARDS: u32 = 16;

/// `MK_NET_CARDS`.
///
/// # Errors
/// [`Error::Variable`] for what is no number from 1 to [`MOST_CARDS`].
pub(crate) fn net_cards() -> Result<Option<u32>> {
    cards(text("MK_NET_CARDS"))
}

fn cards(value: Option<String>) -> Result<Option<u32>> {
    let what = format!("a number from 1 to {MOST_CARDS} is needed");
    number("MK_NET_CARDS", value, 1..=MOST_CARDS, &what)
}

/// `MK_NET_MIB`, in bytes.
///
/// # Errors
/// [`Error::Variable`] for what is no number from 1 on, or one of more bytes than can be counted.
pub(crate) fn net_bytes() -> Result<Option<u64>> {
    let mib = number("MK_NET_MIB", text("MK_NET_MIB"), 1..=u64::MAX >> 20, FROM_ONE)?;
    Ok(mib.map(|mib| mib << 20))
}

/// Channels of NCCL, each of which takes an SM: `NCCL_MAX_NCHANNELS`, where it is set.
///
/// # Errors
/// [`Error::Variable`] for what is no number from 1 on.
pub fn nccl_channels() -> Result<Option<u32>> {
    number("NCCL_MAX_NCHANNELS", text("NCCL_MAX_NCHANNELS"), 1..=u32::MAX, FROM_ONE)
}

/// What the environment says of a world, beyond what its launcher does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorldVariables {
    /// `MK_TOKEN_FILE`.
    pub(crate) token_file: Option<PathBuf>,
    /// `MK_ADDRESS`.
    pub(crate) address: Option<String>,
    /// `MASTER_ADDR`, which a process group of torch has, too.
    pub(crate) master: Option<String>,
    /// `MK_NODES`.
    pub(crate) nodes: Option<u32>,
    /// `MK_SHARE_GPU`.
    pub(crate) share_gpus: bool,
}

/// Reads them; refuses what makes no sense.
pub(crate) fn world() -> Result<WorldVariables> {
    let nodes = number("MK_NODES", text("MK_NODES"), 1..=u32::MAX, FROM_ONE)?;
    let share_gpus = match text("MK_SHARE_GPU").as_deref() {
        None | Some("0") => false,
        Some("1") => true,
        Some(other) => {
            return Err(Error::Variable {
                variable: "MK_SHARE_GPU",
                value: other.into(),
                what: "0 or 1 is needed".into(),
            });
        }
    };
    let (token_file, address) = (path("MK_TOKEN_FILE"), text("MK_ADDRESS"));
    Ok(WorldVariables { token_file, address, master: text("MASTER_ADDR"), nodes, share_gpus })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_some() {
        assert_eq!(cards(Some("4".into())).unwrap(), Some(4));
        for wrong in ["0", "17", "two"] {
            let error = cards(Some(wrong.into())).unwrap_err();
            assert!(matches!(&error, Error::Variable { variable: "MK_NET_CARDS", .. }), "{error}");
        }
    }
}
