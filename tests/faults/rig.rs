//! A pipeline bound to the ranks of this process, with inputs that depend on the rank and the launch alone.

use crate::pipelines::Wide;
use mk::{
    Program,
    abi::{KernelSource, TensorDirection},
    emit,
    passes::{self},
    runtime::{
        DeviceTensor, Error, Graph, Instance, InstanceOptions, RankTensors, Reference, Stream,
        StreamRef, TensorRef, World,
        jit::{self, JitOptions},
    },
    settings::{Config, Gather, Schedule},
};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// A pipeline and its shapes: `a` is `[m, k]`, `b` is `[k, n]`, `d` is `[n, k]`.
#[derive(Clone, Debug)]
pub struct Case {
    pub pipeline: &'static str,
    pub size: (u64, u64, u64),
    /// CTAs by role, where the default split is not wanted.
    /// CTAs that multiply, and that communicate.
    pub sms: Option<[u32; 2]>,
    pub gather: Gather,
    pub tile_scheduler: Schedule,
}

pub const GATHER: Case = Case {
    pipeline: "gather(a) -> gemm(b)",
    size: (1024, 512, 1024),
    sms: None,
    gather: Gather::Sms,
    tile_scheduler: Schedule::Static,
};

/// The same by copy engine.
pub const ENGINE: Case = Case { gather: Gather::CopyEngine { parts: 2 }, ..GATHER };

/// Tiles and sums for whoever is free.
pub const QUEUED: Case = Case {
    pipeline: "gemm(a, b) -> reduce_scatter",
    tile_scheduler: Schedule::Dynamic,
    // Several waves.
    sms: Some([8, 4]),
    ..GATHER
};

/// The number of rows comes with each launch.
pub const DYNAMIC: Case = Case {
    pipeline: "fn rows<M: dyn <= 3000>(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) { gather(a) -> gemm(b) }",
    size: (3000, 256, 512),
    ..GATHER
};

/// Half of the GPU each, and the ranks start them in opposite orders.
pub const BESIDE: [Case; 2] = [
    Case { sms: Some([50, 8]), ..GATHER },
    Case { size: (1536, 512, 768), sms: Some([50, 8]), ..GATHER },
];

/// Bounds that end within seconds.
pub fn options() -> InstanceOptions {
    InstanceOptions {
        wait_limit: Duration::from_secs(2),
        entry_limit: Duration::from_secs(3),
        poison: Some(0xFF),
        ..InstanceOptions::default()
    }
}

pub fn compile(case: &Case, ranks: u32) -> KernelSource {
    compile_over(case, &Config { ranks, ..Config::default() })
}

/// With the world, and all that it decides, in `config`.
pub fn compile_over(case: &Case, config: &Config) -> KernelSource {
    let program = Program::parse(case.pipeline).expect("parses");
    let (m, k, n) = case.size;
    let shapes = [("(a", "a", [m, k]), ("b)", "b", [k, n]), ("gemm(d)", "d", [n, k])];
    let shapes: BTreeMap<_, _> = shapes
        .into_iter()
        .filter(|(text, ..)| case.pipeline.contains(text))
        .map(|(_, name, shape)| (name.to_string(), shape.to_vec()))
        .collect();
    let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
    let [compute_sms, intra_comm_sms] = [0, 1].map(|i| case.sms.map(|sms| sms[i]));
    let (gather, tile_scheduler) = (case.gather, case.tile_scheduler);
    let config = Config { compute_sms, intra_comm_sms, gather, tile_scheduler, ..config.clone() };
    let (plan, _proof) = passes::compile(&program, &bound, &config).expect("compiles");
    emit::emit(&plan).expect("emits")
}

/// A kernel of [`PIPELINES`](crate::pipelines::PIPELINES).
pub fn compile_wide((text, dims): &Wide, ranks: u32) -> KernelSource {
    let program = Program::parse(text).expect("parses");
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    let config = Config { ranks, ..Config::default() };
    let (plan, _proof) = passes::compile(&program, &bound, &config).expect("compiles");
    emit::emit(&plan).expect("emits")
}

pub struct Rig {
    pub instance: Instance,
    pub streams: Vec<Stream>,
    used: Vec<Stream>,
    pub source: KernelSource,
    world: World,
    /// Of this process's ranks, then in argument order.
    pub tensors: Vec<Vec<DeviceTensor>>,
    reference: Reference,
}

impl Rig {
    pub fn new(world: &World, case: &Case, options: &InstanceOptions) -> Result<Rig, Error> {
        Rig::with(world, compile(case, world.size()), options)
    }

    /// A kernel that was changed, perhaps.
    pub fn with(
        world: &World,
        source: KernelSource,
        options: &InstanceOptions,
    ) -> Result<Rig, Error> {
        let compiled = jit::compile(&source, &JitOptions::default())?;
        let instance = Instance::bind(world, &source, &compiled, options)?;
        let mut tensors = Vec::new();
        for rank in world.local_ranks() {
            let shapes = source.tensors.iter().zip(&source.ranks[rank as usize].tensor_shapes);
            let new = |(arg, shape): (&mk::abi::TensorArg, &Vec<u64>)| {
                DeviceTensor::new(world, rank, arg.dtype, shape)
            };
            tensors.push(shapes.map(new).collect::<Result<Vec<_>, _>>()?);
        }
        let streams = Stream::per_rank(world)?;
        let reference = Reference::new(world, &JitOptions::default())?;
        let used = Vec::new();
        Ok(Rig { instance, streams, used, source, world: world.clone(), tensors, reference })
    }

    /// Fresh inputs, poisoned outputs.
    pub fn refill(&self, epoch: u64) -> Result<(), Error> {
        for (rank, tensors) in self.world.local_ranks().zip(&self.tensors) {
            for (i, (tensor, arg)) in tensors.iter().zip(&self.source.tensors).enumerate() {
                if tensor.elements() == 0 {
                    continue;
                }
                match arg.direction {
                    TensorDirection::In => {
                        let seed = epoch * 1_000_003 + u64::from(rank) * 101 + i as u64;
                        self.reference.fill_random(tensor, seed, 1.0)?;
                    }
                    TensorDirection::Out => tensor.poison()?,
                }
            }
        }
        Ok(())
    }

    /// Later launches go to these streams; the old ones live on.
    pub fn change_streams(&mut self, streams: Vec<Stream>) {
        self.used.append(&mut std::mem::replace(&mut self.streams, streams));
    }

    pub fn refs(&self) -> Vec<StreamRef> {
        self.streams.iter().map(Stream::as_ref).collect()
    }

    pub fn args(&self) -> Vec<RankTensors> {
        self.tensors.iter().map(RankTensors::new).collect()
    }

    pub fn launch(&mut self) -> Result<(), Error> {
        let (refs, args) = (self.refs(), self.args());
        self.instance.launch(&refs, &args)
    }

    /// A launch of a kernel whose number of rows, `m`, comes with it; its tensors are as large as the kernel allows.
    pub fn launch_rows(&mut self, m: u32) -> Result<(), Error> {
        let most = u64::from(self.source.runtime_dims[0].max);
        let part = |(tensor, arg): (&DeviceTensor, &mk::abi::TensorArg)| {
            let (ptr, all) = (tensor.buffer().ptr(), tensor.buffer().size_bytes());
            let bytes = if arg.name == "b" { all } else { all * u64::from(m) / most };
            // SAFETY: a part of a tensor that lives as long as the rig.
            unsafe { TensorRef::from_raw(ptr, bytes) }
        };
        let rank = |tensors: &Vec<DeviceTensor>| -> RankTensors {
            tensors.iter().zip(&self.source.tensors).map(part).collect::<Vec<_>>().into()
        };
        let (refs, args) = (self.refs(), self.tensors.iter().map(rank).collect::<Vec<_>>());
        self.instance.launch_with(&refs, &args, &[m])
    }

    /// One launch with fresh inputs, and what it leaves, by rank.
    pub fn step(&mut self, epoch: u64) -> Result<Vec<(u32, u64)>, Error> {
        self.refill(epoch)?;
        self.launch()?;
        self.instance.synchronize()?;
        self.hashes()
    }

    /// A hash of every bit of the results, by rank.
    pub fn hashes(&self) -> Result<Vec<(u32, u64)>, Error> {
        let mut all = Vec::new();
        for (rank, tensors) in self.world.local_ranks().zip(&self.tensors) {
            let mut hasher = DefaultHasher::new();
            for (tensor, arg) in tensors.iter().zip(&self.source.tensors) {
                if arg.direction == TensorDirection::Out {
                    tensor.buffer().download()?.hash(&mut hasher);
                }
            }
            all.push((rank, hasher.finish()));
        }
        Ok(all)
    }

    pub fn capture(&mut self) -> Result<Vec<Graph>, Error> {
        let (refs, args) = (self.refs(), self.args());
        let instance = &mut self.instance;
        Graph::capture(&self.streams, || instance.launch(&refs, &args))
    }

    /// Waits for replays, which the instance does not know of.
    pub fn wait(&mut self) -> Result<(), Error> {
        let waited: Vec<_> = self.streams.iter().map(Stream::synchronize).collect();
        self.instance.check()?;
        waited.into_iter().collect()
    }
}

#[test]
fn the_cases_compile() {
    for case in [&GATHER, &QUEUED, &DYNAMIC, &BESIDE[0], &BESIDE[1]] {
        for ranks in 2..=4 {
            let source = compile(case, ranks);
            let dims: u32 = case.sms.iter().flatten().sum();
            assert!(dims == 0 || source.grid == dims, "{case:?}: a grid of {}", source.grid);
        }
    }
    assert_eq!(compile(&DYNAMIC, 4).runtime_dims[0].max, 3000);
    assert_eq!(compile(&DYNAMIC, 4).ranks[1].tensor_shapes[0], [750, 256]);
}
