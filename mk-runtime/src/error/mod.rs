//! What can go wrong, with what is needed to act on it.

mod fault;
mod transport;

pub use fault::{Fault, FaultCause};
pub use transport::TransportError;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

mk_abi::errors! {
    /// Any failure of this crate.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    Error {
        /// The CUDA driver library is not on this machine.
        DriverMissing(
            "no CUDA driver: libcuda.so.1 was not found; install the NVIDIA driver (version 580 or newer), or use the \
             CPU executor: `mk::simulate` in Rust, `Plan.simulate` in Python, `mk run --device cpu`"
        ),
        /// The driver is older than the kernels need.
        DriverTooOld(
            "the CUDA driver supports CUDA {}.{}, and CUDA {}.{} is needed: update the NVIDIA driver",
            have / 1000, have % 1000 / 10, need / 1000, need % 1000 / 10
        ) {
            have: i32 = "What `cuDriverGetVersion` says: 1000 * major + 10 * minor",
            need: i32 = "What this crate needs, in the same form",
        },
        /// A driver call failed.
        Cuda("{call} failed{}: {name} ({code}){}", on(device), remedy(*code)) {
            call: &'static str = "The call",
            device: Option<i32> = "The device that it was made for, if it was made for one",
            code: u32 = "The `CUresult`",
            name: String = "Its name",
        },
        /// A device ordinal that does not exist.
        NoSuchDevice("device {device} was asked for, and this machine has {count}") {
            device: i32 = "Ordinal",
            count: i32 = "Number of devices that the driver shows",
        },
        /// Two GPUs cannot reach each other's memory.
        NoPeerAccess(
            "GPU {from} cannot access the memory of GPU {to}: symmetric memory needs peer access (NVLink or PCIe P2P) \
             between all pairs"
        ) {
            from: i32 = "The GPU that would access",
            to: i32 = "The GPU that owns the memory",
        },
        /// A rank's memory is not mapped on another one.
        Unreachable(
            "rank {from} cannot map the memory of rank {to}: they are on different nodes, and no transport joins them"
        ) {
            from: u32 = "The rank that would access it",
            to: u32 = "The rank that owns the memory",
        },
        /// No NVRTC library was found.
        NvrtcMissing(
            "NVRTC (libnvrtc.so.13) was not found; get it with `cargo xtask setup`, or `pip install \
             nvidia-cuda-nvrtc==13.0.88`, or set MK_NVRTC_DIR to the directory that holds it; searched: {}",
            list(searched)
        ) {
            searched: Vec<PathBuf> = "Directories that were looked at",
        },
        /// An NVRTC library was found and cannot be used.
        NvrtcUnusable("NVRTC at {} cannot be used: {what}; `cargo xtask setup` installs one that can", path.display()) {
            path: PathBuf = "The library",
            what: String = "What is wrong with it",
        },
        /// An NVRTC call failed for a reason other than the source.
        Nvrtc("{call} failed for kernel {kernel}: {what}") {
            call: &'static str = "The call",
            kernel: String = "Kernel",
            what: String = "What NVRTC says",
        },
        /// The source does not compile.
        Compile("kernel {kernel} does not compile:\n{log}") {
            kernel: String = "Kernel",
            log: String = "NVRTC's log",
        },
        /// Registers were spilled to local memory.
        Spill(
            "kernel {kernel}: entry {entry} spills registers ({store_bytes} bytes of stores, {load_bytes} bytes of \
             loads); a plan must allow it explicitly"
        ) {
            kernel: String = "Kernel",
            entry: String = "Entry point",
            store_bytes: u32 = "Spill stores, in bytes",
            load_bytes: u32 = "Spill loads, in bytes",
        },
        /// The assembler could not keep the kernel's asynchronous MMAs or its register allocation as written.
        Serialised(
            "kernel {kernel}: ptxas {code}: {text}; such a kernel would run its products one after the other, and is \
             never taken"
        ) {
            kernel: String = "Kernel",
            code: String = "`C7510`, …",
            text: String = "The message",
        },
        /// Compiled kernels, proofs and tuning results cannot be kept on disk.
        CacheUnusable(
            "the kernel cache{} cannot be used: {what}; set MK_CACHE_DIR to a directory that you alone can write and \
             that has room, or every start compiles and proves anew",
            dir.as_ref().map_or_else(String::new, |d| format!(" {}", d.display()))
        ) {
            dir: Option<PathBuf> = "Its directory, where the environment names one",
            what: String = "What is wrong with it",
        },
        /// A tool that is needed for the request is not installed.
        ToolMissing("{tool} was not found; get it with {get}") {
            tool: &'static str = "The tool",
            get: &'static str = "How to get it",
        },
        /// A tool ran and failed.
        ToolFailed("{tool} failed: {what}") {
            tool: &'static str = "The tool",
            what: String = "Its message",
        },
        /// The driver was told to block on every launch.
        LaunchBlocking(
            "CUDA_LAUNCH_BLOCKING is set: the first rank's launch would block while its kernel waits for ranks that \
             are not launched yet; unset it"
        ),
        /// The plan was made for another number of ranks.
        WorldSize("kernel {kernel} was generated for {}, and this world has {world}", mk_abi::count(*plan, "rank")) {
            kernel: String = "Kernel",
            plan: u32 = "Ranks of the plan",
            world: u32 = "Ranks of the world",
        },
        /// A kernel source contradicts itself or the limits of the machine.
        BadSource("kernel {kernel}: {what}") {
            kernel: String = "Kernel",
            what: String = "What is wrong",
        },
        /// The kernel needs something that this version, or this world, does not have.
        Unsupported("unsupported: kernel {kernel}: {what}") {
            kernel: String = "Kernel",
            what: String = "What it needs, and what to do",
        },
        /// The kernel was compiled for another architecture.
        WrongArch("kernel {kernel} is for {arch}, and GPU {device} has compute capability {}.{}", have.0, have.1) {
            kernel: String = "Kernel",
            arch: String = "`sm_90a`",
            device: i32 = "Device",
            have: (u32, u32) = "Its compute capability",
        },
        /// The grid does not fit on the device at once.
        NotCoResident(
            "kernel {kernel} needs {grid} CTAs (clusters of {cluster}) resident at once, and GPU {device} can hold \
             {fits}{}{}",
            if *reserved > 0 { format!(" beside {reserved} SMs that are kept free") } else { String::new() },
            if *sharing > 1 { format!(" for each of the {sharing} ranks that share it") } else { String::new() }
        ) {
            kernel: String = "Kernel",
            device: i32 = "Device",
            grid: u32 = "CTAs of the launch",
            cluster: u32 = "CTAs per cluster",
            fits: u32 = "CTAs that fit, for one rank",
            sharing: u32 = "Ranks of this world on the device",
            /// SMs that are kept free ([`InstanceOptions::reserve_sms`](crate::InstanceOptions::reserve_sms)).
            reserved: u32,
        },
        /// Copy engines between ranks of one GPU: such a copy may need an SM, and the ranks' kernels may hold them all.
        EngineOnSharedGpu(
            "kernel {kernel} has copy engines work between ranks that share GPU {device}, whose SMs their kernels \
             hold; gather by `sms` there"
        ) {
            kernel: String = "Kernel",
            device: i32 = "Device",
        },
        /// A stream of copies is part of a capture that has not ended, and would be of another.
        TwoCaptures(
            "kernel {kernel} is captured on rank {rank} while another capture that it is part of has not ended; end \
             that one first"
        ) {
            kernel: String = "Kernel",
            rank: u32 = "Rank",
        },
        /// Two ranks of one GPU launch in one stream.
        SameStream(
            "kernel {kernel}: ranks {} and {} share a GPU and were given the same stream, in which the first one's \
             kernel would wait for the second's for ever; give every rank a stream of its own",
            ranks.0, ranks.1
        ) {
            kernel: String = "Kernel",
            ranks: (u32, u32) = "The ranks",
        },
        /// A launch with the wrong number of something.
        Count("kernel {kernel}: {given} {what} were given, and {expected} are needed") {
            kernel: String = "Kernel",
            what: &'static str = "What is counted",
            expected: usize = "Needed",
            given: usize = "Given",
        },
        /// A tensor argument that the kernel cannot use.
        Tensor("kernel {kernel}: tensor {tensor} of rank {rank} {what}") {
            kernel: String = "Kernel",
            rank: u32 = "Rank",
            tensor: String = "Name in the pipeline",
            what: String = "What is wrong",
        },
        /// Arguments of a buffer helper or a reference kernel that do not fit together.
        Shape("{what}") {
            what: String = "What does not fit",
        },
        /// A kernel gave up.
        Fault("{0}") = (Box<Fault>),
        /// An environment variable of the launcher is missing or makes no sense.
        Environment("{variable}{}: {what}; {}", is(value), set_by(variable)) {
            variable: &'static str = "The variable",
            value: Option<String> = "What it holds, if it is set",
            what: String = "What is wrong with it",
        },
        /// An environment variable of ours makes no sense.
        Variable("{variable} is `{value}`: {what}") {
            variable: &'static str = "The variable",
            value: String = "What it holds",
            what: String = "What is wrong with it",
        },
        /// The hosts of the world's processes cannot make up a world.
        SeveralHosts("{what}") {
            what: String = "Why, and what to do",
        },
        /// Processes of the world did not find each other.
        Rendezvous(
            "rank {rank} waited {:.1} s for the other processes of its world: {what}{}",
            waited.as_secs_f64(), missing_ranks(missing)
        ) {
            rank: u32 = "This rank",
            missing: Vec<u32> = "Ranks that did not come, where that is known",
            what: String = "What happened",
            waited: Duration = "How long this rank waited",
        },
        /// Two ranks have the same GPU.
        SameDevice("ranks {} and {} both have GPU {device}: each process needs a GPU of its own", ranks.0, ranks.1) {
            ranks: (u32, u32) = "The ranks",
            device: String = "Identity of the GPU",
        },
        /// Another process of the world is dead, or has left it.
        PeerGone("the process of rank {rank} is gone ({during}); build a new world") {
            rank: u32 = "Its rank",
            during: String = "What this process was doing",
        },
        /// This process gave up waiting for others, because it was told to.
        Interrupted("{during}: interrupted; build a new world") {
            during: String = "What this process was doing",
        },
        /// Other processes of the world did not take part in a collective call.
        PeerSilent(
            "{during}: nothing came from {} within {:.1} s; build a new world",
            ranks_text(ranks), waited.as_secs_f64()
        ) {
            ranks: Vec<u32> = "Their ranks",
            during: String = "The call",
            waited: Duration = "How long this process waited",
        },
        /// Another process of the world failed in a collective call, so that this one cannot succeed.
        PeerFailed("{during}: rank {rank} failed: {what}") {
            rank: u32 = "Its rank",
            during: String = "The call",
            what: String = "Its error",
        },
        /// The ranks do not ask for the same thing.
        Disagree("{during}: rank {rank} differs from {} in {what}; every rank must pass the same", ranks_text(ranks)) {
            during: String = "The call",
            what: String = "What differs",
            rank: u32 = "This rank",
            ranks: Vec<u32> = "The ranks that differ from it",
        },
        /// Another rank launched something else in the place of this launch, which was not made.
        OutOfStep(
            "launch {launch} in this world: rank {rank} launches {ours}, and rank {peer} launched {theirs}; every \
             rank must launch the same kernels in the same order"
        ) {
            launch: u64 = "Which, counted from 1: of kernels in which ranks meet, and that do not overlap others",
            rank: u32 = "This rank",
            ours: String = "What it launches",
            peer: u32 = "The other rank",
            theirs: String = "What that launched",
        },
        /// This launch, which was not made, would wait for itself: ranks launched kernels of several worlds in
        /// different orders.
        Crossed(
            "launch {launch} in this world: rank {rank} launches {ours} behind a kernel of another world that waits \
             for it; launch kernels of all worlds in one order on all ranks, or bind them with `overlap` and SMs that \
             fit side by side"
        ) {
            launch: u64 = "Which, counted as in [`Error::OutOfStep`]",
            rank: u32 = "This rank",
            ours: String = "What it launches",
        },
        /// A call of the operating system failed.
        System("{call} failed: {what}") {
            call: &'static str = "The call",
            what: String = "What the system says",
        },
        /// Some streams of a launch are being captured, and others are not.
        MixedCapture(
            "kernel {kernel}: the stream of rank {captured} is being captured and that of rank {eager} is not; \
             capture the streams of all ranks or of none"
        ) {
            kernel: String = "Kernel",
            captured: u32 = "A rank whose stream is captured",
            eager: u32 = "A rank whose stream is not",
        },
        /// Plans that shall run side by side do not fit the GPU together.
        SmBudget(
            "kernel {kernel} wants {wants} SMs of GPU {device} beside other plans, which hold {held} of its {sms} and \
             keep {reserved} free; give the plans fewer CTAs, or bind without `overlap` to run them one after the \
             other"
        ) {
            kernel: String = "Kernel",
            device: i32 = "Device",
            wants: u32 = "SMs that the kernel's CTAs take",
            held: u32 = "SMs that bound instances with `overlap` hold",
            reserved: u32 = "SMs that some instance asks to keep free",
            sms: u32 = "SMs of the device",
        },
        /// A figure of the machine that would not be true: what was measured did not do what it should.
        Unmeasured("measuring {what}: {why}") {
            what: String = "The figure",
            why: String = "What went wrong",
        },
        /// A network failed.
        Transport from TransportError,
        /// [`Instance::abort`](crate::Instance::abort) was called, or a graph outlived the instance that it captured.
        Aborted("the instance was aborted or dropped by its owner"),
        /// A launch on an instance that has failed before.
        Poisoned("the instance is unusable after an earlier failure (bind a new one): {cause}") {
            cause: Arc<Error> = "The first failure",
        },
    }
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
