//! What this machine has, what it lacks, and how to get it. Never fails: a missing part is part of the answer.

use crate::driver;
use crate::env;
use crate::error::Result;
use crate::jit::{self, JitOptions, NvrtcVersion};
use crate::net::NetOptions;
use crate::nics;
pub use crate::nics::Nic;
use crate::store::{self, Kept};
use crate::transport::{Distance, Flush, TRANSPORTS, TransportError, Visibility};
use cudarc::driver::sys::{self, CUdevice_P2PAttribute as P2p, CUdevice_attribute as Attr};
use std::fmt;
use std::path::{Path, PathBuf};

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Ordinal, as the driver counts.
    pub ordinal: i32,
    /// `NVIDIA H200`.
    pub name: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Whether memory can be mapped by the virtual-memory API, which symmetric memory needs.
    pub virtual_memory: bool,
    /// Whether a file descriptor can carry an allocation to another process.
    pub posix_handles: bool,
    /// How network cards reach its memory: `dmabuf`, `nvidia_peermem`, or why they do not.
    pub card_access: String,
    /// What is done between a card's data and the word behind it: `none`, `driver`, or `read-back`, which nothing does.
    pub flush: Flush,
    /// The cards that are nearest to it on the bus.
    pub near_cards: Vec<String>,
    /// All cards, the nearest first, and how far they are.
    pub cards: Vec<(String, Option<Distance>)>,
}

/// A transport, and whether an end of it can be opened here.
#[derive(Clone, Debug)]
pub struct NetworkState {
    /// `loopback`, `verbs`, `ofi (shm)`.
    pub name: String,
    /// What was found, or why there is none.
    pub state: Result<String, TransportError>,
}

/// How one GPU reaches another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Whether it can at all.
    pub access: bool,
    /// Whether atomics work over the link. NVLink has them and PCIe peers do not, so this tells NVLink.
    pub native_atomics: bool,
    /// The driver's rank of the link; 0 is the best.
    pub performance_rank: i32,
}

/// NVRTC, loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvrtcInfo {
    /// The library.
    pub path: PathBuf,
    /// Its version.
    pub version: NvrtcVersion,
}

/// Something that is not here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What, and why.
    pub what: String,
    /// What is not possible without it.
    pub needed_for: &'static str,
}

/// The state of a machine.
#[derive(Clone, Debug)]
pub struct Doctor {
    /// CUDA version that the driver supports: 1000 * major + 10 * minor.
    pub driver: Result<i32>,
    /// GPUs; empty without a driver.
    pub gpus: Vec<Gpu>,
    /// `peers[from][to]`; `None` on the diagonal and where the driver does not say.
    pub peers: Vec<Vec<Option<Peer>>>,
    /// The compiler.
    pub nvrtc: Result<NvrtcInfo>,
    /// The disassembler, which is optional.
    pub nvdisasm: Option<PathBuf>,
    /// Where compiled kernels and tuning results are kept, after a trial, or why they cannot be.
    pub cache: Result<PathBuf>,
    /// How much is kept there.
    pub kept: Vec<Kept>,
    /// Transports between nodes.
    pub networks: Vec<NetworkState>,
    /// Cards that write to remote memory.
    pub cards: Vec<Nic>,
    /// What is not here.
    pub missing: Vec<Missing>,
}

const SYS: &str = "/sys";

/// What [`Gpu::card_access`] says where cards reach its memory.
const REACHED: [&str; 2] = ["dmabuf", "nvidia_peermem"];

impl Doctor {
    /// Looks. Writes a file in the kernel cache and removes it.
    pub fn examine(options: &JitOptions) -> Doctor {
        let driver = driver::version();
        let mut missing = Vec::new();
        // One library that is not here is missed by each transport over it.
        let mut lack = |what: String, needed_for| {
            let lacks = Missing { what, needed_for };
            if !missing.contains(&lacks) {
                missing.push(lacks);
            }
        };
        let cards = nics::cards();
        let gpus = match driver::device_count() {
            Ok(count) => {
                let mut gpus = Vec::new();
                for ordinal in 0..count {
                    match gpu(ordinal, &cards) {
                        Ok(gpu) => gpus.push(gpu),
                        Err(e) => lack(format!("GPU {ordinal}: {e}"), "running kernels on it"),
                    }
                }
                gpus
            }
            Err(error) => {
                lack(error.to_string(), "running kernels");
                Vec::new()
            }
        };
        let peers = gpus.iter().map(|from| row(from, &gpus)).collect();
        let nvrtc = jit::find_nvrtc(options)
            .and_then(|n| Ok(NvrtcInfo { path: n.path().into(), version: n.version()? }));
        if let Err(error) = &nvrtc {
            lack(error.to_string(), "compiling kernels");
        }
        let nvdisasm = jit::find_nvdisasm();
        if nvdisasm.is_none() {
            let what = "nvdisasm was not found; get it with `cargo xtask setup`, or `pip install nvidia-cuda-nvdisasm`";
            lack(what.into(), "looking at machine code");
        }
        let cache = store::probe(options.cache_root());
        let kept = cache.as_deref().map(store::count).unwrap_or_default();
        if let Err(error) = &cache {
            lack(error.to_string(), "keeping compiled kernels, proofs and tuning results");
        }
        let networks = networks();
        for network in &networks {
            if let Err(error) = &network.state {
                lack(error.to_string(), "a network between nodes");
            }
        }
        for asked in [Flush::asked().err(), env::net_cards().err()].into_iter().flatten() {
            lack(asked.to_string(), "a network between nodes");
        }
        let most = NetOptions::default().arena_bytes;
        if let Some(bytes) = nics::locked_memory().filter(|b| *b < most && !cards.is_empty()) {
            let what = format!(
                "{bytes} bytes may be locked for cards, and a net arena has {most}: raise `ulimit -l`, or \
                 LimitMEMLOCK= of a service"
            );
            lack(what, "a network between nodes");
        }
        for gpu in gpus.iter().filter(|g| !cards.is_empty() && !REACHED.contains(&&*g.card_access))
        {
            let what = format!("GPU {}: {}", gpu.ordinal, gpu.card_access);
            lack(
                what,
                "cards that read and write a GPU's memory; pinned memory of the host serves",
            );
        }
        Doctor { driver, gpus, peers, nvrtc, nvdisasm, cache, kept, networks, cards, missing }
    }

    /// Whether kernels can be compiled and run here, on at least one GPU of compute capability 9.0.
    pub fn can_run(&self) -> bool {
        self.nvrtc.is_ok() && self.gpus.iter().any(|g| g.capability == (9, 0))
    }
}

fn networks() -> Vec<NetworkState> {
    let all = TRANSPORTS.iter().map(|row| (row.network)());
    all.map(|n| NetworkState { name: n.label(), state: n.probe() }).collect()
}

fn row(from: &Gpu, gpus: &[Gpu]) -> Vec<Option<Peer>> {
    gpus.iter()
        .map(|to| {
            (from.ordinal != to.ordinal).then(|| peer(from.ordinal, to.ordinal).ok()).flatten()
        })
        .collect()
}

fn gpu(ordinal: i32, cards: &[Nic]) -> Result<Gpu> {
    let device = driver::device(ordinal)?;
    let mut memory = 0;
    // SAFETY: a valid out-pointer, a live device.
    unsafe { driver::cu!(Some(ordinal), cuDeviceTotalMem_v2(&mut memory, device)) }?;
    let get = |which| driver::attribute(ordinal, which).map(|v| v.max(0) as u32);
    Ok(Gpu {
        ordinal,
        name: driver::name(ordinal)?,
        sms: get(Attr::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory as u64,
        capability: (
            get(Attr::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(Attr::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        virtual_memory: get(Attr::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? != 0,
        posix_handles: get(Attr::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?
            != 0,
        card_access: nics::gpu_access(ordinal),
        flush: match Flush::asked() {
            Ok(Some(asked)) => asked,
            _ => Visibility::of(ordinal)?.rule(),
        },
        near_cards: nics::nearest(Path::new(SYS), &driver::pci(ordinal)?, cards),
        cards: nics::distances(Path::new(SYS), &driver::pci(ordinal)?, cards),
    })
}

fn peer(from: i32, to: i32) -> Result<Peer> {
    let (a, b) = (driver::device(from)?, driver::device(to)?);
    let get = |which: sys::CUdevice_P2PAttribute| {
        let mut value = 0;
        // SAFETY: a valid out-pointer and live devices.
        unsafe { driver::cu!(Some(from), cuDeviceGetP2PAttribute(&mut value, which, a, b)) }
            .map(|()| value)
    };
    Ok(Peer {
        access: driver::can_access_peer(from, to)?,
        native_atomics: get(P2p::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
        performance_rank: get(P2p::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
    })
}

impl fmt::Display for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver {
            Ok(v) => writeln!(f, "driver    CUDA {}.{}", v / 1000, v % 1000 / 10)?,
            Err(_) => writeln!(f, "driver    none")?,
        }
        for g in &self.gpus {
            writeln!(
                f,
                "GPU {:<5} {}, compute capability {}.{}, {} SMs, {:.1} GiB",
                g.ordinal,
                g.name,
                g.capability.0,
                g.capability.1,
                g.sms,
                g.memory_bytes as f64 / (1u64 << 30) as f64
            )?;
        }
        for (from, row) in self.gpus.iter().zip(&self.peers) {
            let links: Vec<String> = self
                .gpus
                .iter()
                .zip(row)
                .filter_map(|(to, peer)| {
                    let p = (*peer)?;
                    let kind = match (p.access, p.native_atomics) {
                        (true, true) => "NVLink",
                        (true, false) => "PCIe",
                        (false, _) => "no access",
                    };
                    Some(format!("{} {kind}", to.ordinal))
                })
                .collect();
            if !links.is_empty() {
                writeln!(f, "peers {:<3} {}", from.ordinal, links.join(", "))?;
            }
        }
        match &self.nvrtc {
            Ok(n) => writeln!(f, "NVRTC     {} ({})", n.version, n.path.display())?,
            Err(_) => writeln!(f, "NVRTC     none")?,
        }
        if let Some(path) = &self.nvdisasm {
            writeln!(f, "nvdisasm  {}", path.display())?;
        }
        match &self.cache {
            Ok(dir) => writeln!(f, "cache     {}", dir.display())?,
            Err(_) => writeln!(f, "cache     none")?,
        }
        if !self.kept.is_empty() {
            let of = |k: &Kept| {
                let plural = if k.files == 1 { "" } else { "s" };
                format!("{} {}{plural} ({:.1} MB)", k.files, k.kind, k.bytes as f64 / 1e6)
            };
            let list: Vec<String> = self.kept.iter().map(of).collect();
            writeln!(f, "kept      {}", list.join(", "))?;
        }
        for network in &self.networks {
            match &network.state {
                Ok(found) => writeln!(f, "network   {}: {found}", network.name)?,
                Err(_) => writeln!(f, "network   {}: none", network.name)?,
            }
        }
        for card in &self.cards {
            let numa = card.numa.map_or(String::new(), |n| format!(", memory node {n}"));
            writeln!(
                f,
                "card      {} at {}{numa}: {}",
                card.name,
                card.pci,
                card.ports.join("; ")
            )?;
        }
        for g in self.gpus.iter().filter(|_| !self.cards.is_empty()) {
            let near = g.near_cards.join(", ");
            let far = |(card, d): &(String, Option<Distance>)| {
                format!("{card} {}", d.map_or("?", Distance::name))
            };
            let far: Vec<String> = g.cards.iter().map(far).collect();
            writeln!(
                f,
                "card to   GPU {}: {}, flush {}; {}; nearest: {near}",
                g.ordinal,
                g.card_access,
                g.flush,
                far.join(", ")
            )?;
        }
        for m in &self.missing {
            writeln!(f, "missing   for {}: {}", m.needed_for, m.what)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_how_to_get_it() {
        let options =
            JitOptions { nvrtc_dir: Some("/nonexistent/nvrtc".into()), ..JitOptions::default() };
        let doctor = Doctor::examine(&options);
        assert!(!doctor.can_run());
        let text = doctor.to_string();
        assert!(text.contains("missing   for compiling kernels"), "{text}");
        assert!(text.contains("cargo xtask setup"), "{text}");
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_found() {
        let options = JitOptions { cache_dir: Some("/proc/self".into()), ..JitOptions::default() };
        let text = Doctor::examine(&options).to_string();
        assert!(text.contains("cache     none"), "{text}");
        let why = "missing   for keeping compiled kernels, proofs and tuning results: the kernel cache /proc/self \
            cannot be used";
        assert!(text.contains(why), "{text}");
    }
}
