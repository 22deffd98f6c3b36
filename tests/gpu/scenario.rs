//! A pipeline bound to GPUs, with its inputs and an fp32 reference on the same GPUs.

use mk::{
    Program,
    abi::{DType, KernelSource, TensorDirection},
    emit, passes,
    runtime::{
        DeviceTensor, ErrorNorm, Instance, InstanceOptions, MapOp, Operand, RankTensors, Reference,
        Stream, StreamRef, World,
        jit::{self, JitOptions},
    },
};
use std::{collections::BTreeMap, error::Error};

/// Any failure, with its text.
pub type Res<T> = Result<T, Box<dyn Error>>;

/// A pipeline, its global shapes and how it is compiled.
#[derive(Clone, Debug, Default)]
pub struct Case {
    pub pipeline: &'static str,
    pub shapes: Vec<(&'static str, Vec<u64>)>,
    pub config: passes::Config,
}

pub struct Scenario {
    pub instance: Instance,
    pub streams: Vec<Stream>,
    pub source: KernelSource,
    /// By rank, then in argument order.
    pub tensors: Vec<Vec<DeviceTensor>>,
    reference: Reference,
    world: World,
    ops: Vec<&'static str>,
    gathers: bool,
}

pub fn compile(case: &Case, ranks: u32) -> Res<KernelSource> {
    let program = Program::parse(case.pipeline)?;
    let shapes: BTreeMap<_, _> =
        case.shapes.iter().map(|(n, s)| (n.to_string(), s.clone())).collect();
    let bound = program.bind(&BTreeMap::new(), &shapes)?;
    let config = passes::Config { ranks, ..case.config.clone() };
    Ok(emit::emit(&passes::lower(&program, &bound, &config)?)?)
}

impl Scenario {
    pub fn new(case: &Case, world: &World, options: &InstanceOptions) -> Res<Scenario> {
        let source = compile(case, world.size())?;
        let compiled = jit::compile(&source, &JitOptions::default())?;
        let instance = Instance::bind(world, &source, &compiled, options)?;
        let mut tensors = Vec::new();
        for rank in world.local_ranks() {
            let shapes = &source.ranks[rank as usize].tensor_shapes;
            let new = |(arg, shape): (&mk::abi::TensorArg, &Vec<u64>)| {
                DeviceTensor::new(world, rank, arg.dtype, shape)
            };
            tensors
                .push(source.tensors.iter().zip(shapes).map(new).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Scenario {
            instance,
            streams: Stream::per_rank(world)?,
            tensors,
            reference: Reference::new(world, &JitOptions::default())?,
            world: world.clone(),
            ops: case.pipeline.split("->").map(str::trim).skip(1).collect(),
            gathers: case.pipeline.trim_start().starts_with("gather"),
            source,
        })
    }

    fn seed(epoch: u64, rank: u32, tensor: usize) -> u64 {
        epoch * 1_000_003 + u64::from(rank) * 101 + tensor as u64
    }

    /// Fresh inputs, poisoned outputs.
    pub fn refill(&self, epoch: u64) -> Res<()> {
        for (rank, tensors) in self.tensors.iter().enumerate() {
            for (i, (t, arg)) in tensors.iter().zip(&self.source.tensors).enumerate() {
                if t.elements() == 0 {
                    continue;
                }
                match arg.direction {
                    TensorDirection::In => {
                        self.reference.fill_random(t, Self::seed(epoch, rank as u32, i), 1.0)?
                    }
                    TensorDirection::Out => t.poison()?,
                }
            }
        }
        Ok(())
    }

    pub fn stream_refs(&self) -> Vec<StreamRef> {
        self.streams.iter().map(Stream::as_ref).collect()
    }

    pub fn args(&self) -> Vec<RankTensors> {
        self.tensors.iter().map(RankTensors::new).collect()
    }

    pub fn launch(&mut self) -> Res<()> {
        let (streams, args) = (self.stream_refs(), self.args());
        Ok(self.instance.launch(&streams, &args)?)
    }

    /// Launches once with fresh inputs and compares every rank.
    pub fn step(&mut self, epoch: u64) -> Res<ErrorNorm> {
        self.refill(epoch)?;
        self.launch()?;
        self.instance.synchronize()?;
        self.worst(epoch)
    }

    fn named(&self, rank: usize, name: &str) -> Option<&DeviceTensor> {
        let i = self.source.tensors.iter().position(|t| t.name == name)?;
        self.tensors[rank].get(i)
    }

    /// All rows of `a`, on `rank`.
    fn gathered(&self, rank: usize, epoch: u64) -> Res<DeviceTensor> {
        let shapes = |q: usize| &self.source.ranks[q].tensor_shapes[0];
        let rows: u64 = (0..self.tensors.len()).map(|q| shapes(q)[0]).sum();
        let cols = shapes(0)[1];
        let dtype = self.source.tensors[0].dtype;
        let all = DeviceTensor::new(&self.world, rank as u32, dtype, &[rows, cols])?;
        let mut at = 0;
        for q in 0..self.tensors.len() {
            let part = DeviceTensor::new(&self.world, rank as u32, dtype, shapes(q))?;
            if part.elements() > 0 {
                self.reference.fill_random(&part, Self::seed(epoch, q as u32, 0), 1.0)?;
            }
            let bytes = part.elements() * dtype.size_bytes();
            all.buffer().copy_range(at, part.buffer(), 0, bytes)?;
            at += bytes;
        }
        Ok(all)
    }

    /// What rank `rank` should hold, in f32.
    fn expected(&self, rank: usize, epoch: u64) -> Res<DeviceTensor> {
        let new = |shape: &[u64]| DeviceTensor::new(&self.world, rank as u32, DType::F32, shape);
        let gathered = if self.gathers { Some(self.gathered(rank, epoch)?) } else { None };
        let out = self.named(rank, "out").ok_or("the kernel has no result")?;
        let x = new(out.shape())?;
        let Some(b) = self.named(rank, "b") else {
            let all = gathered.as_ref().ok_or("nothing is gathered")?;
            self.reference.map(MapOp::Cast, &x, all, None)?;
            return Ok(x);
        };
        let a = gathered.as_ref().or(self.named(rank, "a")).ok_or("no left operand")?;
        self.reference.gemm(&x, Operand::new(a), Operand::new(b), false)?;
        for op in &self.ops {
            let (name, arg) =
                op.split_once('(').map_or((*op, ""), |(n, r)| (n, r.trim_end_matches(')')));
            let y = self.named(rank, arg);
            let map = match name {
                "gemm" => continue,
                "bias" => MapOp::Bias,
                "gelu" => MapOp::GeluErf,
                "silu" => MapOp::Silu,
                "relu" => MapOp::Relu,
                "mul" => MapOp::Mul,
                "add" => MapOp::Add,
                "scale" => MapOp::Scale(arg.parse()?),
                other => return Err(format!("the reference has no `{other}`").into()),
            };
            let z = new(out.shape())?;
            self.reference.map(map, &z, &x, y)?;
            x.copy_from(&z)?;
        }
        Ok(x)
    }

    /// The worst error of any rank.
    pub fn worst(&self, epoch: u64) -> Res<ErrorNorm> {
        let mut worst = ErrorNorm { global: 0.0, worst_tile: 0.0, worst_at: (0, 0), nonfinite: 0 };
        for rank in 0..self.tensors.len() {
            let out = self.named(rank, "out").ok_or("the kernel has no result")?;
            if out.elements() == 0 {
                continue;
            }
            let norm = self.reference.error(out, &self.expected(rank, epoch)?)?;
            if norm.worst_tile > worst.worst_tile
                || norm.global > worst.global
                || norm.nonfinite > 0
            {
                worst = ErrorNorm { global: norm.global.max(worst.global), ..norm };
            }
        }
        Ok(worst)
    }
}

/// bf16 results: relative Frobenius error below 5e-3 in all, below 2e-2 in every 128 x 128 tile.
pub fn good(n: &ErrorNorm) -> bool {
    n.nonfinite == 0 && n.global < 5e-3 && n.worst_tile < 2e-2
}
