//! What can go wrong, with what is needed to act on it.

mod fault;
mod transport;

pub use fault::{Fault, FaultCause};
pub use transport::TransportError;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Any failure of this crate.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The CUDA driver library is not on this machine.
    #[error(
        "no CUDA driver: libcuda.so.1 was not found; install the NVIDIA driver (version 580 or newer), or use the CPU \
         executor: `mk::simulate` in Rust, `Plan.simulate` in Python, `mk run --device cpu`"
    )]
    DriverMissing,
    /// The driver is older than the kernels need.
    #[error("the CUDA driver supports CUDA {}.{}, and CUDA {}.{} is needed: update the NVIDIA driver",
        have / 1000, have % 1000 / 10, need / 1000, need % 1000 / 10)]
    DriverTooOld {
        /// What `cuDriverGetVersion` says: 1000 * major + 10 * minor.
        have: i32,
        /// What this crate needs, in the same form.
        need: i32,
    },
    /// A driver call failed.
    #[error("{call} failed{}: {name} ({code}){}", on(device), remedy(*code))]
    Cuda {
        /// The call.
        call: &'static str,
        /// The device that it was made for, if it was made for one.
        device: Option<i32>,
        /// The `CUresult`.
        code: u32,
        /// Its name.
        name: String,
    },
    /// A device ordinal that does not exist.
    #[error("device {device} was asked for, and this machine has {count}")]
    NoSuchDevice {
        /// Ordinal.
        device: i32,
        /// Number of devices that the driver shows.
        count: i32,
    },
    /// Two GPUs cannot reach each other's memory.
    #[error(
        "GPU {from} cannot access the memory of GPU {to}: symmetric memory needs peer access (NVLink or PCIe P2P) \
         between all pairs"
    )]
    NoPeerAccess {
        /// The GPU that would access.
        from: i32,
        /// The GPU that owns the memory.
        to: i32,
    },
    /// A rank's memory is not mapped on another one.
    #[error(
        "rank {from} cannot map the memory of rank {to}: they are on different nodes, and no transport joins them"
    )]
    Unreachable {
        /// The rank that would access it.
        from: u32,
        /// The rank that owns the memory.
        to: u32,
    },
    /// No NVRTC library was found.
    #[error(
        "NVRTC (libnvrtc.so.13) was not found; get it with `cargo xtask setup`, or `pip install \
         nvidia-cuda-nvrtc==13.0.88`, or set MK_NVRTC_DIR to the directory that holds it; searched: {}",
        list(searched)
    )]
    NvrtcMissing {
        /// Directories that were looked at.
        searched: Vec<PathBuf>,
    },
    /// An NVRTC library was found and cannot be used.
    #[error("NVRTC at {} cannot be used: {what}; `cargo xtask setup` installs one that can", path.display())]
    NvrtcUnusable {
        /// The library.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// An NVRTC call failed for a reason other than the source.
    #[error("{call} failed for kernel {kernel}: {what}")]
    Nvrtc {
        /// The call.
        call: &'static str,
        /// Kernel.
        kernel: String,
        /// What NVRTC says.
        what: String,
    },
    /// The source does not compile.
    #[error("kernel {kernel} does not compile:\n{log}")]
    Compile {
        /// Kernel.
        kernel: String,
        /// NVRTC's log.
        log: String,
    },
    /// Registers were spilled to local memory.
    #[error(
        "kernel {kernel}: entry {entry} spills registers ({store_bytes} bytes of stores, {load_bytes} bytes of \
         loads); a plan must allow it explicitly"
    )]
    Spill {
        /// Kernel.
        kernel: String,
        /// Entry point.
        entry: String,
        /// Spill stores, in bytes.
        store_bytes: u32,
        /// Spill loads, in bytes.
        load_bytes: u32,
    },
    /// The assembler could not keep the kernel's asynchronous MMAs or its register allocation as written.
    #[error(
        "kernel {kernel}: ptxas {code}: {text}; such a kernel would run its products one after the other, and is \
         never taken"
    )]
    Serialised {
        /// Kernel.
        kernel: String,
        /// `C7510`, …
        code: String,
        /// The message.
        text: String,
    },
    /// Compiled kernels, proofs and tuning results cannot be kept on disk.
    #[error(
        "the kernel cache{} cannot be used: {what}; set MK_CACHE_DIR to a directory that you alone can write and that \
         has room, or every start compiles and proves anew",
        dir.as_ref().map_or_else(String::new, |d| format!(" {}", d.display()))
    )]
    CacheUnusable {
        /// Its directory, where the environment names one.
        dir: Option<PathBuf>,
        /// What is wrong with it.
        what: String,
    },
    /// A tool that is needed for the request is not installed.
    #[error("{tool} was not found; get it with {get}")]
    ToolMissing {
        /// The tool.
        tool: &'static str,
        /// How to get it.
        get: &'static str,
    },
    /// A tool ran and failed.
    #[error("{tool} failed: {what}")]
    ToolFailed {
        /// The tool.
        tool: &'static str,
        /// Its message.
        what: String,
    },
    /// The driver was told to block on every launch.
    #[error(
        "CUDA_LAUNCH_BLOCKING is set: the first rank's launch would block while its kernel waits for ranks that are \
         not launched yet; unset it"
    )]
    LaunchBlocking,
    /// The plan was made for another number of ranks.
    #[error("kernel {kernel} was generated for {}, and this world has {world}", mk_abi::count(*plan, "rank"))]
    WorldSize {
        /// Kernel.
        kernel: String,
        /// Ranks of the plan.
        plan: u32,
        /// Ranks of the world.
        world: u32,
    },
    /// A kernel source contradicts itself or the limits of the machine.
    #[error("kernel {kernel}: {what}")]
    BadSource {
        /// Kernel.
        kernel: String,
        /// What is wrong.
        what: String,
    },
    /// The kernel needs something that this version, or this world, does not have.
    #[error("unsupported: kernel {kernel}: {what}")]
    Unsupported {
        /// Kernel.
        kernel: String,
        /// What it needs, and what to do.
        what: String,
    },
    /// The kernel was compiled for another architecture.
    #[error("kernel {kernel} is for {arch}, and GPU {device} has compute capability {}.{}", have.0, have.1)]
    WrongArch {
        /// Kernel.
        kernel: String,
        /// `sm_90a`.
        arch: String,
        /// Device.
        device: i32,
        /// Its compute capability.
        have: (u32, u32),
    },
    /// The grid does not fit on the device at once.
    #[error(
        "kernel {kernel} needs {grid} CTAs (clusters of {cluster}) resident at once, and GPU {device} can hold \
         {fits}{}{}",
        if *reserved > 0 { format!(" beside {reserved} SMs that are kept free") } else { String::new() },
        if *sharing > 1 { format!(" for each of the {sharing} ranks that share it") } else { String::new() }
    )]
    NotCoResident {
        /// Kernel.
        kernel: String,
        /// Device.
        device: i32,
        /// CTAs of the launch.
        grid: u32,
        /// CTAs per cluster.
        cluster: u32,
        /// CTAs that fit, for one rank.
        fits: u32,
        /// Ranks of this world on the device.
        sharing: u32,
        /// SMs that are kept free ([`InstanceOptions::reserve_sms`](crate::InstanceOptions::reserve_sms)).
        reserved: u32,
    },
    /// Copy engines between ranks of one GPU: such a copy may need an SM, and the ranks' kernels may hold them all.
    #[error(
        "kernel {kernel} has copy engines work between ranks that share GPU {device}, whose SMs their kernels hold; \
         gather by `sms` there"
    )]
    EngineOnSharedGpu {
        /// Kernel.
        kernel: String,
        /// Device.
        device: i32,
    },
    /// A stream of copies is part of a capture that has not ended, and would be of another.
    #[error(
        "kernel {kernel} is captured on rank {rank} while another capture that it is part of has not ended; end that \
         one first"
    )]
    TwoCaptures {
        /// Kernel.
        kernel: String,
        /// Rank.
        rank: u32,
    },
    /// Two ranks of one GPU launch in one stream.
    #[error(
        "kernel {kernel}: ranks {} and {} share a GPU and were given the same stream, in which the first one's kernel \
         would wait for the second's for ever; give every rank a stream of its own",
        ranks.0, ranks.1
    )]
    SameStream {
        /// Kernel.
        kernel: String,
        /// The ranks.
        ranks: (u32, u32),
    },
    /// A launch with the wrong number of something.
    #[error("kernel {kernel}: {given} {what} were given, and {expected} are needed")]
    Count {
        /// Kernel.
        kernel: String,
        /// What is counted.
        what: &'static str,
        /// Needed.
        expected: usize,
        /// Given.
        given: usize,
    },
    /// A tensor argument that the kernel cannot use.
    #[error("kernel {kernel}: tensor {tensor} of rank {rank} {what}")]
    Tensor {
        /// Kernel.
        kernel: String,
        /// Rank.
        rank: u32,
        /// Name in the pipeline.
        tensor: String,
        /// What is wrong.
        what: String,
    },
    /// Arguments of a buffer helper or a reference kernel that do not fit together.
    #[error("{what}")]
    Shape {
        /// What does not fit.
        what: String,
    },
    /// A kernel gave up.
    #[error("{0}")]
    Fault(Box<Fault>),
    /// An environment variable of the launcher is missing or makes no sense.
    #[error("{variable}{}: {what}; {}", is(value), set_by(variable))]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What it holds, if it is set.
        value: Option<String>,
        /// What is wrong with it.
        what: String,
    },
    /// An environment variable of ours makes no sense.
    #[error("{variable} is `{value}`: {what}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        what: String,
    },
    /// The hosts of the world's processes cannot make up a world.
    #[error("{what}")]
    SeveralHosts {
        /// Why, and what to do.
        what: String,
    },
    /// Processes of the world did not find each other.
    #[error("rank {rank} waited {:.1} s for the other processes of its world: \
        {what}{}", waited.as_secs_f64(), missing_ranks(missing))]
    Rendezvous {
        /// This rank.
        rank: u32,
        /// Ranks that did not come, where that is known.
        missing: Vec<u32>,
        /// What happened.
        what: String,
        /// How long this rank waited.
        waited: Duration,
    },
    /// Two ranks have the same GPU.
    #[error("ranks {} and {} both have GPU {device}: each process needs a GPU of its own", ranks.0, ranks.1)]
    SameDevice {
        /// The ranks.
        ranks: (u32, u32),
        /// Identity of the GPU.
        device: String,
    },
    /// Another process of the world is dead, or has left it.
    #[error("the process of rank {rank} is gone ({during}); build a new world")]
    PeerGone {
        /// Its rank.
        rank: u32,
        /// What this process was doing.
        during: String,
    },
    /// This process gave up waiting for others, because it was told to.
    #[error("{during}: interrupted; build a new world")]
    Interrupted {
        /// What this process was doing.
        during: String,
    },
    /// Other processes of the world did not take part in a collective call.
    #[error("{during}: nothing came from {} within {:.1} s; build a new \
        world", ranks_text(ranks), waited.as_secs_f64())]
    PeerSilent {
        /// Their ranks.
        ranks: Vec<u32>,
        /// The call.
        during: String,
        /// How long this process waited.
        waited: Duration,
    },
    /// Another process of the world failed in a collective call, so that this one cannot succeed.
    #[error("{during}: rank {rank} failed: {what}")]
    PeerFailed {
        /// Its rank.
        rank: u32,
        /// The call.
        during: String,
        /// Its error.
        what: String,
    },
    /// The ranks do not ask for the same thing.
    #[error(
        "{during}: rank {rank} differs from {} in {what}; every rank must pass the same",
        ranks_text(ranks)
    )]
    Disagree {
        /// The call.
        during: String,
        /// What differs.
        what: String,
        /// This rank.
        rank: u32,
        /// The ranks that differ from it.
        ranks: Vec<u32>,
    },
    /// Another rank launched something else in the place of this launch, which was not made.
    #[error(
        "launch {launch} in this world: rank {rank} launches {ours}, and rank {peer} launched {theirs}; every rank \
         must launch the same kernels in the same order"
    )]
    OutOfStep {
        /// Which, counted from 1: of kernels in which ranks meet, and that do not overlap others.
        launch: u64,
        /// This rank.
        rank: u32,
        /// What it launches.
        ours: String,
        /// The other rank.
        peer: u32,
        /// What that launched.
        theirs: String,
    },
    /// This launch, which was not made, would wait for itself: ranks launched kernels of several worlds in different
    /// orders.
    #[error(
        "launch {launch} in this world: rank {rank} launches {ours} behind a kernel of another world that waits for \
         it; launch kernels of all worlds in one order on all ranks, or bind them with `overlap` and SMs that fit \
         side by side"
    )]
    Crossed {
        /// Which, counted as in [`Error::OutOfStep`].
        launch: u64,
        /// This rank.
        rank: u32,
        /// What it launches.
        ours: String,
    },
    /// A call of the operating system failed.
    #[error("{call} failed: {what}")]
    System {
        /// The call.
        call: &'static str,
        /// What the system says.
        what: String,
    },
    /// Some streams of a launch are being captured, and others are not.
    #[error(
        "kernel {kernel}: the stream of rank {captured} is being captured and that of rank {eager} is not; capture \
         the streams of all ranks or of none"
    )]
    MixedCapture {
        /// Kernel.
        kernel: String,
        /// A rank whose stream is captured.
        captured: u32,
        /// A rank whose stream is not.
        eager: u32,
    },
    /// Plans that shall run side by side do not fit the GPU together.
    #[error(
        "kernel {kernel} wants {wants} SMs of GPU {device} beside other plans, which hold {held} of its {sms} and \
         keep {reserved} free; give the plans fewer CTAs, or bind without `overlap` to run them one after the other"
    )]
    SmBudget {
        /// Kernel.
        kernel: String,
        /// Device.
        device: i32,
        /// SMs that the kernel's CTAs take.
        wants: u32,
        /// SMs that bound instances with `overlap` hold.
        held: u32,
        /// SMs that some instance asks to keep free.
        reserved: u32,
        /// SMs of the device.
        sms: u32,
    },
    /// A figure of the machine that would not be true: what was measured did not do what it should.
    #[error("measuring {what}: {why}")]
    Unmeasured {
        /// The figure.
        what: String,
        /// What went wrong.
        why: String,
    },
    /// A network failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// [`Instance::abort`](crate::Instance::abort) was called, or a graph outlived the instance that it captured.
    #[error("the instance was aborted or dropped by its owner")]
    Aborted,
    /// A launch on an instance that has failed before.
    #[error("the instance is unusable after an earlier failure (bind a new one): {cause}")]
    Poisoned {
        /// The first failure.
        cause: Arc<Error>,
    },
}

/// A result of this crate.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the failure says that this machine has no usable GPU, so that a test may skip.
    pub fn is_no_device(&self) -> bool {
        match self {
            Error::DriverMissing | Error::NoSuchDevice { .. } => true,
            // CUDA_ERROR_NO_DEVICE, CUDA_ERROR_STUB_LIBRARY
            Error::Cuda { code, .. } => matches!(code, 34 | 100),
            _ => false,
        }
    }
}

/// What to do about what a driver says.
fn remedy(code: u32) -> &'static str {
    match code {
        // CUDA_ERROR_OUT_OF_MEMORY
        2 => {
            "\n  help: the GPU's memory is taken, by a framework's cache perhaps (torch.cuda.empty_cache() gives it \
             back); bind before it fills"
        }
        _ => "",
    }
}

fn on(device: &Option<i32>) -> String {
    device.map_or_else(String::new, |d| format!(" on GPU {d}"))
}

fn list(paths: &[PathBuf]) -> String {
    let mut names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    names.dedup();
    names.join(", ")
}

fn is(value: &Option<String>) -> String {
    value.as_ref().map_or_else(|| " is not set".into(), |v| format!(" is `{v}`"))
}

/// `rank 3`, `ranks 1, 2`.
fn ranks_text(ranks: &[u32]) -> String {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, names.join(", "))
}

fn missing_ranks(missing: &[u32]) -> String {
    if missing.is_empty() {
        return String::new();
    }
    format!("; missing: {}", ranks_text(missing))
}

/// Which launcher sets a variable, for messages.
fn set_by(variable: &str) -> &'static str {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|p| variable.starts_with(p));
    if variable == "MK_MEET" {
        "set it by hand, the same for all processes"
    } else if begins(&["MK"]) {
        "no launcher sets it: give MK_RANK, MK_WORLD_SIZE, MK_LOCAL_RANK and MK_LOCAL_WORLD_SIZE, or none of them"
    } else if begins(&["SLURM_"]) {
        "srun sets it for its processes"
    } else if begins(&["OMPI_", "PMIX_"]) {
        "Open MPI's mpirun sets it"
    } else if begins(&["PMI_", "MPI_"]) {
        "the mpirun of MPICH and of Intel sets it"
    } else {
        "a launcher such as torchrun sets it"
    }
}
